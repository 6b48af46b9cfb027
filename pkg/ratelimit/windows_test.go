package ratelimit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// rig is one agent and its pools, in a time of their own.
type rig struct {
	*ratelimit.Agent
	pools
	at    time.Time
	rates []limits.Rate

	asks    []ratelimit.Ask
	natives []ratelimit.TableEntry
}

// h0 is the beginning of an hour.
var h0 = time.Unix(1_699_999_200, 0)

func newRig(instances int, rates []limits.Rate) *rig {
	r := &rig{pools: newPools(), at: h0, rates: rates}
	r.restart(instances)
	return r
}

// restart replaces the agent by one that knows nothing.
func (r *rig) restart(instances int) {
	r.Agent = ratelimit.NewAgent(ratelimit.Config{})
	r.Cluster(r.at.Add(-2*time.Second), instances, 0)
	r.Cluster(r.at.Add(-2*time.Second), instances, 0)
}

// pass lets time pass, in which the agent does what is due.
func (r *rig) pass(d time.Duration) {
	for end := r.at.Add(d); r.at.Before(end); {
		r.at = r.at.Add(5 * time.Millisecond)
		r.Tick(r.at)
		r.talk()
	}
}

// talk is an exchange with the pools, at once.
func (r *rig) talk() {
	for {
		asks := exchangeWith(r.Agent, r.at, r.pools)
		r.asks = append(r.asks, asks...)
		r.natives = append(r.natives, r.TakeOutput().TableEntries...)
		if len(asks) == 0 {
			return
		}
	}
}

// request is the verdict of one.
func (r *rig) request() ratelimit.Verdict {
	v, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
	if w == nil {
		r.talk()
		return v
	}
	r.talk()
	return r.Timeout(r.at, w) // decided already, if the pools were asked
}

// admitted is how many of n requests are, one every few milliseconds.
func (r *rig) admitted(n int, every time.Duration) (admitted int) {
	for range n {
		if r.request().Allowed {
			admitted++
		}
		r.pass(every)
	}
	return admitted
}

func (r *rig) total(w limits.Window) int {
	return r.totals[poolKey{startOf(limits.Rate{Window: w, Calendar: berlin}, r.at.Unix()), ratelimit.Key{Class: "GET", User: "u", Window: w}}]
}

// told are the natives since the last call.
func (r *rig) told() (natives []ratelimit.TableEntry) {
	natives, r.natives = r.natives, nil
	return natives
}

var minute = ratelimit.Key{Class: "GET", User: "u", Window: limits.Minute}

