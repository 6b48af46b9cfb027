package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const ms = time.Millisecond

// losses checks whether Redis is lost, and how often it was.
func (r *rig) losses(lost bool, times float64) {
	r.t.Helper()
	gauge := map[bool]float64{true: 1}[lost]
	if got := r.exchange.links[0].isLost(); got != lost || testutil.ToFloat64(r.metrics.lost) != gauge {
		r.t.Errorf("at %s: lost = %v (metric %v), want %v", time.Now().Format("05.000"), got, testutil.ToFloat64(r.metrics.lost), lost)
	}
	if got := testutil.ToFloat64(r.metrics.losses); got != times {
		r.t.Errorf("at %s: losses = %v, want %v", time.Now().Format("05.000"), got, times)
	}
}

// wait lets the time pass, and all that it brings about.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestErrorLosesRedisUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(0, errAway)
		r.want("alice", "GET", true, 0) // the loss decides it: nobody waits for nothing
		r.losses(true, 1)
		r.want("alice", "GET", true, 0)
		r.want("alice", "GET", true, 0)
		r.want("alice", "GET", true, 0) // a cool user has the whole limit
		r.want("alice", "GET", false, 0)

		asked := r.pool.asked()
		wait(700*ms - ms) // a loss of a second would be long, see TestWhatHoldsWhileRedisIsLost
		if got := r.pool.asked() - asked; got < 4 || got > 7 {
			t.Errorf("a lost pool was asked %d times in 0.7 s, want about 7", got)
		}
		r.losses(true, 1)

		r.pool.set(0, nil)
		wait(lostRetry + flushEvery)
		r.losses(false, 1)

		wait(time.Second) // from the next second on, the others count again
		r.pool.fill(alice, 3)
		r.want("alice", "GET", true, 0)
		r.want("alice", "GET", false, 0)
	})
}

// What was admitted while Redis was away is reported when it is back.
func TestDebtsOutliveALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.pool.set(0, errAway)
		for range 3 {
			r.want("alice", "GET", true, 0)
		}
		wait(2 * flushEvery)
		r.losses(true, 1)
		if got := r.pool.total(alice); got != 0 {
			t.Errorf("counted while Redis is away = %d, want 0", got)
		}
		r.pool.set(0, nil)
		wait(lostRetry + flushEvery)
		r.losses(false, 1)
		if got := r.pool.total(alice); got != 3 {
			t.Errorf("counted in the end = %d, want 3", got)
		}
	})
}

func TestSlowAnswersLoseRedis(t *testing.T) {
	type step struct {
		roundTrip time.Duration
		lost      bool
		wait      time.Duration // that a request may wait afterwards
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"fast ones do not", []step{{1 * ms, false, minWait}, {1 * ms, false, minWait}}},
		{"requests wait five median round trips", []step{{3 * ms, false, 15 * ms}, {3 * ms, false, 15 * ms}}},
		{"and never longer than they may", []step{{10 * ms, false, 20 * ms}}},
		{"an answer just in time", []step{{20 * ms, false, 20 * ms}}},
		{"one slow one of many does not", []step{{1 * ms, false, minWait}, {1 * ms, false, minWait}, {90 * ms, false, minWait}}},
		{"slow ones do when they are the rule", []step{
			{1 * ms, false, minWait}, {1 * ms, false, minWait}, {1 * ms, false, minWait},
			{30 * ms, false, minWait}, {30 * ms, false, minWait}, {30 * ms, true, 20 * ms}}},
		{"a fast one finds it again", []step{{30 * ms, true, 20 * ms}, {20 * ms, false, 20 * ms}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			for i, s := range tt.steps {
				r.exchange.links[0].measure(s.roundTrip)
				if got, wait := r.exchange.links[0].isLost(), time.Duration(r.limiter.shards[0].reach.wait.Load()); got != s.lost || wait != s.wait {
					t.Errorf("after round trip %d of %v: lost %v, wait %v; want %v, %v", i+1, s.roundTrip, got, wait, s.lost, s.wait)
				}
			}
		})
	}
}

// There may be nothing to ask a lost Redis: heartbeats find it again.
func TestHeartbeatFindsRedis(t *testing.T) {
	for _, tt := range []struct {
		name      string
		roundTrip time.Duration
		lost      bool
	}{
		{"answered in time", 20 * ms, false},
		{"answered too late to be of use", 21 * ms, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.exchange.links[0].answered(tt.roundTrip)
			r.losses(false, 0)
			r.exchange.links[0].loseRedis(errAway)
			r.exchange.links[0].loseRedis(errOverdue) // the same loss
			r.losses(true, 1)
			r.exchange.links[0].answered(tt.roundTrip)
			r.losses(tt.lost, 1)
		})
	}
}

