package cost_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

var aliceTokens = []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100}}

// one is one agent on a Redis of its own.
type one struct {
	*cost.Agent
	t     *testing.T
	now   time.Time
	redis *redis
	asked int // asks about requests
}

func newOne(t *testing.T) *one {
	return &one{Agent: cost.NewAgent(cost.Config{}), t: t, now: t0, redis: newRedis()}
}

// request is one request of alice's, with the pools' answer.
func (o *one) request(of []limits.Cost, amount int64) cost.Verdict {
	o.t.Helper()
	v, w := o.Start(o.now, "alice", needs(of, amount))
	if w == nil {
		return v
	}
	o.exchange()
	if decided := o.TakeOutput().Decided; len(decided) != 1 || decided[0] != w {
		o.t.Fatalf("decided %v, want the request that waits", decided)
	}
	return w.Verdict
}

func (o *one) exchange() {
	asks := o.Collect(o.now, true, nil)
	if len(asks) == 0 {
		return
	}
	for i, g := range o.redis.call(o.Agent, asks) {
		if !asks[i].Forced {
			o.asked++
		}
		o.Reply(o.now, asks[i], g)
	}
}

func (o *one) want(of []limits.Cost, amount int64, want cost.Verdict) {
	o.t.Helper()
	if got := o.request(of, amount); got != want {
		o.t.Errorf("a request of %d after %v = %+v, want %+v", amount, o.now.Sub(t0), got, want)
	}
}

// wantCharged compares what the pool of a limit has of the window of a second.
func (o *one) wantCharged(user string, c limits.Cost, second, want int64) {
	o.t.Helper()
	pool := cost.Pool{User: user, Unit: c.Unit, Window: c.Window, Start: c.WindowStart(second)}
	if got := o.redis.pools[pool].Charged; got != want {
		o.t.Errorf("%+v has %d, want %d", pool, got, want)
	}
}

var (
	allowed = cost.Verdict{Allowed: true, Charged: true, Second: t0.Unix()}
	start   = t0.Unix() - t0.Unix()%60
)

func refusal(by limits.Cost, why cause.Cause) cost.Verdict {
	return cost.Verdict{Limit: by, Cause: why, Second: by.WindowStart(t0.Unix())}
}

func TestAgentNamesTheLimitThatLastsLongest(t *testing.T) {
	of := append(tokens(100, 200), limits.Cost{Unit: "tokens", Window: limits.Day, Max: 10_000, Calendar: limits.NewCalendar(time.UTC, 6*time.Hour, 1)})
	o := newOne(t)
	o.want(of, 100, allowed)
	o.want(of, 100, refusal(of[0], cause.Pool))
	o.want(of, 200, refusal(of[0], cause.EstimateTooLarge))
	o.want(of, 10_001, refusal(of[2], cause.EstimateTooLarge))
	none := limits.Cost{Unit: "tokens", Window: limits.Day}
	o.want([]limits.Cost{none}, 0, refusal(none, cause.LimitZero))
	o.now = o.now.Add(time.Minute)
	o.want(of, 100, cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()})
	o.now = o.now.Add(time.Minute)
	o.want(of, 100, cost.Verdict{Limit: of[1], Cause: cause.Pool, Second: of[1].WindowStart(o.now.Unix())})
}

// Pools that have just refused are not asked again for a while, unless something goes back.
func TestAgentAsksNotAgainAtOnce(t *testing.T) {
	o := newOne(t)
	o.want(aliceTokens, 80, allowed)
	o.want(aliceTokens, 30, refusal(aliceTokens[0], cause.Pool))
	o.want(aliceTokens, 30, refusal(aliceTokens[0], cause.Pool))
	if o.asked != 2 {
		t.Errorf("the pools were asked %d times, want 2", o.asked)
	}
	// One that costs less may have room.
	o.want(aliceTokens, 20, allowed)
	o.want(aliceTokens, 30, refusal(aliceTokens[0], cause.Pool))
	if o.asked != 3 {
		t.Errorf("the pools were asked %d times, want 3", o.asked)
	}
	o.now = o.now.Add(20 * time.Millisecond)
	o.want(aliceTokens, 30, refusal(aliceTokens[0], cause.Pool))
	if o.asked != 4 {
		t.Errorf("after 20 ms the pools were asked %d times, want 4", o.asked)
	}
	o.Settle(o.now, "alice", t0.Unix(), -30, aliceTokens)
	o.want(aliceTokens, 30, allowed)
	// Of the next window nothing is known.
	o.want(aliceTokens, 30, refusal(aliceTokens[0], cause.Pool))
	o.now = time.Unix(start+60, 0)
	o.want(aliceTokens, 30, cost.Verdict{Allowed: true, Charged: true, Second: start + 60})
}