func TestAgentLongWindows(t *testing.T) {
	t.Run("an agent that is alone leases them, and forgets nothing over a restart", func(t *testing.T) {
		r := newRig(1, per(0, 0, 10, 0))
		n := r.admitted(4, 100*time.Millisecond)
		if r.pass(5 * time.Second); r.KnownUsers() != 0 || r.total(limits.Minute) != 4 {
			t.Errorf("5 s later %d users are known and %d tokens taken, want 0 and 4", r.KnownUsers(), r.total(limits.Minute))
		}
		n += r.admitted(3, 100*time.Millisecond)
		r.Leave()
		r.talk()
		if got := r.total(limits.Minute); got != 7 {
			t.Errorf("tokens taken when it has left = %d, want 7", got)
		}
		r.restart(1)
		if n += r.admitted(10, 100*time.Millisecond); n != 10 {
			t.Errorf("admitted %d in the minute, want 10", n)
		}
		r.pass(time.Minute - r.at.Sub(h0))
		if n := r.admitted(20, 100*time.Millisecond); n != 10 {
			t.Errorf("admitted %d in the next minute, want 10", n)
		}
	})
	t.Run("a second beside them is counted as ever", func(t *testing.T) {
		r := newRig(1, per(3, 0, 7, 0))
		for sec, want := range []int{3, 3, 1, 0} {
			if n := r.admitted(10, 100*time.Millisecond); n != want {
				t.Errorf("second %d: admitted %d, want %d", sec, n, want)
			}
		}
		for _, ask := range r.asks {
			if ask.Key.Window == limits.Second && ask.Need+ask.Ahead > 0 {
				t.Fatalf("asked for tokens of a second: %+v", ask)
			}
		}
	})
	t.Run("the next one is asked for ahead of its time", func(t *testing.T) {
		r := newRig(2, per(0, 0, 1000, 0))
		r.at = h0.Add(59 * time.Second)
		r.admitted(100, 10*time.Millisecond)
		if r.pass(h0.Add(time.Minute).Sub(r.at)); r.at != h0.Add(time.Minute) {
			t.Fatalf("it is %v, want the minute's beginning", r.at)
		}
		if v, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit); w != nil || !v.Allowed || v.Second != h0.Unix()+60 {
			t.Errorf("the first request: %+v, waiting %v, want admitted at once", v, w)
		}
	})
	t.Run("what a second's limit refuses makes a minute's lease no larger", func(t *testing.T) {
		r := newRig(2, per(5, 0, 1000, 0))
		admitted, held := 0, 0
		for range 3000 {
			if r.request().Allowed {
				admitted++
			}
			r.at = r.at.Add(time.Millisecond)
			r.Tick(r.at)
			r.talk()
			held = max(held, r.total(limits.Minute)-admitted)
		}
		if admitted != 15 || held > 10 {
			t.Errorf("admitted %d with up to %d tokens of the minute in hand, want 15 and no more than 10", admitted, held)
		}
	})
	t.Run("the limit that refuses longest is the one that is named", func(t *testing.T) {
		r := newRig(1, per(2, 0, 3, 5))
		want := func(name string, window limits.Window, n int) {
			t.Helper()
			v := r.request()
			begin := startOf(limits.Rate{Window: window}, r.at.Unix())
			if v.Allowed || v.Limit != (limits.Rate{Class: "GET", Window: window, Max: n}) || v.Second != begin || v.End() != begin+window.Seconds() {
				t.Errorf("%s: %+v until %d, want refused by %d a %v from %d on", name, v, v.End(), n, window, begin)
			}
		}
		r.admitted(2, time.Millisecond)
		want("the second is spent", limits.Second, 2)
		r.pass(time.Second)
		r.admitted(1, time.Millisecond)
		want("the minute is", limits.Minute, 3)
		r.admitted(5, time.Millisecond)
		want("both are, the minute for longer", limits.Minute, 3)
		r.pass(time.Minute)
		r.admitted(2, time.Millisecond)
		want("all of them", limits.Hour, 5)
	})
}

// TestAgentCalendar spends days and months, among them days of 23 and 25 hours, and begins the next ones.
func TestAgentCalendar(t *testing.T) {
	for _, tt := range []struct {
		name      string
		calendar  *limits.Calendar
		window    limits.Window
		at        string // a time of the first window, of UTC
		end, next string // the ends of this window and of the next
	}{
		{"days of UTC", nil, limits.Day, "2026-03-01 12:00", "2026-03-02 00:00", "2026-03-03 00:00"},
		{"months of UTC", nil, limits.Month, "2026-02-10 12:00", "2026-03-01 00:00", "2026-04-01 00:00"},
		{"a day of 23 hours, and one of 24", berlin, limits.Day, "2026-03-28 23:00", "2026-03-29 22:00", "2026-03-30 22:00"},
		{"a day of 25 hours", berlin, limits.Day, "2026-10-24 22:30", "2026-10-25 23:00", "2026-10-26 23:00"},
		{"a month in which clocks are set forward", berlin, limits.Month, "2026-03-20 12:00", "2026-04-14 22:00", "2026-05-14 22:00"},
	} {
		for _, agents := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d agents", tt.name, agents), func(t *testing.T) {
				at := func(s string) time.Time {
					when, err := time.Parse("2006-01-02 15:04", s)
					if err != nil {
						t.Fatal(err)
					}
					return when
				}
				r := newRig(agents, []limits.Rate{{Class: "GET", Window: tt.window, Max: 5, Calendar: tt.calendar}})
				jump := func(when time.Time) { // without the ticks between
					r.at = when
					r.Tick(r.at)
					r.talk()
				}
				spend := func(end time.Time) {
					t.Helper()
					if n := r.admitted(9, 5*time.Millisecond); n != 5 {
						t.Errorf("admitted %d, want 5", n)
					}
					if told := r.told(); len(told) != 1 || told[0].End != end.Unix() {
						t.Errorf("HAProxy was told %+v, want to refuse until %d", told, end.Unix())
					}
					for _, when := range []time.Time{r.at.Add(time.Minute), end.Add(-time.Second)} {
						jump(when)
						if v := r.request(); v.Allowed || v.End() != end.Unix() {
							t.Errorf("at %v: %+v until %d, want refused until %d", when.UTC(), v, v.End(), end.Unix())
						}
					}
					r.told()
				}
				jump(at(tt.at))
				r.restart(agents)
				spend(at(tt.end))
				jump(at(tt.end))
				spend(at(tt.next))
			})
		}
	}
	t.Run("another calendar", func(t *testing.T) {
		r := newRig(2, per(0, 0, 0, 0, 10))
		r.admitted(4, time.Millisecond)
		r.rates[0].Calendar = nil
		// The day began at another time, so this is another pool.
		if n := r.admitted(20, time.Millisecond); n != 10 {
			t.Errorf("admitted %d by the new calendar, want 10", n)
		}
		if n := r.total(limits.Day); n != 4 {
			t.Errorf("the old day has %d, want the 4 that were admitted in it", n)
		}
	})
}