func TestWhatHoldsWhileRedisIsLost(t *testing.T) {
	for _, tt := range []struct {
		name    string
		onLoss  OnLoss
		holdFor time.Duration
		// of ten requests in the first second of the loss, and in a second after 3 s
		first, later int
	}{
		{"nothing set: hold", "", 0, 4, 4},
		{"hold", Hold, 0, 4, 4},
		{"hold for so long", Hold, 2 * time.Second, 4, 10},
		{"open", Open, 0, 10, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(o *Options) { o.OnLoss, o.HoldFor = tt.onLoss, tt.holdFor }).run()
				admitted := func() (n int) {
					for range 10 {
						if r.ask("alice", "GET").allowed {
							n++
						}
					}
					return n
				}
				r.pool.set(0, errAway)
				r.exchange.links[0].loseRedis(errAway)
				if got := admitted(); got != tt.first {
					t.Errorf("admitted at first = %d, want %d", got, tt.first)
				}
				wait(3 * time.Second)
				if got := admitted(); got != tt.later {
					t.Errorf("admitted later = %d, want %d", got, tt.later)
				}

				wait(time.Second)
				r.pool.set(0, nil)
				// The others may have taken it for gone: only the second heartbeat,
				// when they know better, finds Redis, and no answer to an ask does.
				wait(lostRetry + flushEvery)
				r.exchange.links[0].answered(ms)
				r.losses(true, 1)
				r.exchange.links[0].answered(ms)
				wait(time.Second)
				if got := admitted(); got != 4 {
					t.Errorf("admitted when Redis is back = %d, want 4", got)
				}
				r.losses(false, 1)
			})
		})
	}
}

func TestLastReportIsSentWhenItEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay time.Duration
		want  int
	}{
		{"to a Redis that answers", 100 * ms, 3},
		{"in vain to one that does not, but not for long", time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil).run()
				wait(time.Second)
				r.pool.set(tt.delay, nil)
				for range 3 {
					r.want("alice", "GET", true, 0)
				}
				second := time.Now().Unix()
				began := time.Now()
				r.stop()
				if took := time.Since(began); took > time.Second {
					t.Errorf("ending took %v, want a second at most", took)
				}
				if got := r.pool.totals[place{alice, second}]; got != tt.want {
					t.Errorf("reported = %d, want %d", got, tt.want)
				}
			})
		})
	}
}

func TestNothingToSayIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.want("staff", "GET", true, 0)
		wait(10 * time.Second)
		if got := r.pool.asked(); got != 0 {
			t.Errorf("the pool was asked %d times, want never", got)
		}
	})
}

// A watchdog that fires while nothing is under way would lose a Redis that works.
func TestAnsweredAskDoesNotComeDueLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.pool.set(20*ms, nil)
		r.want("alice", "GET", true, 0)
		wait(time.Second)
		r.losses(false, 0)
	})
}

// One batch at a time is under way: two could overtake each other.
func TestBatchesDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		under, most := 0, 0
		inner := r.exchange.take
		r.exchange.take = func(ctx context.Context, instance string, asks []ratelimit.Ask) (taken redisbus.Taken, err error) {
			under++
			most = max(most, under)
			taken, err = inner(ctx, instance, asks)
			under--
			return taken, err
		}
		r.run()
		r.pool.set(12*ms, nil)
		for range 20 {
			r.ask("wilma", "GET")
			time.Sleep(2 * ms)
		}
		r.stop()
		if most != 1 || r.pool.asked() < 3 {
			t.Errorf("batches under way at once = %d of %d, want 1 of several", most, r.pool.asked())
		}
	})
}