// A wait that was too long is refused, and what is granted afterwards goes back.
func TestAgentTimeout(t *testing.T) {
	o := newOne(t)
	_, w := o.Start(o.now, "alice", needs(aliceTokens, 60))
	asks := o.Collect(o.now, true, nil)
	if got, want := o.Timeout(o.now, w), refusal(aliceTokens[0], cause.RedisLate); got != want {
		t.Errorf("Timeout() = %+v, want %+v", got, want)
	}
	for i, g := range o.redis.call(o.Agent, asks) {
		o.Reply(o.now, asks[i], g)
	}
	o.exchange()
	o.want(aliceTokens, 100, allowed)

	// Nobody is asked for who has left before.
	_, w = o.Start(o.now, "alice", needs(aliceTokens, 0))
	o.Timeout(o.now, w)
	if asks := o.Collect(o.now, true, nil); len(asks) > 0 {
		t.Errorf("Collect() = %+v after the time-out, want nothing", asks)
	}
}

func TestAgentQueueIsBounded(t *testing.T) {
	o := newOne(t)
	waiting := 0
	for range 300 {
		if v, w := o.Start(o.now, "alice", needs(aliceTokens, 1)); w != nil {
			waiting++
		} else if want := refusal(aliceTokens[0], cause.QueueFull); v != want {
			t.Fatalf("with %d in the queue a request gets %+v, want %+v", waiting, v, want)
		}
	}
	if waiting != 256 {
		t.Errorf("%d requests wait, want 256", waiting)
	}
	if n := len(o.Collect(o.now, true, nil)); n != cost.MaxBatch {
		t.Errorf("a batch has %d asks, want %d", n, cost.MaxBatch)
	}
	if !o.TakeOutput().Urgent {
		t.Error("the rest of the queue is not urgent")
	}
}

// A limit in a dry run is charged and settled, and no request waits for it.
func TestAgentDryRun(t *testing.T) {
	dry := []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100, Mode: limits.DryRun}}
	o := newOne(t)
	for i, want := range []cost.Verdict{allowed, {Allowed: true, Charged: true, Second: t0.Unix(), WouldRefuse: dry[0]}} {
		if got, w := o.Start(o.now, "alice", needs(dry, 80)); w != nil || got != want {
			t.Errorf("request %d = %+v, waits: %v, want %+v at once", i, got, w != nil, want)
		}
		o.exchange()
	}
	o.Settle(o.now, "alice", t0.Unix(), -30, dry)
	o.exchange()
	o.wantCharged("alice", dry[0], t0.Unix(), 130)
	// The next window owes nothing for it.
	o.now = o.now.Add(time.Minute)
	if got, want := o.request(dry, 100), (cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()}); got != want {
		t.Errorf("a minute later a request gets %+v, want %+v", got, want)
	}

	// Beside one that is enforced, it is charged with it or not at all.
	both := append(append([]limits.Cost{}, dry...), limits.Cost{Unit: "tokens", Window: limits.Hour, Max: 150})
	o = newOne(t)
	o.want(both, 90, allowed)
	o.want(both, 50, cost.Verdict{Allowed: true, Charged: true, Second: t0.Unix(), WouldRefuse: dry[0]})
	o.want(both, 50, refusal(both[1], cause.Pool))
	o.wantCharged("alice", dry[0], t0.Unix(), 140)
}

// An overrun is charged to the present window, and its debt to the one after.
func TestAgentOverrun(t *testing.T) {
	o := newOne(t)
	o.want(aliceTokens, 10, allowed)
	o.now = o.now.Add(time.Minute)
	o.Settle(o.now, "alice", t0.Unix(), 130, aliceTokens)
	o.exchange()
	present := aliceTokens[0].WindowStart(o.now.Unix())
	o.wantCharged("alice", aliceTokens[0], present, 130)
	o.now = o.now.Add(time.Minute)
	if left, _, _ := o.Left(o.now, "alice", needs(aliceTokens, 1)); left != 70 {
		t.Errorf("%d are left of the next window, want 70: 30 are a debt", left)
	}
	o.want(aliceTokens, 71, cost.Verdict{Limit: aliceTokens[0], Cause: cause.Pool, Second: present + 60})
	o.want(aliceTokens, 70, cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()})
}