// TestAgentLeavesNothingBehind: whatever it did, an agent that has left has taken
// from the pools what it admitted.
func TestAgentLeavesNothingBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 300).Draw(t, "minute")
		r := newRig(rapid.IntRange(1, 4).Draw(t, "agents"), per(0, 0, limit, 0))
		r.at = r.at.Add(30 * time.Second)
		n := 0
		for range rapid.IntRange(0, 8).Draw(t, "bursts") {
			n += r.admitted(rapid.IntRange(1, 60).Draw(t, "requests"), time.Duration(rapid.IntRange(0, 9).Draw(t, "every ms"))*time.Millisecond)
			r.pass(time.Duration(rapid.SampledFrom([]int{0, 60, 1000, 3500}).Draw(t, "pause ms")) * time.Millisecond)
		}
		if r.at.Unix() >= h0.Unix()+60 {
			return
		}
		r.Leave()
		for range 3 {
			r.talk()
			r.pass(10 * time.Millisecond)
		}
		if got := r.total(limits.Minute); got != n {
			t.Fatalf("taken from the pool: %d, want the %d that were admitted", got, n)
		}
	})
}

// TestAgentLongNative follows what HAProxy is told of a spent minute.
func TestAgentLongNative(t *testing.T) {
	refuse := ratelimit.TableEntry{Key: minute, End: h0.Unix() + 60, Limit: 5}
	lift := ratelimit.TableEntry{Key: minute, End: h0.Unix() + 60, Limit: 5, Lift: true}
	spent := func() *rig {
		r := newRig(2, per(0, 0, 5, 0))
		r.admitted(6, time.Millisecond)
		return r
	}
	want := func(t *testing.T, what string, got []ratelimit.TableEntry, want ...ratelimit.TableEntry) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: told %+v, want %+v", what, got, want)
		}
	}
	t.Run("refuse, until the minute ends, without polygen", func(t *testing.T) {
		r := spent()
		want(t, "spent", r.told(), refuse)
	})
	t.Run("again when requests come through, but not for each of them", func(t *testing.T) {
		r := spent()
		r.told()
		r.pass(900 * time.Millisecond)
		r.request()
		want(t, "within a second", r.told())
		r.pass(4200 * time.Millisecond)
		for range 10 {
			if v := r.request(); v.Allowed || v.Limit != r.rates[0] {
				t.Errorf("verdict = %+v, want refused", v)
			}
		}
		want(t, "when HAProxy has forgotten", r.told(), refuse)
	})
	t.Run("a user is not forgotten as long as HAProxy may refuse them, and then is", func(t *testing.T) {
		r := spent()
		r.pass(5900 * time.Millisecond)
		if r.KnownUsers() != 1 {
			t.Errorf("users known after 5.9 s = %d, want 1", r.KnownUsers())
		}
		if r.pass(200 * time.Millisecond); r.KnownUsers() != 0 {
			t.Errorf("users known after 6.1 s = %d, want 0", r.KnownUsers())
		}
		r.told()
		r.request()
		want(t, "when they come back", r.told(), refuse)
	})
	t.Run("tokens that come back are found within a second", func(t *testing.T) {
		r := spent()
		r.pass(4 * time.Second)
		r.told()
		r.totals[poolKey{h0.Unix(), minute}] = 3
		r.pass(time.Second + 10*time.Millisecond)
		want(t, "a second later", r.told(), lift)
		if n := r.admitted(6, time.Millisecond); n != 2 {
			t.Errorf("admitted %d, want the 2 that came back", n)
		}
		want(t, "and then", r.told(), refuse)
	})
	t.Run("the pool is asked about once a second", func(t *testing.T) {
		r := spent()
		r.pass(2 * time.Second)
		r.asks = nil
		r.pass(3 * time.Second)
		if n := len(r.asks); n < 2 || n > 3 {
			t.Errorf("asked %d times in 3 s, want once a second", n)
		}
	})
	t.Run("not of a limit that is not enforced", func(t *testing.T) {
		r := newRig(2, per(0, 0, 5, 0))
		r.rates[0].Mode = limits.DryRun
		if n := r.admitted(9, time.Millisecond); n != 5 {
			t.Errorf("admitted %d, want 5", n)
		}
		r.Throttle(r.at, minute, h0.Unix(), 5)
		r.request()
		r.talk()
		want(t, "spent", r.told())
	})
	t.Run("at once on polygen's word, without a token in hand", func(t *testing.T) {
		r := newRig(2, per(0, 0, 5, 0))
		r.at = h0.Add(7 * time.Second)
		_, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
		r.Throttle(r.at, minute, h0.Unix(), 5)
		out := r.TakeOutput()
		want(t, "spent", out.TableEntries, refuse)
		if len(out.Decided) != 1 || out.Decided[0] != w || w.Verdict.Allowed {
			t.Errorf("decided %v with %+v, want the one that waited, refused", out.Decided, w.Verdict)
		}
	})
	t.Run("polygen's word is for users who are known", func(t *testing.T) {
		r := newRig(2, per(0, 0, 5, 0))
		r.Throttle(r.at, minute, h0.Unix(), 5)
		r.talk()
		want(t, "of a stranger", r.told())
		r.request()
		r.Throttle(r.at, minute, h0.Unix()+1, 5)
		r.Throttle(r.at, minute, h0.Unix()-60, 5)
		r.talk()
		want(t, "of another minute", r.told())
	})
	t.Run("nor lasts longer than the limit", func(t *testing.T) {
		r := spent()
		r.told()
		r.pass(2 * time.Second)
		r.rates = per(0, 0, 8, 0)
		if n := r.admitted(9, 5*time.Millisecond); n != 3 {
			t.Errorf("admitted %d when the limit was raised by 3, want 3", n)
		}
	})
}

