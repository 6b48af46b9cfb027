package polygen

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// The polygen that leads adds up each second of Redis' buckets once, with reports that are seconds late.
func TestClusterEventsAreCounted(t *testing.T) {
	addr := redis(t)
	g := newGenerator(t, addr, "one", nil).run(t).awaitLead(t)
	follows := newGenerator(t, addr, "two", nil).run(t)
	b := open(t, addr, 1)
	sent := 0.0
	testkit.Eventually(t, "what is told of seconds is counted", func() error {
		events := redisbus.Events{Second: g.lastTold() - 1, Tiers: []redisbus.EventsOf{{Name: "free", Classes: []redisbus.StartedClass{{Class: "GET", Starts: 2}, {Class: "LIST", Starts: 1}}, Ends: 3}}}
		testkit.Must(t, b.AddEvents(t.Context(), fmt.Sprint("instance", sent), events))
		sent++
		time.Sleep(time.Second)
		if testutil.ToFloat64(g.metrics.clusterEnded.WithLabelValues("free")) == 0 {
			return errors.New("nothing is counted")
		}
		return nil
	})
	follows.stop()
	testkit.Must(t, follows.wait(t))
	g.stop()
	testkit.Must(t, g.wait(t))
	ended := testutil.ToFloat64(g.metrics.clusterEnded.WithLabelValues("free"))
	if ended > 3*sent || testutil.ToFloat64(g.metrics.clusterStarted.WithLabelValues("free", "GET")) != 2*ended/3 ||
		testutil.ToFloat64(g.metrics.clusterStarted.WithLabelValues("free", "LIST")) != ended/3 {
		t.Errorf("%v ended of %v, started: %v", ended, 3*sent, testutil.ToFloat64(g.metrics.clusterStarted.WithLabelValues("free", "GET")))
	}
	if n := testutil.CollectAndCount(follows.metrics.clusterEnded); n != 0 {
		t.Errorf("the polygen that follows has %d series, want none", n)
	}
}

func TestClusterEventsOfManyTiers(t *testing.T) {
	m, tiers := newMetrics(prometheus.NewRegistry()), map[string]bool{}
	for i := range maxCountedTiers + 5 {
		m.countEvents(tiers, redisbus.EventsOf{Name: string(rune('a' + i)), Ends: 1})
	}
	if n := testutil.CollectAndCount(m.clusterEnded); n != maxCountedTiers+1 {
		t.Errorf("%d series, want %d", n, maxCountedTiers+1)
	}
	if got := testutil.ToFloat64(m.clusterEnded.WithLabelValues(otherTier)); got != 5 {
		t.Errorf("tier other has %v ends, want 5", got)
	}
}

func TestEventsOfAUser(t *testing.T) {
	addr := redis(t)
	g := newGenerator(t, addr, "one", nil)
	set := parse(t, userMetricsLimits)
	g.set.Store(set)
	b := open(t, addr, 1)
	second := g.lastTold()
	of := redisbus.EventsOf{Name: "alice", Classes: []redisbus.StartedClass{{Class: "PUT", Starts: 2}, {Class: "GET", Starts: 1}}, Ends: 4}
	testkit.Must(t, b.AddEvents(t.Context(), "one", redisbus.Events{Second: second, Users: []redisbus.EventsOf{of}}))
	got, err := g.Events(t.Context(), api.Who{User: "alice"})
	testkit.Must(t, err)
	list := func(n int64) []int64 {
		values := make([]int64, eventSeconds)
		values[second-got.Begin] = n
		return values
	}
	want := api.Events{
		From: got.From, Name: api.Name{User: "alice", Href: "/api/v1/users/alice"}, Begin: got.Begin, Step: 1,
		Started: []api.ClassEvents{{Class: "GET", Requests: list(1)}, {Class: "PUT", Requests: list(2)}}, Refused: []api.ClassEvents{}, Ended: list(4),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if got, err := g.Events(t.Context(), api.Who{User: "bob"}); err != nil || len(got.Started) > 0 || len(got.Ended) != eventSeconds {
		t.Errorf("Events of another user = %+v, %v", got, err)
	}
	gone := newGenerator(t, "127.0.0.1:1", "one", nil)
	gone.set.Store(set)
	if _, err := gone.Events(t.Context(), api.Who{User: "alice"}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("Events without Redis = %v, want %v", err, api.ErrUnavailable)
	}
}