func TestAgentIgnoresCorrectionsThatCannotBe(t *testing.T) {
	for name, settle := range map[string]func(*one){
		"of nothing":            func(o *one) { o.Settle(o.now, "alice", t0.Unix(), 0, aliceTokens) },
		"without a limit":       func(o *one) { o.Settle(o.now, "alice", t0.Unix(), 5, nil) },
		"of the future":         func(o *one) { o.Settle(o.now, "alice", t0.Unix()+2, -5, aliceTokens) },
		"from before the epoch": func(o *one) { o.Settle(o.now, "alice", -1<<63, -5, aliceTokens) },
		"that end each other": func(o *one) {
			o.Settle(o.now, "alice", t0.Unix(), -5, aliceTokens)
			o.Cancel(o.now, "alice", needs(aliceTokens, -5), allowed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOne(t)
			settle(o)
			if asks := o.Collect(o.now, true, nil); len(asks) > 0 {
				t.Errorf("Collect() = %+v, want nothing", asks)
			}
		})
	}
}

// However many corrections wait, requests are in the next batch, after what waits for their
// own users.
func TestAgentAsksInSpiteOfManyCorrections(t *testing.T) {
	of := []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100}, {Unit: "tokens", Window: limits.Day, Max: 100}}
	o := newOne(t)
	o.want(of, 100, allowed)
	o.Lost(o.now, true)
	for i := range 10_000 {
		o.Start(o.now, fmt.Sprint("user-", i), needs(of, 1))
	}
	// Alice's window is over when Redis is back, and her day gets back what she needs.
	o.Settle(o.now, "alice", t0.Unix(), -100, of)
	o.now = o.now.Add(3 * time.Minute)
	o.Lost(o.now, false)
	o.want(of, 100, cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()})

	// Requests and corrections have half of a batch each, or what the others leave.
	start := func(n int) {
		for i := range n {
			o.Start(o.now, fmt.Sprint("user-", i%100), needs(of, 0))
		}
	}
	for _, c := range []struct{ start, corrections, requests int }{
		{3, 125, 3},
		{64, 64, 64},
		{200, 64, 64},
		{0, 64, 64},
		{0, 64, 64},
		{0, 120, 8},
		{0, 128, 0},
	} {
		start(c.start)
		corrections, requests := 0, 0
		asks := o.Collect(o.now, true, nil)
		for i, g := range o.redis.call(o.Agent, asks) {
			if asks[i].Forced {
				corrections++
			} else {
				requests++
			}
			o.Reply(o.now, asks[i], g)
		}
		if corrections != c.corrections || requests != c.requests {
			t.Errorf("a batch has %d corrections and %d requests, want %d and %d", corrections, requests, c.corrections, c.requests)
		}
	}
	for asks := o.Collect(o.now, true, nil); len(asks) > 0; asks = o.Collect(o.now, true, nil) {
		for i, g := range o.redis.call(o.Agent, asks) {
			o.Reply(o.now, asks[i], g)
		}
	}
	for i := range 10_000 {
		day := cost.Pool{User: fmt.Sprint("user-", i), Unit: "tokens", Window: limits.Day, Start: of[1].WindowStart(t0.Unix())}
		if got := o.redis.pools[day].Charged; got != 1 {
			t.Fatalf("%+v has %d, want 1", day, got)
		}
	}
}

// What waits for a request's user is told in the order of the windows, however many corrections wait: a window begins with the
// debt of the one before.
func TestAgentTellsOlderWindowsFirst(t *testing.T) {
	of := []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100}}
	o, other := newOne(t), newOne(t)
	other.redis = o.redis
	other.want(of, 100, allowed)
	o.Lost(o.now, true)
	// With the 50 that this agent admits of 100, the minute is at 150, and the next one begins with 50.
	for _, amount := range []int64{50, 40} {
		if v, _ := o.Start(o.now, "alice", needs(of, amount)); !v.Charged {
			t.Fatalf("a request of %d without Redis = %+v, want it allowed", amount, v)
		}
		for i := range 1000 {
			o.Start(o.now, fmt.Sprint("user-", i), needs(of, 1))
		}
		o.now = o.now.Add(time.Minute)
	}
	o.now = o.now.Add(-time.Minute)
	o.Lost(o.now, false)
	if got := o.request(of, 60); got.Allowed || got.Cause != cause.Pool {
		t.Errorf("a request of 60 = %+v, want it refused: 40 and a debt of 50 leave 10", got)
	}
}