// TestAgentTimeoutOfLongWindows: a stall costs a user who is far below the limit
// nothing, and admits a second's part of it, not a minute's.
func TestAgentTimeoutOfLongWindows(t *testing.T) {
	for _, tt := range []struct{ limit, agents, want int }{{600, 2, 5}, {60, 1, 1}, {30, 2, 1}, {3, 4, 1}} {
		r := newRig(tt.agents, per(0, 0, tt.limit, 0))
		n := 0
		for range 20 {
			v, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
			if w != nil {
				v = r.Timeout(r.at, w)
			}
			if v.Allowed {
				n++
			}
		}
		if n != tt.want {
			t.Errorf("%d a minute, %d agents: admitted %d without an answer, want %d", tt.limit, tt.agents, n, tt.want)
		}
		for range 5 {
			r.talk()
		}
		if n > 0 && r.total(limits.Minute) < n {
			t.Errorf("the pool has heard of %d, want %d", r.total(limits.Minute), n)
		}
	}
}

// TestAgentBurst: an agent that is alone, or has just been restarted, admits what
// was saved, once.
func TestAgentBurst(t *testing.T) {
	r := newRig(1, per(10, 25, 0, 0))
	for sec, s := range []struct{ offer, want int }{{50, 35}, {50, 10}, {4, 4}, {50, 16}, {0, 0}, {0, 0}, {0, 0}, {50, 35}, {50, 10}} {
		if sec == 4 {
			r.Leave()
			r.talk()
			r.restart(1)
		}
		n := 0
		for range s.offer {
			if r.request().Allowed {
				n++
			}
			r.at = r.at.Add(time.Millisecond)
		}
		if n != s.want {
			t.Errorf("second %d: admitted %d of %d, want %d", sec, n, s.offer, s.want)
		}
		r.pass(h0.Add(time.Duration(sec+1) * time.Second).Add(20 * time.Millisecond).Sub(r.at))
	}
}

