package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func newTestMoved() *movedBytes {
	var counted [2]prometheus.Counter
	for d := range counted {
		counted[d] = prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total"})
	}
	m := newMovedBytes(counted)
	return &m
}

func TestMovedBytes(t *testing.T) {
	type step struct {
		user     string
		down, up int64
	}
	for _, tt := range []struct {
		name     string
		steps    []step
		down, up float64
	}{
		{"the first that is heard may be old", []step{{"a", 100, 10}}, 0, 0},
		{"what is added later counts", []step{{"a", 100, 10}, {"a", 150, 10}, {"a", 150, 17}}, 50, 7},
		{"each user's apart", []step{{"a", 100, 0}, {"b", 5, 0}, {"b", 6, 0}, {"a", 110, 0}}, 11, 0},
		{"HAProxy begins anew", []step{{"a", 100, 10}, {"a", 30, 12}}, 30, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newTestMoved()
			for _, s := range tt.steps {
				m.countTable(s.user, bandwidth.Asked, [2]int64{bandwidth.Down: s.down, bandwidth.Up: s.up})
			}
			if down, up := testutil.ToFloat64(m.counted[bandwidth.Down]), testutil.ToFloat64(m.counted[bandwidth.Up]); down != tt.down || up != tt.up {
				t.Errorf("after %v: %v down and %v up, want %v and %v", tt.steps, down, up, tt.down, tt.up)
			}
		})
	}
}

// HAProxy's table of credit counts all bytes of a user. What neither of the other tables has
// counted is of requests by credit that are not held.
func TestMovedBytesByCredit(t *testing.T) {
	const asked, held, credit = "asked", "held", "credit"
	type step struct {
		table string
		down  int64
		rate  int64 // of credit
	}
	for _, tt := range []struct {
		name  string
		steps []step // a second apart
		total float64
	}{
		{"the first that is read may be old", []step{{credit, 500, 0}}, 0},
		{"what no other table counts", []step{{credit, 500, 0}, {credit, 800, 300}, {credit, 800, 0}}, 300},
		{"what other tables count", []step{
			{asked, 7, 0}, {held, 9, 0}, {credit, 500, 0}, {asked, 107, 0}, {held, 209, 0}, {credit, 800, 0}, {credit, 850, 50},
		}, 350},
		{"other tables that are late", []step{
			{held, 0, 0}, {credit, 500, 0}, {credit, 600, 100}, {held, 90, 0}, {credit, 690, 0}, {credit, 700, 10},
		}, 200},
		{"other tables that are early", []step{
			{held, 0, 0}, {credit, 500, 0}, {held, 90, 0}, {credit, 500, 0}, {credit, 590, 0}, {credit, 600, 10},
		}, 100},
		{"HAProxy begins anew", []step{{credit, 500, 0}, {credit, 30, 0}, {credit, 70, 40}}, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, now := newTestMoved(), time.Unix(1000, 0)
			last := now
			for i, s := range tt.steps {
				now = now.Add(time.Second)
				bytes := [2]int64{bandwidth.Down: s.down}
				switch s.table {
				case asked:
					m.countTable("alice", bandwidth.Asked, bytes)
				case held:
					m.countTable("alice", bandwidth.Held, bytes)
				default:
					if got := m.countCredit(now, "alice", bytes); got != [2]int64{bandwidth.Down: s.rate} {
						t.Errorf("step %d: %d bytes read %v after the last time are %v per second, want %d", i, s.down, now.Sub(last), got, s.rate)
					}
					last = now
				}
			}
			if got := testutil.ToFloat64(m.counted[bandwidth.Down]); got != tt.total {
				t.Errorf("%v bytes are counted, want %v", got, tt.total)
			}
		})
	}
}