// Corrections are summed by user, unit and window, and bounded.
func TestAgentCorrectionsAreBounded(t *testing.T) {
	a := cost.NewAgent(cost.Config{MaxCorrections: 3})
	for i := range 100 {
		a.Settle(t0, fmt.Sprint("user-", i%3), start+int64(i%20), -1, aliceTokens)
	}
	if n := a.Dropped(); n != 0 {
		t.Errorf("%d corrections were dropped, want none: they are of three users and one minute", n)
	}
	a.Settle(t0, "alice", start, -1, aliceTokens)
	a.Settle(t0, "user-1", start-60, -1, aliceTokens)
	a.Settle(t0, "user-1", start, 1, aliceTokens) // to the present window, whichever that is when it is sent
	if n := a.Dropped(); n != 3 {
		t.Errorf("%d corrections were dropped, want 3", n)
	}
	asks := a.Collect(t0, true, nil)
	if len(asks) != 3 {
		t.Fatalf("Collect() = %+v, want 3 asks", asks)
	}
	for i, want := range []int64{-34, -33, -33} {
		if e := asks[i].Entries[0]; e.Change != want || e.Start != start || !asks[i].Forced {
			t.Errorf("correction %d = %+v, want %d", i, asks[i], want)
		}
	}
}

// A day that begins within an hour gets back what was charged in that hour.
func TestAgentDayBeginsWithinAnHour(t *testing.T) {
	of := []limits.Cost{
		{Unit: "tokens", Window: limits.Hour, Max: 1000},
		{Unit: "tokens", Window: limits.Day, Max: 1000, Calendar: limits.NewCalendar(time.UTC, 30*time.Minute, 1)},
	}
	o := newOne(t)
	midnight := t0.Truncate(24 * time.Hour)
	charged := func() cost.Verdict {
		return cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()}
	}
	// Yesterday's day ends in the same hour, and what goes back to it is not summed with what goes back to today's.
	o.now = midnight.Add(20 * time.Minute)
	o.want(of, 100, charged())
	o.now = midnight.Add(40 * time.Minute)
	o.want(of, 900, charged())
	o.Settle(o.now, "alice", midnight.Add(20*time.Minute).Unix(), -60, of)
	o.Settle(o.now, "alice", o.now.Unix(), -890, of)
	o.exchange()
	o.wantCharged("alice", of[0], midnight.Unix(), 50)
	o.wantCharged("alice", of[1], midnight.Unix(), 40) // yesterday's day
	o.wantCharged("alice", of[1], o.now.Unix(), 10)
	o.want(of, 900, charged())
}

// Days of 23 and 25 hours and months are windows as any other: a whole limit is charged in each, and what was charged beyond
// it is a debt of the next.
func TestAgentCalendar(t *testing.T) {
	for _, c := range []struct {
		name   string
		window limits.Window
		at     string   // a time of UTC
		begins []string // of the window of that time and of those after it
	}{
		{"23 hours", limits.Day, "2026-03-28 23:00", []string{"2026-03-28 23:00", "2026-03-29 22:00", "2026-03-30 22:00"}},
		{"25 hours", limits.Day, "2026-10-25 22:59", []string{"2026-10-24 22:00", "2026-10-25 23:00", "2026-10-26 23:00"}},
		{"months", limits.Month, "2026-02-14 22:59", []string{"2026-01-14 23:00", "2026-02-14 23:00", "2026-03-14 23:00", "2026-04-14 22:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := func(s string) time.Time {
				when, err := time.Parse("2006-01-02 15:04", s)
				if err != nil {
					t.Fatal(err)
				}
				return when
			}
			of := []limits.Cost{{Unit: "tokens", Window: c.window, Max: 100, Calendar: berlin}}
			o := newOne(t)
			o.now = at(c.at)
			for i := 0; i+1 < len(c.begins); i++ {
				begin, end := at(c.begins[i]).Unix(), at(c.begins[i+1]).Unix()
				amount := int64(100)
				if i > 0 {
					amount = 90 // and a debt of 10
				}
				charged := cost.Verdict{Allowed: true, Charged: true, Second: o.now.Unix()}
				o.want(of, amount, charged)
				o.Settle(o.now, "alice", charged.Second, 10, of)
				o.exchange()
				o.wantCharged("alice", of[0], begin, 110)
				refused := cost.Verdict{Limit: of[0], Cause: cause.Pool, Second: begin}
				if refused.End() != end {
					t.Errorf("a window from %d on ends at %d, want %d", begin, refused.End(), end)
				}
				o.now = time.Unix(end-1, 0)
				o.want(of, 1, refused)
				o.now = time.Unix(end, 0)
				o.want(of, 91, cost.Verdict{Limit: of[0], Cause: cause.Pool, Second: end})
				o.now = time.Unix(end+1, 0)
			}
		})
	}
}