func TestAgentBurstAsks(t *testing.T) {
	key := ratelimit.Key{Class: "GET", User: "u"}
	ask := func(batch uint64, second int64) ratelimit.Ask {
		return ratelimit.Ask{Key: key, Seq: batch, WindowStart: h0.Unix() + second, Limit: 10, Burst: 25}
	}
	t.Run("what is left of a second goes back before the next is asked for", func(t *testing.T) {
		r := newRig(2, per(10, 25, 0, 0))
		r.at = h0.Add(900 * time.Millisecond)
		r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
		r.Reply(r.at, r.Collect(r.at, false, nil)[0], ratelimit.Grant{Tokens: 4, Total: 4, Limit: 35})
		r.Start(h0.Add(time.Second), "u", r.rates, ratelimit.NoCredit)
		back := ask(2, 0)
		back.Back, back.Instances = 3, 2
		asks := r.Collect(h0.Add(time.Second), false, nil)
		if len(asks) != 2 || asks[0] != back || asks[1].WindowStart != h0.Unix()+1 || asks[1].Need != 1 {
			t.Errorf("asks %+v, want %+v and one that needs a token of the next second", asks, back)
		}
		r.Reply(h0.Add(2*time.Second), asks[1], ratelimit.Grant{Tokens: 2, Total: 2, Limit: 20})
		back = ask(3, 1)
		back.Back = 2
		if late := r.Collect(h0.Add(2*time.Second), false, nil); len(late) == 0 || late[0] != back {
			t.Errorf("tokens that came late: asks %+v, want %+v first", late, back)
		}
	})
	t.Run("whoever has had the second's limit and credit is refused without asking", func(t *testing.T) {
		r := newRig(2, per(10, 25, 0, 0))
		r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
		r.Reply(r.at, r.Collect(r.at, false, nil)[0], ratelimit.Grant{Tokens: 1, Total: 12, Limit: 12})
		if v, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit); w != nil || v.Allowed || v.Limit != r.rates[0] {
			t.Errorf("verdict %+v, waiting %v, want refused", v, w)
		}
		waiting := 0
		for range 50 {
			if _, w := r.Start(h0.Add(time.Second), "u", r.rates, ratelimit.NoCredit); w != nil {
				waiting++
			}
		}
		if waiting != 35 {
			t.Errorf("%d requests wait in the next second, want as many as it may have at most, 35", waiting)
		}
	})
}

func TestAgentBurstThatIsTakenAway(t *testing.T) {
	r := newRig(2, per(10, 25, 0, 0))
	r.admitted(3, time.Millisecond)
	r.rates = per(10, 0, 0, 0)
	if n := r.admitted(20, time.Millisecond); n != 10 {
		t.Errorf("admitted %d once the burst was gone, want 10", n)
	}
	r.talk()
	if a := r.accounts[ratelimit.Key{Class: "GET", User: "u"}]; a.Total != 3 {
		t.Errorf("of the account %d are taken, want the 3 that were admitted", a.Total)
	}
}

func TestAgentLongClockSetBack(t *testing.T) {
	for _, back := range []time.Duration{30 * time.Second, 10 * time.Minute, 2 * time.Hour} {
		r := newRig(2, per(0, 0, 0, 10))
		r.at = h0.Add(3500 * time.Second)
		n := r.admitted(6, 100*time.Millisecond)
		r.at = r.at.Add(-back)
		r.pass(10 * time.Millisecond)
		hour := r.at.Unix() / 3600
		if hour != h0.Unix()/3600 {
			n = 0
		}
		if n += r.admitted(20, 100*time.Millisecond); n != 10 {
			t.Errorf("set back by %v: admitted %d in the hour, want 10", back, n)
		}
		if r.pass(7 * time.Second); r.KnownUsers() != 0 {
			t.Errorf("set back by %v: %d users known 7 s after the last request, want 0", back, r.KnownUsers())
		}
	}
}

func TestAgentThatHasLeftGivesBackWhatComesLate(t *testing.T) {
	r := newRig(2, per(0, 0, 100, 0))
	_, w := r.Start(r.at, "u", r.rates, ratelimit.NoCredit)
	asks := r.Collect(r.at, true, nil)
	if v := r.Timeout(r.at, w); !v.Allowed || len(asks) != 1 {
		t.Fatalf("verdict %+v, asked %+v, want one admitted without an answer", v, asks)
	}
	r.Leave()
	r.Reply(r.at, asks[0], r.take(r.at, asks[0]))
	if r.talk(); r.total(limits.Minute) != 1 {
		t.Errorf("taken from the pool: %d, want the 1 that was admitted", r.total(limits.Minute))
	}
}