// A list without this instance says only that Redis was emptied: the others are
// still there. An older list than the last one says nothing, but for what Redis answers
// a heartbeat with: its clock may have been set back, or a failover may have brought
// another one.
func TestAgentIsNotAloneByMistake(t *testing.T) {
	type list struct {
		published bool
		at        int64 // ms
		instances []string
	}
	const hour = 3_600_000
	ab, abc := []string{"a", "b"}, []string{"a", "b", "c"}
	for _, tt := range []struct {
		name  string
		lists []list
		want  float64 // instances
	}{
		{"joined by another", []list{{false, 0, []string{"a"}}, {false, 1000, ab}}, 2},
		{"joined by another, as published", []list{{false, 0, []string{"a"}}, {true, 1000, ab}}, 2},
		{"the other left", []list{{false, 0, ab}, {false, 1000, []string{"a"}}}, 1},
		{"a list without oneself", []list{{false, 0, ab}, {false, 1000, []string{"b"}}}, 2},
		{"a published list that comes late", []list{{false, 1000, ab}, {true, 0, []string{"a"}}}, 2},
		{"an answer that a published list has overtaken", []list{{false, 0, []string{"a"}}, {true, 100, ab}, {false, 99, []string{"a"}}}, 2},
		{"a published list from the future", []list{{false, 0, ab}, {true, hour, []string{"a"}}}, 2},
		{"a published list after one from the future", []list{{false, 0, []string{"a"}}, {true, hour, []string{"a"}}, {true, 1, ab}}, 2},
		{"an answer after one from the future", []list{{false, hour, []string{"a"}}, {false, 1000, ab}}, 2},
		{"a failover to a clock that is behind", []list{{false, hour, ab}, {false, 0, ab}, {true, 250, abc}}, 3},
		{"a failover to a clock that is a second behind", []list{{false, 1000, ab}, {false, 0, abc}}, 3},
		{"a failover to a clock that is ahead", []list{{false, 0, ab}, {true, hour, abc}, {false, hour + 1, abc}}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			for _, list := range tt.lists {
				registry := redisbus.Registry{Instances: list.instances, Now: time.UnixMilli(1_700_000_000_000 + list.at)}
				if list.published {
					r.announced(registry)
				} else {
					r.joined(registry)
				}
			}
			if got := testutil.ToFloat64(r.metrics.instances); got != tt.want {
				t.Errorf("instances = %v, want %v", got, tt.want)
			}
		})
	}
}

// Each of the two lanes to Redis can lose and find it, for both.
func TestLossByEitherLane(t *testing.T) {
	away, overdue := answering{err: errAway}, answering{delay: 10 * time.Second}
	for _, tt := range []struct {
		name          string
		tokens, slots answering
		first         string // who asks
		took          time.Duration
	}{
		{"no tokens", away, answering{}, "rate", 0},
		{"no slots", answering{}, away, "alice", 0},
		{"neither, one after the other", away, away, "both", 0},
		{"tokens are overdue", overdue, answering{}, "rate", 20 * ms},
		{"slots are overdue", answering{}, overdue, "alice", 20 * ms},
		{"both are", overdue, overdue, "alice", 20 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
				r.pool.setTokens(tt.tokens.delay, tt.tokens.err)
				r.pool.setSlots(tt.slots.delay, tt.slots.err)
				r.want(tt.first, "GET", true, tt.took)
				if tt.took > 0 {
					wait(r.options.lostAfter())
				}
				r.losses(true, 1)

				// Neither core waits for the pool, and each has the whole limit. (Where one
				// of the lanes works, its next answer would find Redis.)
				if tt.tokens != (answering{}) && tt.slots != (answering{}) {
					for range 4 {
						r.want("rita", "GET", true, 0)
					}
					r.want("rita", "GET", false, 0)
					for range 2 {
						r.want("bob", "GET", true, 0)
					}
					r.want("bob", "GET", false, 0)
					r.losses(true, 1)
				}

				r.pool.set(ms, nil)
				if tt.took > 0 {
					wait(30 * time.Second) // until the overdue answers are there
					r.exchange.links[0].answered(ms)
					r.exchange.links[0].answered(ms)
				}
				wait(lostRetry + 2*flushEvery)
				r.losses(false, 1)
				tokens, slots := r.pool.asked(), r.pool.askedForSlots()
				wait(time.Second)
				r.ask("both", "GET")
				if r.pool.asked() == tokens || r.pool.askedForSlots() == slots {
					t.Error("the pools were not asked when Redis was back")
				}
			})
		})
	}
}

// Requests in progress are reported when the agent ends, for they go on.
func TestLastSlotsAreReportedWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(ms, nil)
		r.want("wide", "GET", true, ms)
		r.progress("wide", 7, 7)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("ending took %v, want a second at most", took)
		}
		if got := r.pool.held("wide", "a"); got != 7 {
			t.Errorf("slots held in the end = %d, want 7", got)
		}
	})
}

// While nothing is limited, the agent wakes seldom; the first question ends that at once.
func TestLanesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		flushes := func() (n uint64) {
			families, err := r.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "sluice_flush_seconds" {
					for _, m := range f.GetMetric() {
						n += m.GetHistogram().GetSampleCount()
					}
				}
			}
			return n
		}
		wait(time.Second)
		before := flushes()
		wait(time.Second)
		if n := flushes() - before; n != 4*4 {
			t.Errorf("%d flushes in a second without requests, want 4 of each lane", n)
		}
		wait(longestRest / 2)
		r.ask("alice", "GET")
		before = flushes()
		wait(flushEvery)
		if flushes() == before {
			t.Errorf("no flush in %v after a request", flushEvery)
		}
		r.exchange.links[0].loseRedis(errSlow)
		before = flushes()
		wait(10 * flushEvery)
		if n := flushes() - before; n < 2*9 {
			t.Errorf("%d flushes in %v without Redis, want 9 of both lanes to it", n, 10*flushEvery)
		}
	})
}