// A change of more than one ask may have comes in several.
func TestAgentDividesLargeCorrections(t *testing.T) {
	a := cost.NewAgent(cost.Config{})
	for range 3 {
		a.Settle(t0, "alice", start, limits.MaxCost, aliceTokens)
	}
	sum := int64(0)
	for _, ask := range a.Collect(t0, true, nil) {
		if e := ask.Entries[0]; e.Change > limits.MaxCost {
			t.Errorf("a change of %d, want %d at most", e.Change, limits.MaxCost)
		}
		sum += ask.Entries[0].Change
	}
	if sum != 3*limits.MaxCost {
		t.Errorf("the changes are %d together, want %d", sum, 3*limits.MaxCost)
	}
}

func TestAgentUsersAreBounded(t *testing.T) {
	a := cost.NewAgent(cost.Config{MaxUsers: 1})
	a.Start(t0, "alice", needs(aliceTokens, 1))
	if v, w := a.Start(t0, "bob", needs(aliceTokens, 1)); w != nil || v != (cost.Verdict{Allowed: true, Second: t0.Unix()}) {
		t.Errorf("a request of one user too many = %+v, waits: %v, want it allowed and not charged", v, w != nil)
	}
	if n := a.Overflowed(); n != 1 {
		t.Errorf("%d requests were not counted, want 1", n)
	}
	// It is known what alice was charged for as long as somebody waits for the answer.
	asks := a.Collect(t0, true, nil)
	a.Tick(t0.Add(time.Minute))
	if n := a.KnownUsers(); n != 1 {
		t.Errorf("%d users are known, want alice, who waits", n)
	}
	a.Reply(t0, asks[0], cost.Grant{Granted: true, Totals: []int64{1}})
	a.Tick(t0.Add(2 * time.Minute))
	if n := a.KnownUsers(); n != 0 {
		t.Errorf("%d users are known, want none", n)
	}
}

// However long Redis is lost, the pools hear of all that was charged meanwhile.
func TestAgentLostForLong(t *testing.T) {
	of := []limits.Cost{
		{Unit: "tokens", Window: limits.Minute, Max: 1000},
		{Unit: "tokens", Window: limits.Day, Max: 1_000_000, Calendar: limits.NewCalendar(time.UTC, 30*time.Minute, 1)},
	}
	const users, minutes = 10, 60
	o := newOne(t)
	// Two minutes, a day, and what costs more than its estimate.
	o.Agent = cost.NewAgent(cost.Config{MaxCorrections: users * 4})
	o.Lost(o.now, true)
	var seconds []int64
	for range minutes {
		for i := range users {
			name := fmt.Sprint("user-", i)
			if v, _ := o.Start(o.now, name, needs(of, 100)); !v.Allowed || !v.Charged {
				t.Fatalf("after %v %s gets %+v, want it charged", o.now.Sub(t0), name, v)
			}
			// It costs 40, as is known three minutes later, when its minute is not needed any more.
			if n := len(seconds); n >= 3 {
				o.Settle(o.now, name, seconds[n-3], -60, of)
			}
			o.Settle(o.now, name, o.now.Unix(), 1, of) // an overrun
		}
		seconds = append(seconds, o.now.Unix())
		o.now = o.now.Add(time.Minute)
	}
	o.Lost(o.now, false)
	for i := range users {
		for _, sec := range seconds[minutes-3:] {
			o.Settle(o.now, fmt.Sprint("user-", i), sec, -60, of)
		}
	}
	o.exchange()
	if n := o.Dropped(); n != 0 {
		t.Errorf("%d corrections were dropped, want none", n)
	}
	for i := range users {
		name := fmt.Sprint("user-", i)
		o.wantCharged(name, of[1], t0.Unix(), minutes*41)
		o.wantCharged(name, of[0], seconds[minutes-1], 40)
		o.wantCharged(name, of[0], seconds[minutes-1]+60, minutes) // the overruns
	}
}

