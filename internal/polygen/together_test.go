package polygen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// cutOffable is a polygen whose way to Redis can be cut.
func cutOffable(t *testing.T, addr, name string) (*generator, *proctest.Link) {
	t.Helper()
	way := proctest.NewLink(t, addr, 0)
	g := newGenerator(t, way.Addr, name, func(o *Options) {
		b, err := bus.Open(bus.Options{Addresses: []string{way.Addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		o.Bus = b
	})
	return g, way
}

// knows is how many users a polygen knows itself.
func (g *generator) knows() int {
	g.dashboard.mu.Lock()
	defer g.dashboard.mu.Unlock()
	users, _ := g.dashboard.view.Counts()
	return users
}

// Whichever of several polygens is asked answers for all: each knows a part of the users. While one is missing, the
// answers say so.
func TestPolygensAnswerTogether(t *testing.T) {
	t.Parallel()
	_, addr := proctest.Redis(t)
	a := startAgents(t, addr)
	one := newGenerator(t, addr, "one", nil).run(t).awaitParts(t, parts.Count)
	two, way := cutOffable(t, addr, "two")
	two.run(t).awaitParts(t, parts.Count/2)
	one.awaitParts(t, parts.Count/2)
	users := map[ratelimit.Key]int{}
	for part := range parts.Count {
		users[ratelimit.Key{Class: "GET", User: userOf(part, 0)}] = 3 + part%5
	}
	events, stop, err := one.Policies(api.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	live, end, err := one.Watch(api.Question{Sort: api.ByRate, N: api.MaxTop, User: userOf(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer end()

	proctest.Eventually(t, "each says what both know", func() error {
		if _, err := a.use("one", users); err != nil {
			return err
		}
		for _, g := range []*generator{one, two} {
			if n := g.knows(); n < parts.Count/4 || n > 3*parts.Count/4 {
				return fmt.Errorf("%s knows %d users, want about half of %d", g.options.Name, n, parts.Count)
			}
			list := g.Users(api.ByRate, api.MaxTop)
			if len(list.Users) < parts.Count || list.Seen < parts.Count || list.Degraded != "" {
				return fmt.Errorf("%s lists %d users of %d, degraded %q", g.options.Name, len(list.Users), list.Seen, list.Degraded)
			}
			for i := range list.Users[1:] {
				if list.Users[i].Rate < list.Users[i+1].Rate {
					return fmt.Errorf("%s lists %v before %v", g.options.Name, list.Users[i], list.Users[i+1])
				}
			}
			if u := g.UnknownUsers(api.ByActive, api.MaxTop); u.Seen < parts.Count || len(u.Users) < parts.Count {
				return fmt.Errorf("%s lists %d of %d unknown users", g.options.Name, len(u.Users), u.Seen)
			}
			for k := range users {
				if u := g.User(k.User); u.Seen == nil || u.User != k.User || u.Polygen != g.options.Name {
					return fmt.Errorf("%s knows nothing of %s: %+v", g.options.Name, k.User, u)
				}
			}
			if h := g.History(userOf(1, 0)); len(h.Limits) == 0 {
				return fmt.Errorf("%s has no history: %+v", g.options.Name, h)
			}
		}
		return nil
	})
	proctest.Eventually(t, "a live answer has all users", func() error {
		if _, err := a.use("one", users); err != nil {
			return err
		}
		select {
		case m := <-live:
			if l, ok := m.Value.(*api.Live); !ok || len(l.Users) < parts.Count || l.Totals.Users < parts.Count || l.User == nil || l.User.Seen == nil {
				return fmt.Errorf("live answer %s", m.JSON())
			}
			return nil
		case <-time.After(proctest.Patience):
			return errors.New("no answer")
		}
	})
	proctest.Eventually(t, "a stream tells what both decide", func() error {
		for k := range users {
			users[k] = 10
		}
		if _, err := a.use("one", users); err != nil {
			return err
		}
		told := map[*generator]bool{}
		return proctest.Poll(2*time.Second, func() error {
			select {
			case m := <-events:
				if e := m.Value.(*api.Event); e.Kind == api.ThrottleEvent {
					for _, g := range []*generator{one, two} {
						told[g] = told[g] || g.shards.HasUser(g.division.KnownParts(), e.User)
					}
				}
			default:
			}
			if len(told) < 2 || !told[one] || !told[two] {
				return errors.New("one polygen's throttles are missing")
			}
			return nil
		})
	})

	way.Hold()
	proctest.Eventually(t, "it says that something is missing", func() error {
		if said := one.UnknownUsers(api.ByRecent, 1).Degraded; !strings.HasPrefix(said, "polygen two does not answer") {
			return fmt.Errorf("degraded %q", said)
		}
		return nil
	})
	if n := testutil.ToFloat64(one.metrics.unanswered); n == 0 {
		t.Error("sluice_polygen_unanswered_total = 0")
	}
	one.awaitParts(t, parts.Count)
	proctest.Eventually(t, "once it has heard of all parts it says nothing of the kind", func() error {
		if said := one.UnknownUsers(api.ByRecent, 1).Degraded; said != "" {
			return fmt.Errorf("degraded %q", said)
		}
		return nil
	})
}

// A question about a user waits for the polygen that knows of the user, and for no other. What nobody has is said to be missing.
func TestWhoIsAsked(t *testing.T) {
	addr := redis(t)
	one, two := newGenerator(t, addr, "one", nil), newGenerator(t, addr, "two", nil)
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{one.hearOthers, one.readAnswers, two.hearOthers, two.answerOthers} {
		loops.Go(func() { _ = run(ctx) })
	}
	defer loops.Wait()
	defer cancel()
	now := time.Now()
	two.observe(now, bus.Usage{Instance: "i", Entries: []bus.UsageEntry{{Key: ratelimit.Key{Class: "GET", User: userOf(1, 0)}, Second: now.Unix(), Total: 3}}})
	one.decideAll(false)
	two.decideAll(false)
	one.division.TakeAnswer(now, parts.Answer{Held: parts.SetOf(0)})
	two.division.TakeAnswer(now, parts.Answer{Held: parts.All &^ parts.SetOf(0, 63)})
	const silent, anew = "polygen silent does not answer: what it knows is missing here", "polygens divide the users anew: what is known of some of them is missing here"
	for _, tt := range []struct {
		name, others string
		part         int
		seen         bool
		user, list   string // degraded
	}{
		{"its own user", "silent#1", 0, false, "", silent},
		{"a user of one that answers", "silent#1", 1, true, "", silent},
		{"a user of one that does not", "silent#1", 63, false, silent, silent},
		{"a user of nobody", "", 63, false, anew, anew},
	} {
		t.Run(tt.name, func(t *testing.T) {
			names := []string{two.candidate}
			if tt.others != "" {
				names = append(names, tt.others)
			}
			one.others.setNames(one.candidate, names)
			proctest.Eventually(t, "the answers", func() error { // the subscriptions begin, and a slow machine may need longer than an answer may take
				u, h, list := one.User(userOf(tt.part, 0)), one.History(userOf(tt.part, 0)), one.UnknownUsers(api.ByRecent, 10)
				if u.Degraded != tt.user || h.Degraded != tt.user || (u.Seen != nil) != tt.seen || list.Degraded != tt.list {
					return fmt.Errorf("degraded %q, %q, %q, seen %v, want %q, %q, %v", u.Degraded, h.Degraded, list.Degraded, u.Seen, tt.user, tt.list, tt.seen)
				}
				return nil
			})
		})
	}
	if got := missingWithout([]string{"a#1", "b#2"}); got != "polygens a, b do not answer: what they know is missing here" {
		t.Errorf("two are silent: %q", got)
	}
}

// From the moment in which parts are given back nobody is told of their users here, for another polygen tells of them. Histories of
// before say nothing when a part comes back.
func TestPartsThatAreGivenBack(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "one", nil)
	g.decideAll(true)
	now := time.Now()
	use := func() {
		usage := bus.Usage{Instance: "i"}
		for part := range parts.Count {
			usage.Entries = append(usage.Entries, bus.UsageEntry{Key: ratelimit.Key{Class: "GET", User: userOf(part, 0)}, Second: now.Unix(), Total: 3})
		}
		g.observe(now, usage)
	}
	use()
	g.HistoryOfKey(userOf(1, 0))
	g.HistoryOfKey(userOf(2, 0))
	looks := func(want int) {
		t.Helper()
		out := g.answerOther(question{Now: true, Tops: map[api.Sort]int{api.ByRate: api.MaxTop}, Unknown: api.ByRecent, UnknownN: api.MaxTop})
		if len(out.Tops[api.ByRate]) != want || out.Totals.Seen != want || out.Unknown.Seen != want || out.Parts.Len() != want {
			t.Errorf("it tells of %d users, %d in all, %d unknown, of %d parts, want %d",
				len(out.Tops[api.ByRate]), out.Totals.Seen, out.Unknown.Seen, out.Parts.Len(), want)
		}
	}
	looks(parts.Count)
	g.division.TakeAnswer(now, parts.Answer{Held: parts.SetOf(1)})
	looks(1)
	g.HistoryOfKey(userOf(2, 0)) // nobody else answers
	g.division.TakeAnswer(now, parts.Answer{Held: parts.SetOf(1, 2, 3)})
	use()
	looks(3)
	if n := g.dashboard.past.Len(); n != 1 {
		t.Errorf("%d histories, want that of the user who was here all the time", n)
	}
	// One that is asked about a user of another polygen has no history to remember.
	if _, stop, err := g.Watch(api.Question{Sort: api.ByRate, N: 1, User: userOf(5, 0)}); err != nil {
		t.Fatal(err)
	} else {
		defer stop()
	}
	g.dashboard.mu.Lock()
	defer g.dashboard.mu.Unlock()
	if n := g.dashboard.past.Len(); n != 3 {
		t.Errorf("%d histories, want those of the three users of its own", n)
	}
}

// Of three lists those with most are one list, and sums add up.
func TestMergeOverview(t *testing.T) {
	of := func(rates ...float64) (list []api.Summary) {
		for _, rate := range rates {
			list = append(list, api.Summary{Name: api.Name{Href: fmt.Sprint(rate)}, Rate: rate})
		}
		return list
	}
	o := view.Overview{Tops: map[api.Sort][]api.Summary{api.ByRate: of(9, 4)}, Limited: of(4), Totals: api.Totals{Users: 2, Rate: 13, Capacity: 10}}
	mergeOverview(&o, []*reply{
		{Totals: api.Totals{Users: 3, Rate: 15.5, Capacity: 10, Dropped: 1}, Tops: map[api.Sort][]api.Summary{api.ByRate: of(8, 7)}, Limited: of(8)},
		{Totals: api.Totals{Users: 1, Capacity: 10}, Tops: map[api.Sort][]api.Summary{api.ByRate: of(0.5)}},
	}, map[api.Sort]int{api.ByRate: 3})
	want := view.Overview{Tops: map[api.Sort][]api.Summary{api.ByRate: of(9, 8, 7)}, Limited: of(8, 4), Totals: api.Totals{Users: 6, Rate: 28.5, Capacity: 30, Dropped: 1}}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
}
