package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const creditLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 40, "*": 60}}
  both: {requests: {GET: 40}, concurrent: 20}
  staff: {}
  lister: {requests: {LIST: 10}}
  hourly: {requests: {GET: {hour: 100}}}
  burst: {requests: {GET: {second: 4, burst: 5}}}
  bytes: {requests: {GET: 40}, bandwidth: {down: 1MB, up: 640kB}}
  slowly: {bandwidth: {down: 1MB, default_share: 64kB}}
  patient: {concurrent: 5, over_limit: {concurrent: wait 2s}}
  first: {priority: 3}
  dry: {requests: {GET: 4}, mode: dry-run}
classes: {LIST: {query: [list]}}
users: {both: both, staff: staff, lister: lister, hourly: hourly, burst: burst, bytes: bytes, slowly: slowly, patient: patient, first: first, dry: dry}
`

// fakeRuntime plays HAProxy's runtime API.
type fakeRuntime struct {
	mu        sync.Mutex
	err       error
	process   uint64
	entries   map[string]runtimeapi.Entry
	seconds   map[string]runtimeapi.Entry // by runtimeapi.SecondKey
	withdrawn []string
	second    uint32 // of the last withdrawal
	behind    func() // happens once HAProxy has withdrawn, and before its answer is there
}

func (f *fakeRuntime) Variable(context.Context, string) (string, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "", f.process, f.err
}

func (f *fakeRuntime) Withdraw(_ context.Context, granted uint32, keys []string, seconds ...int64) ([]runtimeapi.Withdrawal, error) {
	f.mu.Lock()
	if f.behind != nil {
		defer f.behind() // runs last
		f.behind = nil
	}
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.withdrawn, f.second = append(f.withdrawn, keys...), granted
	for _, key := range keys {
		if e := f.entries[key]; len(e.GPT) > 0 {
			e.GPT[0] = 0
		}
	}
	var withdrawals []runtimeapi.Withdrawal
	for _, e := range f.read(keys) {
		w := runtimeapi.Withdrawal{Entry: e}
		for _, second := range seconds {
			if s, found := f.seconds[runtimeapi.SecondKey(e.Key, second)]; found {
				w.Seconds = append(w.Seconds, s)
			}
		}
		withdrawals = append(withdrawals, w)
	}
	return withdrawals, nil
}

func (f *fakeRuntime) Read(_ context.Context, _ string, keys []string) ([]runtimeapi.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read(keys), f.err
}

func (f *fakeRuntime) read(keys []string) (entries []runtimeapi.Entry) {
	for _, key := range keys {
		e := f.entries[key]
		e.Key = key
		entries = append(entries, e)
	}
	return entries
}

// has sets HAProxy's entry of a user: drawn tickets of "*" and GET, out of each.
func (f *fakeRuntime) has(user string, active int, all, get, each uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries[user] = runtimeapi.Entry{
		Found: true, ConnCur: active,
		GPT: []uint32{1, 20, 0, 1, 0, 0, each, each},
	}
	now := time.Now().Unix()
	f.seconds = map[string]runtimeapi.Entry{runtimeapi.SecondKey(user, now): {Found: true, GPT: []uint32{uint32(now), 1}, GPC: []uint32{all, get}}}
}

// hasWithoutCredit sets HAProxy's entry of a user whose credit was taken back.
func (f *fakeRuntime) hasWithoutCredit(user string, active int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries[user] = runtimeapi.Entry{Found: true, ConnCur: active, GPT: []uint32{0}}
}

func (f *fakeRuntime) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeRuntime) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.withdrawn)
}

// newCreditRig is an agent of so many instances that can take credit back.
func newCreditRig(t *testing.T, instances int) (*rig, *fakeRuntime) {
	t.Helper()
	r, f := newRig(t, nil).run(), &fakeRuntime{entries: map[string]runtimeapi.Entry{}}
	r.limiter.inForce.set.Store(parse(t, creditLimits))
	r.runtime = f
	var names []string
	for i := range instances {
		names = append(names, string(rune('a'+i)))
	}
	r.joined(redisbus.Registry{Instances: names})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.runWithdrawals(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(5*time.Second + 100*time.Millisecond) // all instances know how many they are
	return r, f
}

// credited asks as a HAProxy with credit for "*" and GET does, and returns what the answer brings.
func (r *rig) credited(user string, change func(*question)) verdict {
	q := question{user: user, verb: "GET", credit: haproxyCredit{classes: "* GET"}}
	if change != nil {
		change(&q)
	}
	return r.verdict(q)
}

func TestCreditIsGranted(t *testing.T) {
	for _, tt := range []struct {
		user      string
		instances int
		want      *grant // nil: none
	}{
		{"alice", 1, &grant{Grant: credit.Grant{Each: []uint32{60, 40}, Places: credit.Unlimited, Factor: 1}}},
		{"alice", 2, &grant{Grant: credit.Grant{Each: []uint32{7, 5}, Places: credit.Unlimited, Factor: 4}}},
		{"staff", 1, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, credit.Unlimited}, Places: credit.Unlimited, Factor: 1}}},
		{"both", 1, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, 40}, Places: 14, Factor: 1}}}, // some are kept for what was asked about before
		{"both", 2, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, 5}, Places: 2, Factor: 4}}},
		{"lister", 1, nil}, // of a class that HAProxy does not know
		{"hourly", 1, nil},
		{"burst", 1, nil},
		{"bytes", 1, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, 40}, Places: credit.Unlimited, Factor: 1}, share: [2]int64{1_000_000, 640_000}}},
		{"bytes", 2, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, 5}, Places: credit.Unlimited, Factor: 4}, share: [2]int64{500_000, 320_000}}},
		{"slowly", 2, &grant{Grant: credit.Grant{Each: []uint32{credit.Unlimited, credit.Unlimited}, Places: credit.Unlimited, Factor: 4}, share: [2]int64{64_000, 0}}},
		{"patient", 1, nil},
		{"first", 1, nil},
		{"dry", 1, nil},
		{"~others", 1, nil},
		{"~unreadable", 1, nil},
	} {
		t.Run(fmt.Sprint(tt.user, " of ", tt.instances), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := newCreditRig(t, tt.instances)
				got := r.credited(tt.user, func(q *question) { q.credit.shares = true })
				if !got.allowed {
					t.Fatalf("verdict = %+v, want allowed", got)
				}
				if tt.want != nil {
					tt.want.generation, tt.want.second = r.limiter.credits.generation, creditSecond(time.Now())
				}
				if diff := cmp.Diff(tt.want, got.credit, cmp.AllowUnexported(grant{})); diff != "" {
					t.Errorf("credit (-want +got):\n%s", diff)
				}
				// Once, until HAProxy has had the time to take it.
				if again := r.credited(tt.user, nil); again.credit != nil {
					t.Errorf("the next answer brings credit too: %+v", again.credit)
				}
			})
		})
	}
}

func TestNoCreditIsGranted(t *testing.T) {
	for name, change := range map[string]func(*rig, *fakeRuntime, *question){
		"to a configuration without":        func(_ *rig, _ *fakeRuntime, q *question) { q.credit.classes = "" },
		"where it was used up":              func(_ *rig, _ *fakeRuntime, q *question) { q.credit.spent = true },
		"to a configuration without shares": func(_ *rig, _ *fakeRuntime, q *question) { q.user = "bytes" },
		"in line":                           func(_ *rig, _ *fakeRuntime, q *question) { q.inLine = true },
		"while it could not be taken back": func(_ *rig, f *fakeRuntime, _ *question) {
			f.fail(errors.New("no socket"))
			time.Sleep(time.Second)
		},
		"while it is taken back": func(r *rig, _ *fakeRuntime, q *question) {
			r.limiter.update(func(now time.Time) { r.limiter.withdraw(now, q.user, now.Unix()+2) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f := newCreditRig(t, 2)
				if got := r.credited("alice", func(q *question) { change(r, f, q) }); !got.allowed || got.credit != nil {
					t.Errorf("verdict = %+v, want allowed without credit", got)
				}
			})
		})
	}
}

// An answer says the share of this request, and that of those which come by credit: it is what
// every instance may always have, for HAProxy keeps it whatever polygen divides.
func TestCreditBringsShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newCreditRig(t, 2)
		r.ask("bytes", "GET")
		r.applyPolicies([]redisbus.Message{divided("bytes", bandwidth.Down, 900_000, 100_000)})
		c := r.haproxy()
		got := c.ask("start-message", args{"user": "bytes", "class": "GET", "classes": "* GET", "shares": "1"})
		want := vars{"down": uint32(14_063), "up": uint32(5_000), "lent_down": uint32(7_813), "lent_up": uint32(5_000),
			"credit": r.limiter.credits.generation, "places": uint32(credit.Unlimited), "factor": uint32(4), "granted": creditSecond(time.Now()), "each_0": uint32(credit.Unlimited), "each_1": uint32(5)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	})
}

// moves plays HAProxy's table of credit, as it is read.
func (r *rig) moves(user string, inProgress int, bytes [2]int64) {
	r.takeNativeCounts([]nativeCount{{user: user, of: r.limiter.inForce.limitsOf(user), inProgress: inProgress, bytes: bytes}})
}

// Bytes of requests by credit that no table tells at once are demand, once they are read.
func TestReportsByCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		for i := range int64(4) {
			r.moves("alice", 1, [2]int64{bandwidth.Down: 5000 + 1_000_000*i, bandwidth.Up: 100_000 * i})
			r.moves("staff", 1, [2]int64{bandwidth.Down: 1_000_000 * i})
			wait(time.Second)
		}
		heard := r.pool.reports("alice")
		want := bandwidth.Report{Instance: "a", User: "alice", Active: 1, Moved: [2]int64{1_000_000, 100_000},
			Most: [2]int64{12*mib/200 + 1_120_000, 6*mib/200 + 112_000}}
		if len(heard) == 0 || heard[len(heard)-1].Report != want {
			t.Errorf("reported %+v, want at last %+v", heard, want)
		}
		r.moves("alice", 0, [2]int64{bandwidth.Down: 3_005_000, bandwidth.Up: 300_000})
		wait(time.Second)
		if heard := r.pool.reports("alice"); heard[len(heard)-1].Active != 0 {
			t.Errorf("reported %+v, want nothing in progress at last", heard[len(heard)-1])
		}
		if heard := r.pool.reports("staff"); len(heard) != 0 {
			t.Errorf("reported %+v of a user without a limit", heard)
		}
		r.stop()
	})
}

// A HAProxy that has spent its credit is refused the rest by an agent that is alone, for that was
// the whole limit, and one that has drawn a ticket needs no other.
func TestAloneAgentCountsHAProxysCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newCreditRig(t, 1)
		if got := r.credited("alice", nil); got.credit == nil {
			t.Fatalf("verdict = %+v, want credit", got)
		}
		time.Sleep(time.Second)
		if got := r.credited("alice", func(q *question) { q.credit.spent = true }); got.allowed || got.rate.Max != 40 {
			t.Errorf("verdict after the credit is spent = %+v, want refused by GET", got)
		}
		if got := r.credited("both", nil); got.credit == nil {
			t.Fatalf("verdict = %+v, want credit", got)
		}
		time.Sleep(time.Second)
		places := concurrency.Places{Lent: true, Here: 14, Places: 14}
		if got := r.credited("both", func(q *question) { q.credit.drawn, q.credit.places = true, places }); !got.allowed {
			t.Errorf("verdict with a ticket = %+v, want allowed", got)
		}
	})
}

// Near the limit credit is taken back, and what was not spent of it goes to the pool.
func TestHotUserLosesCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 2)
		if got := r.credited("alice", nil); got.credit == nil {
			t.Fatalf("verdict = %+v, want credit", got)
		}
		time.Sleep(time.Second)
		get := ratelimit.Key{Class: "GET", User: "alice"}
		hot := func() {
			r.applyPolicies([]redisbus.Message{redisbus.Hot{Key: get, Until: time.Now().Add(hotFor), Instances: 2}})
		}
		if got := r.credited("alice", func(q *question) { q.credit.spent = true }); !got.allowed {
			t.Fatalf("verdict = %+v, want allowed by a token of the pool", got)
		}
		f.has("alice", 0, 3, 3, 5) // drawn 3 of 5
		f.fail(errors.New("busy"))
		hot()
		time.Sleep(10 * time.Millisecond)
		before := r.pool.total(get)
		f.fail(nil)
		time.Sleep(100 * time.Millisecond)
		if diff := cmp.Diff([]string{"alice"}, f.told()); diff != "" {
			t.Fatalf("withdrawn (-want +got):\n%s", diff)
		}
		if errs := testutil.ToFloat64(r.metrics.withdrawalErrors); errs != 1 {
			t.Errorf("sluice_credit_withdrawal_errors_total = %v, want 1", errs)
		}
		if got := r.pool.total(get); got >= before {
			t.Errorf("the pool's total went from %d to %d: nothing came back", before, got)
		}
		for range 4 { // it stays hot
			time.Sleep(500 * time.Millisecond)
			hot()
		}
		if got := r.credited("alice", nil); got.credit != nil {
			t.Errorf("verdict while hot = %+v, want no credit", got)
		}
		if n := len(f.told()); n != 1 {
			t.Errorf("HAProxy was told %d times, want once", n)
		}
		time.Sleep(6 * time.Second)
		r.forget()
		if got := r.credited("alice", nil); got.credit == nil {
			t.Errorf("verdict when it is over = %+v, want credit", got)
		}
	})
}

// An answer to a withdrawal says nothing about a HAProxy that has replaced the one that gave it: an
// answer with credit may have reached the new one before.
func TestReplacedHAProxyIsAskedForCreditAgain(t *testing.T) {
	for name, inFlight := range map[string]bool{"the withdrawal was confirmed": false, "the old process answers just then": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f := newCreditRig(t, 2)
				r.followSession(peers.Session{State: peers.Up})
				told := func() (told int64) {
					r.limiter.update(func(time.Time) { told = r.limiter.credits.withdrawals["alice"].told })
					return told
				}
				replace := func() {
					f.fail(errors.New("no socket"))
					r.followSession(peers.Session{State: peers.Down, Closed: true})
					r.followSession(peers.Session{State: peers.Up})
				}
				replaced := make(chan struct{})
				if inFlight {
					f.behind = func() { <-replaced }
				}
				r.limiter.update(func(now time.Time) { r.limiter.withdraw(now, "alice", now.Unix()+60) })
				synctest.Wait()
				replace()
				close(replaced)
				time.Sleep(time.Second)
				if len(f.told()) != 1 || told() != 0 {
					t.Fatalf("withdrawn from %v, confirmed through %d; want alice once, and not confirmed by the new process", f.told(), told())
				}
				f.fail(nil)
				time.Sleep(time.Second)
				if diff := cmp.Diff([]string{"alice", "alice"}, f.told()); diff != "" || told() == 0 {
					t.Errorf("confirmed through %d, withdrawn (-want +got):\n%s", told(), diff)
				}
			})
		})
	}
}

// HAProxy is told of both an answer with credit and a withdrawal in which second they were, so that
// an answer that comes behind a withdrawal which was decided later brings none.
func TestCreditSaysItsSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 2)
		got := r.credited("alice", nil)
		if got.credit == nil {
			t.Fatalf("verdict = %+v, want credit", got)
		}
		first := got.credit.second
		r.applyPolicies([]redisbus.Message{redisbus.Hot{Key: ratelimit.Key{Class: "GET", User: "alice"}, Until: time.Now().Add(hotFor), Instances: 2}})
		time.Sleep(200 * time.Millisecond)
		if diff := cmp.Diff([]string{"alice"}, f.told()); diff != "" {
			t.Errorf("withdrawn (-want +got):\n%s", diff)
		}
		if f.second < first {
			t.Errorf("withdrawn in second %d, and given before in %d, want it not before", f.second, first)
		}
		time.Sleep(hotFor + time.Second)
		r.forget() // it is over; a hint that comes late has none withdrawn that was given in its own second
		r.applyPolicies([]redisbus.Message{redisbus.Hot{Key: ratelimit.Key{Class: "GET", User: "alice"}, Until: time.Now().Add(-time.Second), Instances: 2}})
		time.Sleep(2 * time.Second)
		r.forget()
		if got := r.credited("alice", nil); got.credit == nil || got.credit.second <= f.second || f.second <= first {
			t.Errorf("verdict = %+v, withdrawn in second %d and %d, want credit of a later one", got, first, f.second)
		}
	})
}

// What HAProxy admitted by itself is looked at until it has ended.
func TestWithdrawnPlacesAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 1)
		if got := r.credited("both", nil); got.credit == nil {
			t.Fatalf("verdict = %+v, want credit", got)
		}
		time.Sleep(time.Second)
		f.has("both", 20, 0, 15, credit.Unlimited)
		if got := r.credited("both", func(q *question) {
			q.credit.drawn, q.credit.places = true, concurrency.Places{Lent: true, Here: 15, Places: 14}
		}); !got.allowed {
			t.Errorf("verdict with 15 of 20 in progress = %+v, want allowed", got)
		}
		time.Sleep(50 * time.Millisecond)
		if diff := cmp.Diff([]string{"both"}, f.told()); diff != "" {
			t.Fatalf("withdrawn (-want +got):\n%s", diff)
		}
		if got := r.credited("both", nil); got.allowed {
			t.Errorf("verdict with all 20 in progress by HAProxy's count = %+v, want refused", got)
		}
		f.fail(errors.New("busy")) // one answer that is missing does not end it
		time.Sleep(300 * time.Millisecond)
		f.fail(nil)
		f.has("both", 2, 0, 15, credit.Unlimited)
		time.Sleep(200 * time.Millisecond)
		for range 15 {
			if got := r.credited("both", nil); !got.allowed || got.credit != nil {
				t.Fatalf("verdict with few in progress = %+v, want allowed without credit", got)
			}
		}
	})
}

// Requests in progress whose credit the agent before this one took back count until they have ended.
func TestInheritedRequestsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 1)
		r.takeInherited("staff", 5) // who has no such limit
		f.hasWithoutCredit("both", 18)
		r.takeInherited("both", 18)
		for i := range 3 {
			if got := r.credited("both", nil); got.allowed != (i < 2) || got.credit != nil {
				t.Errorf("verdict %d beside 18 of 20 in progress = %+v, want two allowed, without credit", i, got)
			}
		}
		f.hasWithoutCredit("both", 0)
		time.Sleep(200 * time.Millisecond)
		for range 15 {
			if got := r.credited("both", nil); !got.allowed {
				t.Fatalf("verdict when they have ended = %+v, want allowed", got)
			}
		}
		if told := f.told(); len(told) != 0 {
			t.Errorf("credit of %v was taken back, want nobody's: they have none", told)
		}
	})
}

// Credit of other limits, or of another number of instances, is of another generation.
func TestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newCreditRig(t, 2)
		row := func() peers.Values {
			r.limiter.mu.Lock()
			defer r.limiter.mu.Unlock()
			return r.row
		}
		first := row()
		if first[peers.GPT0] == 0 {
			t.Fatal("HAProxy was told no generation")
		}
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}, Now: time.Now()})
		if row()[peers.GPT0] != first[peers.GPT0] {
			t.Error("another generation, though nothing has changed")
		}
		for range 6 { // the row is there for longer than HAProxy keeps it
			r.limiter.mu.Lock()
			r.row = peers.Values{}
			r.limiter.mu.Unlock()
			time.Sleep(creditTable.Expire / 2)
			r.joined(redisbus.Registry{Instances: []string{"a", "b"}, Now: time.Now()})
			if row() != first {
				t.Errorf("row %v after half its time, want %v again", row(), first)
			}
		}
		r.joined(redisbus.Registry{Instances: []string{"a", "b", "c", "d"}, Now: time.Now()})
		second := row()
		if second[peers.GPT0] == first[peers.GPT0] {
			t.Error("the same generation with four instances as with two")
		}
		// The default tier's part: of 40 GETs, the smaller limit.
		if second[peers.GPC0] != 10 || second[peers.GPC1] != 0 {
			t.Errorf("part of users nobody could be asked about = %d a second, %d in progress; want 10 and no limit", second[peers.GPC0], second[peers.GPC1])
		}
		r.force(parse(t, slotLimits))
		third := row()
		if third[peers.GPT0] == second[peers.GPT0] {
			t.Error("the same generation with other limits")
		}
		if third[peers.GPC0] != 0 || third[peers.GPC1] != 1 {
			t.Errorf("part of users nobody could be asked about = %d a second, %d in progress; want no limit and 1", third[peers.GPC0], third[peers.GPC1])
		}
		// A class that the default tier may not have is a row of its own, and no part of the others'.
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 0, PUT: 40, POST: {second: 0, mode: dry-run}}}}\n"))
		fourth := row()
		r.limiter.mu.Lock()
		defer r.limiter.mu.Unlock()
		if fourth[peers.GPC0] != 10 || len(r.denied) != 1 || r.denied["GET"][peers.GPT0] != fourth[peers.GPT0] {
			t.Errorf("part = %d a second, rows of classes %v; want 10, and GET's of the generation", fourth[peers.GPC0], r.denied)
		}
		clear(r.denied)
		r.limiter.mu.Unlock()
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: 0}}\n"))
		r.limiter.mu.Lock()
		if len(r.denied) != len(limits.BuiltinClasses()) {
			t.Errorf("rows of classes %v without any requests, want one for each", r.denied)
		}
	})
}

func TestNoMoreWithdrawalsThanAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.limiter.update(func(now time.Time) {
			for i := range maxWithdrawals + 3 {
				r.limiter.withdraw(now, fmt.Sprint("user-", i), now.Unix()+1)
			}
		})
		if n, dropped := len(r.limiter.credits.withdrawals), testutil.ToFloat64(r.metrics.withdrawalsDropped); n != maxWithdrawals || dropped != 3 {
			t.Errorf("%d users without credit, %v dropped; want %d and 3", n, dropped, maxWithdrawals)
		}
	})
}

// Who loses credit has none in the next second either, however short the hint:
// haproxy.cfg counts on that.
func TestCreditIsNotGivenAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newCreditRig(t, 2)
		r.limiter.update(func(now time.Time) {
			withdrawn := now.Unix()
			r.limiter.withdraw(now, "alice", withdrawn)
			if w := r.limiter.credits.withdrawals["alice"]; w.through != withdrawn+1 {
				t.Errorf("withdrawn in second %d, without credit through %d, want through %d", withdrawn, w.through, withdrawn+1)
			}
		})
		if got := r.credited("alice", nil); !got.allowed || got.credit != nil {
			t.Errorf("verdict = %+v, want allowed without credit", got)
		}
	})
}

func TestTicketsSpent(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		each, drawn, returned uint32
		want                  int
	}{
		{"nothing", 10, 0, 0, 0},
		{"some", 10, 3, 0, 3},
		{"some that admitted nothing", 10, 3, 2, 3},
		{"all, and refused ones", 10, 50, 40, 10},
		{"while no agent answered", 10, 35, 2, 35},
		{"while no agent answered, and refused ones", 10, 50, 10, 40},
	} {
		e, second := &runtimeapi.Entry{GPT: []uint32{1, 0, 0, 4, 0, 0, 99, tt.each}}, &runtimeapi.Entry{GPT: []uint32{5, 1}, GPC: []uint32{77, tt.drawn, 66, tt.returned}}
		if got := ticketsSpent(e, second, 1, 2); got != tt.want {
			t.Errorf("%s: ticketsSpent() = %d, want %d", tt.name, got, tt.want)
		}
	}
	if got := ticketsSpent(&runtimeapi.Entry{}, &runtimeapi.Entry{}, 3, 4); got != 0 {
		t.Errorf("ticketsSpent() without an entry = %d, want 0", got)
	}
}

// The last second that HAProxy has opened counts, of those that were read: its clock may be ahead of the cluster's.
func TestWithdrawalOfASecond(t *testing.T) {
	for name, tt := range map[string]struct {
		opened []int64 // seconds after the cluster's
		want   int     // of 40 GETs that are left then
	}{
		"none": {nil, 40}, "the one before": {[]int64{-1}, 40}, "the present one": {[]int64{-1, 0}, 37}, "the next one as well": {[]int64{0, 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f := newCreditRig(t, 1)
				if got := r.credited("alice", nil); got.credit == nil {
					t.Fatal("no credit was given")
				}
				time.Sleep(time.Second)
				f.has("alice", 0, 3, 3, 40)
				f.seconds = map[string]runtimeapi.Entry{}
				for _, after := range tt.opened {
					second := time.Now().Unix() + after
					f.seconds[runtimeapi.SecondKey("alice", second)] = runtimeapi.Entry{Found: true, GPT: []uint32{uint32(second), 1}, GPC: []uint32{3, 3}}
				}
				lent := func(q *question) { q.credit.places = concurrency.Places{Lent: true, Here: 1, Places: credit.Unlimited} }
				allowed := 0
				for range 45 {
					if r.credited("alice", lent).allowed {
						allowed++
					}
				}
				if allowed != tt.want {
					t.Errorf("%d allowed, want %d", allowed, tt.want)
				}
			})
		})
	}
}

// Places are withdrawn with the tickets when these are withdrawn, also if they have just been
// given. If the core has not heard of it, it is told when it asks.
func TestPlacesAreWithdrawnWithTickets(t *testing.T) {
	for name, before := range map[string]func(*rig){
		"just given": func(*rig) { time.Sleep(20 * time.Millisecond) },
		"while HAProxy seems to be replaced": func(r *rig) {
			time.Sleep(time.Second)
			r.credited("patient", func(q *question) { q.seen.Process = 2 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f := newCreditRig(t, 1)
				if got := r.credited("both", func(q *question) { q.seen.Process = 1 }); got.credit == nil || got.credit.Places != 14 {
					t.Fatalf("credit = %+v, want 14 places", got.credit)
				}
				before(r)
				r.limiter.update(func(now time.Time) { r.limiter.withdraw(now, "both", now.Unix()+30) })
				time.Sleep(6 * time.Second)
				if diff := cmp.Diff([]string{"both"}, f.told()); diff != "" {
					t.Fatalf("withdrawn (-want +got):\n%s", diff)
				}
				began := time.Now()
				for i := range 20 {
					if got := r.credited("both", func(q *question) { q.seen.Process = 1 }); !got.allowed || time.Since(began) > 0 {
						t.Fatalf("request %d of 20: %+v after %v, want allowed at once", i+1, got, time.Since(began))
					}
				}
				if got := r.credited("both", func(q *question) { q.seen.Process = 1 }); got.allowed {
					t.Error("the 21st is allowed")
				}
			})
		})
	}
}

// After a change of limits a lone agent need not take back what HAProxy says is over: each user with
// credit of before is asked about at once then.
func TestCreditOfBeforeIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 1)
		if got := r.credited("alice", nil); got.credit == nil {
			t.Fatal("no credit was given")
		}
		time.Sleep(2 * time.Second)
		r.force(parse(t, creditLimits))
		of := r.overSince(r.limiter.credits.generation)
		time.Sleep(time.Second)
		began := time.Now()
		got := r.credited("alice", of)
		if !got.allowed || got.credit == nil || time.Since(began) > 0 || len(f.told()) > 0 {
			t.Errorf("verdict = %+v after %v, taken back from %v; want allowed at once, with credit, and nobody", got, time.Since(began), f.told())
		}
		allowed := 1
		for range 60 {
			if r.credited("alice", of).allowed {
				allowed++
			}
		}
		if allowed != 40 {
			t.Errorf("allowed %d, want the whole limit of 40", allowed)
		}
	})
}

// HAProxy says that its credit is over by a generation that is not this agent's any more. It may yet be
// taught one in between, and open the second by that one.
func TestCreditOfBeforeByAnotherGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 1)
		if got := r.credited("alice", nil); got.credit == nil {
			t.Fatal("no credit was given")
		}
		time.Sleep(2 * time.Second)
		r.force(parse(t, creditLimits))
		time.Sleep(time.Second)
		r.credited("alice", r.overSince(r.limiter.credits.generation-1))
		if diff := cmp.Diff([]string{"alice"}, f.told()); diff != "" {
			t.Errorf("taken back (-want +got):\n%s", diff)
		}
	})
}

// A question that says so may be older than an answer that has just brought credit of this generation.
func TestCreditOfBeforeThatIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newCreditRig(t, 1)
		r.force(parse(t, creditLimits))
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2*time.Second + 200*time.Millisecond)))
		of := r.overSince(r.limiter.credits.generation)
		isOver := func() (over bool) {
			n := needs{question: question{user: "alice"}}
			of(&n.question)
			r.limiter.update(func(now time.Time) { over = r.limiter.creditIsOver(now, &n, "alice") })
			return over
		}
		if !isOver() {
			t.Error("credit of an older generation is not over")
		}
		if got := r.credited("alice", of); got.credit == nil {
			t.Fatal("no credit was given")
		}
		if isOver() {
			t.Error("credit that was just given is over")
		}
	})
}

// overSince is a question of a user whose credit is over, for HAProxy goes by a generation that is not theirs.
func (r *rig) overSince(generation uint32) func(*question) {
	return func(q *question) {
		q.credit.places, q.credit.lapsed = concurrency.Places{Lent: true, Here: 1, Places: credit.Unlimited}, generation
		q.credit.second = time.Now().Unix()
	}
}

// HAProxy speaks of its machine's second. The cluster's may have begun before, with credit in force.
func TestCreditOfBeforeInAnotherSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newCreditRig(t, 1)
		r.force(parse(t, creditLimits))
		now := time.Now()
		r.clock.Sample(now, now, now.Add(-400*time.Millisecond))
		time.Sleep(time.Until(now.Truncate(time.Second).Add(2*time.Second + 200*time.Millisecond)))
		r.credited("alice", r.overSince(r.limiter.credits.generation))
		if diff := cmp.Diff([]string{"alice"}, f.told()); diff != "" {
			t.Errorf("the cluster's clock is at %v, this machine's at %v; taken back (-want +got):\n%s", r.clock.Now(), time.Now(), diff)
		}
	})
}