// A refund is added to its charge while that waits, and not to what is sent before it.
func TestAgentLostRefundsWithTheirCharges(t *testing.T) {
	of := []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100}, {Unit: "tokens", Window: limits.Day, Max: 1000}}
	o := newOne(t)
	o.Agent = cost.NewAgent(cost.Config{MaxCorrections: 5})
	o.want(of, 50, allowed)
	o.Lost(o.now, true)
	for range 5 {
		o.Start(o.now, "bob", needs(of, 1))
		o.now = o.now.Add(time.Minute)
	}
	// There is room again for what goes back to the day.
	o.Settle(o.now, "alice", t0.Unix(), -50, of)
	second := o.now.Unix()
	o.want(of, 40, cost.Verdict{Allowed: true, Charged: true, Second: second})
	o.now = o.now.Add(3 * time.Minute)
	o.Settle(o.now, "alice", second, -30, of)
	o.Lost(o.now, false)
	o.exchange()
	o.wantCharged("alice", of[1], second, 10)
	if n := o.Dropped(); n != 0 {
		t.Errorf("%d were dropped, want none", n)
	}
}

// Without room to remember a charge no request is admitted alone, and what it has charged of one
// unit is not charged.
func TestAgentLostWithoutRoom(t *testing.T) {
	of := []limits.Cost{{Unit: "pages", Window: limits.Minute, Max: 100}, {Unit: "tokens", Window: limits.Minute, Max: 100}}
	dry := []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 100, Mode: limits.DryRun}}
	o := newOne(t)
	o.Agent = cost.NewAgent(cost.Config{MaxCorrections: 3})
	o.Lost(o.now, true)
	ask := func(name string, of []limits.Cost, want cost.Verdict) {
		t.Helper()
		if got, _ := o.Start(o.now, name, needs(of, 40)); got != want {
			t.Errorf("a request of %s = %+v, want %+v", name, got, want)
		}
	}
	ask("alice", of, allowed)
	ask("bob", of, refusal(of[0], cause.RedisLost))
	ask("alice", of, allowed)
	ask("carol", of[1:], allowed)
	ask("dave", dry, cost.Verdict{Allowed: true, Second: t0.Unix()})
	if n := o.Dropped(); n != 1 {
		t.Errorf("%d were dropped, want 1: dave's charge", n)
	}
	o.Lost(o.now, false)
	o.exchange()
	for name, want := range map[string][2]int64{"alice": {80, 80}, "bob": {0, 0}, "carol": {0, 40}, "dave": {0, 0}} {
		for i, c := range of {
			o.wantCharged(name, c, t0.Unix(), want[i])
		}
	}
	o.Lost(o.now, true)
	ask("bob", of, allowed)
}

// An agent with nothing to do says for how long, and when that is no longer true.
func TestAgentRests(t *testing.T) {
	o := newOne(t)
	if d := o.IdleFor(o.now, time.Second); d != time.Second {
		t.Errorf("IdleFor() = %v, want %v", d, time.Second)
	}
	o.Settle(o.now, "alice", t0.Unix(), -1, aliceTokens)
	if out := o.TakeOutput(); !out.Sooner || out.Urgent {
		t.Errorf("after a correction TakeOutput() = %+v, want Sooner alone", out)
	}
	if d := o.IdleFor(o.now, time.Second); d != 0 {
		t.Errorf("with a correction IdleFor() = %v, want 0", d)
	}
	if _, w := o.Start(o.now, "alice", needs(aliceTokens, 1)); w == nil || !o.TakeOutput().Urgent {
		t.Error("a request that waits is not urgent")
	}
}
