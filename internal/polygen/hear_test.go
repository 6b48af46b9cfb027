package polygen

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// messages is how many reports of starts a polygen has read.
func (g *generator) messages(t *testing.T) (n float64) {
	t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sluice_bus_messages_total" && m.GetLabel()[0].GetValue() == string(bus.StartsChannel) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// Of sixteen shards each of two polygens hears eight, and reads what is reported of their users alone. When one dies the
// other hears all, and decides about all users within three seconds.
func TestPolygensHearTheirShards(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() []string{
		"redis":   func() []string { _, addr := proctest.Redis(t); return []string{addr} },
		"cluster": func() []string { addrs, _ := proctest.RedisCluster(t); return addrs },
	} {
		t.Run(name, func(t *testing.T) { hearTheirShards(t, start()) })
	}
}

func hearTheirShards(t *testing.T, addrs []string) {
	const shards, rounds = 16, 20
	connect := func(registry prometheus.Registerer) *bus.Bus {
		b, err := bus.Open(bus.Options{Addresses: addrs, Shards: shards, Timeout: proctest.Patience, Registerer: registry})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	polygen := func(name string) *generator {
		registry := prometheus.NewRegistry()
		g := newGenerator(t, addrs[0], name, func(o *Options) { o.Bus = connect(registry) })
		g.registry = registry
		return g.run(t)
	}
	a, attempt := startAgentsOn(t, connect(nil)), 0
	one := polygen("one").awaitParts(t, parts.Count)
	two := polygen("two").awaitParts(t, parts.Count/2)
	one.awaitParts(t, parts.Count/2)
	for _, g := range []*generator{one, two} {
		proctest.Eventually(t, "half of the shards are heard", func() error {
			if heard := g.learned(); len(g.division.HeardShards()) != shards/2 || heard != parts.Count/2 {
				return fmt.Errorf("%s hears %v, and has learned %d parts", g.options.Name, g.division.HeardShards(), heard)
			}
			return nil
		})
	}
	var users []bus.Started
	for part := range parts.Count {
		users = append(users, bus.Started{User: userAmong(shards, part, 0), Starts: 1})
	}
	before := [2]float64{one.messages(t), two.messages(t)}
	for range rounds {
		if err := a.bus.Started(t.Context(), "one", time.Second, users); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Eventually(t, "each has read the reports of its shards, and no others", func() error {
		read := [2]float64{one.messages(t) - before[0], two.messages(t) - before[1]}
		if want := float64(rounds * shards / 2); read != [2]float64{want, want} {
			return fmt.Errorf("they have read %v of %d, want %v each", read, rounds*shards, want)
		}
		return nil
	})
	a.throttleEverywhere(&attempt)

	_ = two.options.Bus.Close() // it cannot even say that it ends
	two.stop()
	// How soon is TestOnlyItsPartsMove's to say, in virtual time.
	one.awaitParts(t, parts.Count)
	a.throttleEverywhere(&attempt)
}

// learned is of how many of its parts a polygen knows all users.
func (g *generator) learned() int { return (g.division.KnownParts() &^ g.learningParts()).Len() }

// Of what a polygen has just taken over, or does not hear, it says that it does not know all yet: to who asks, and to other polygens.
func TestPolygensSayThatTheyLearn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = parts.Shards(4)
		g := newGenerator(t, "127.0.0.1:1", "one", func(o *Options) { o.Bus = open(t, "127.0.0.1:1", int(shards)) })
		g.decideAll(true)
		user := userAmong(shards, 5, 0) // of shard 1
		now := time.Now()
		says := func(list, ofUser string) {
			t.Helper()
			if said, u := g.UnknownUsers(api.ByRecent, 1).Degraded, g.User(user).Degraded; said != list || u != ofUser {
				t.Errorf("it says %q, and of a user %q, want %q and %q", said, u, list, ofUser)
			}
		}
		const quarter, ofUser = "polygens are learning: of about 25 % of the users not all is known yet", "polygens are learning: not all is known of this user yet"
		says("", "")
		g.observe(now, bus.Heard{Shard: 1, Lost: true})
		says(quarter, ofUser)
		g.observe(now, bus.Heard{Shard: 1})
		says(quarter, ofUser)
		l := &g.dashboard.learns
		if l.at(now.Add(time.Second), shards) != shards.Parts(1) || l.at(now.Add(2*time.Second), shards) != 0 {
			t.Error("it has not learned of the shard within two seconds, or has within one")
		}
		*l = learning{span: learnFor}
		g.division.TakeAnswer(now, parts.Answer{Held: parts.All &^ parts.SetOf(5)})
		g.lockDashboard().mu.Unlock()
		g.division.TakeAnswer(now, parts.Answer{Held: parts.All})
		says("polygens are learning: of about 1 % of the users not all is known yet", ofUser)
		if out := g.answerOther(question{}); out.Learning != parts.SetOf(5) {
			t.Errorf("it tells others that it learns of %v, want part 5", out.Learning.Numbers())
		}
	})
}