func TestMovedBytesForgets(t *testing.T) {
	m, start := newTestMoved(), time.Unix(1000, 0)
	m.forget(start)
	m.countTable("alice", bandwidth.Asked, [2]int64{100})
	m.countTable("bob", bandwidth.Asked, [2]int64{100})
	m.forget(start.Add(movedFor - 1))
	m.forget(start.Add(movedFor))
	m.countTable("bob", bandwidth.Asked, [2]int64{107}) // is known
	m.forget(start.Add(2 * movedFor))
	m.countTable("alice", bandwidth.Asked, [2]int64{150}) // is not
	m.countTable("bob", bandwidth.Asked, [2]int64{108})
	if got := testutil.ToFloat64(m.counted[bandwidth.Down]); got != 8 {
		t.Errorf("counted %v bytes, want bob's 8", got)
	}
	if m.forget(start); len(m.young) != 0 || len(m.old) != 2 {
		t.Errorf("after the clock was set back %d and %d users are remembered, want 0 and 2", len(m.young), len(m.old))
	}
}

func TestMovedBytesIsBounded(t *testing.T) {
	m, start := newTestMoved(), time.Unix(1000, 0)
	for i := range maxMoved - 1 {
		m.countTable(fmt.Sprint(i), bandwidth.Asked, [2]int64{})
	}
	m.forget(start)
	for _, user := range []string{"7", "new", "one more"} {
		m.countTable(user, bandwidth.Asked, [2]int64{})
	}
	if n := len(m.young) + len(m.old); n != maxMoved || len(m.young) != 2 {
		t.Errorf("%d users are remembered, %d of them young, want %d and 2", n, len(m.young), maxMoved)
	}
}

// What HAProxy and polygen tell shows in the metrics.
func TestMetricsOfWhatIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		for _, bytes := range []uint64{100, 350} {
			r.learnProgress(peers.Update{Table: activeTable, Key: "alice", Values: peers.Values{peers.BytesOutCnt: bytes, peers.BytesInCnt: bytes / 50, peers.GPT0: bytes / 100}})
		}
		for d, want := range [2]float64{bandwidth.Down: 250, bandwidth.Up: 5 + 2*earlyBytes} {
			if got := testutil.ToFloat64(r.metrics.bytes[d]); got != want {
				t.Errorf("bytes %v = %v, want %v", bandwidth.Direction(d), got, want)
			}
		}
		r.forget()
		wait(movedFor)
		if r.forget(); len(r.limiter.bodies.moved.young)+len(r.limiter.bodies.moved.old) != 0 {
			t.Errorf("users are remembered whom HAProxy has not told of for %v", 2*movedFor)
		}
		r.ask("alice", "GET")
		if got := testutil.ToFloat64(r.metrics.byTier.counters.WithLabelValues(r.limiter.inForce.set.Load().User("alice").Tier, "allowed", "")); got != 1 {
			t.Errorf("allowed requests of alice's tier = %v, want 1", got)
		}

		decided := r.clock.Now()
		wait(30 * ms)
		r.applyPolicies([]redisbus.Message{redisbus.Hot{Key: alice, Until: decided.Add(hotFor), Instances: 2}})
		if got := testutil.ToFloat64(r.metrics.policyAt); got != float64(time.Now().UnixNano())/1e9 {
			t.Errorf("last policy at %v, want now", got)
		}
		sum, count := histogram(t, r.metrics.policyDelay)
		if count != 1 || sum < .0299 || sum > .0301 {
			t.Errorf("delays of policies: %d, together %v s, want 1 of 0.03 s", count, sum)
		}
		if _, count := histogram(t, r.metrics.flush.WithLabelValues("bandwidth").(prometheus.Histogram)); count < 5 {
			t.Errorf("%d flushes were measured in 30 ms, want one every 5 ms", count)
		}
		r.stop()
	})
}

func histogram(t *testing.T, h prometheus.Histogram) (sum float64, count uint64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(h)
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("Gather() = %v, %v", families, err)
	}
	v := families[0].Metric[0].GetHistogram()
	return v.GetSampleSum(), v.GetSampleCount()
}

// hotFor is what pkg/ratelimit makes of it.
func TestHotFor(t *testing.T) {
	now := time.Unix(1000, 0)
	w := ratelimit.NewWatch(false)
	w.Observe(now, "a", ratelimit.Key{Class: "GET", User: "alice"}, now.Unix(), 10, limits.Rate{Max: 10})
	hints, _ := w.Decisions()
	if len(hints) != 1 || !hints[0].Until.Equal(now.Add(hotFor)) {
		t.Errorf("Decisions() = %v, want one hint until %v", hints, now.Add(hotFor))
	}
}
