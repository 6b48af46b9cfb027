package spoa

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// fakeTables is a HAProxy's table of what users have by default.
type fakeTables struct {
	process uint64
	rows    map[string]uint32
	err     error
	writes  int
	begun   []uint32 // generations that it was told to begin with
	lost    int      // so many answers to that get lost from now on
	shares  string   // "": its configuration keeps none by default

	generation uint32         // that HAProxy renews
	inUse      map[string]int // requests in progress by places
}

func (f *fakeTables) Read(context.Context, string, []string) ([]runtimeapi.Entry, error) {
	return []runtimeapi.Entry{{Process: f.process, GPT: []uint32{f.generation}}}, f.err
}

func (f *fakeTables) InUse(_ context.Context, _ string, each func(runtimeapi.Entry)) (uint64, error) {
	for user, n := range f.inUse {
		each(runtimeapi.Entry{Key: user, ConnCur: n})
	}
	return f.process, f.err
}

func (f *fakeTables) Variable(_ context.Context, name string) (string, uint64, error) {
	value := map[string]string{classesVariable: "* GET", sharesVariable: f.shares}[name]
	return value, f.process, f.err
}

func (f *fakeTables) Set(_ context.Context, _ string, rows []runtimeapi.Row) (uint64, error) {
	if f.err != nil {
		return 0, f.err
	}
	f.writes++
	for _, row := range rows {
		f.rows[row.Key] = row.Value
		if row.Key != rowGeneration {
			continue
		}
		f.begun = append(f.begun, row.Value)
		if f.lost > 0 {
			f.lost--
			return 0, errors.New("the answer is lost")
		}
	}
	return f.process, nil
}

func (f *fakeTables) Clear(context.Context, string) (uint64, error) {
	if f.err == nil {
		f.rows = map[string]uint32{}
	}
	return f.process, f.err
}

// newDefaultRig is an agent of so many instances, and the function that lets it look after what
// users have by default for so long.
func newDefaultRig(t *testing.T, instances int, file string) (*rig, *fakeTables, func(time.Duration)) {
	t.Helper()
	r, _ := newCreditRig(t, instances)
	f := &fakeTables{process: 7, rows: map[string]uint32{}}
	r.tables = f
	r.force(parse(t, file))
	return r, f, func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(offerEvery) {
			if err := r.offerCredit(t.Context()); err != nil {
				r.metrics.byDefaultErrors.Inc()
			}
		}
	}
}

const defaultLimits = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 40, '*': 60}}, staff: {}}\nusers: {wilma: staff}\n"

// HAProxy is told what users of the default tier have, whom that is not for, and from when on. It
// has to be told anew after a reload, and when the generation of credit changes.
func TestDefaultCreditIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f, look := newDefaultRig(t, 2, defaultLimits)
		look(offerAfter)
		if len(f.rows) > 0 {
			t.Fatalf("HAProxy knows %v at once, want nothing before it has noticed that the process is new", f.rows)
		}
		look(time.Second)
		begun := time.Now().Unix()
		want := map[string]uint32{
			"~": r.limiter.credits.generation, "~0": 7, "~1": 5, "~places": credit.Unlimited, "~factor": 4, "~most": maxByDefault, "~addresses": 0,
			"~from": f.rows["~from"], "wilma": 1,
		}
		if diff := cmp.Diff(want, f.rows); diff != "" {
			t.Fatalf("rows (-want +got):\n%s", diff)
		}
		if from := int64(f.rows["~from"]); from < begun+2 || from > begun+4 {
			t.Errorf("it begins at %d, %d seconds from now, want 2 to 4", from, from-begun)
		}
		writes := f.writes
		look(5 * time.Second)
		if f.writes != writes || testutil.ToFloat64(r.metrics.byDefault) != 1 {
			t.Errorf("written %d times more, and the metric says %v, want 0 and 1", f.writes-writes, testutil.ToFloat64(r.metrics.byDefault))
		}

		// Whoever it is for may have credit, whatever HAProxy says of now.
		d := &r.limiter.credits.byDefault
		for user, want := range map[string]bool{"alice": true, "10.0.0.1": true, "wilma": false, "~ABC": false, "@up/alice": false, "": false} {
			if got := d.mayHave(time.Now(), user); got != want {
				t.Errorf("may have credit by default: %q %v, want %v", user, got, want)
			}
		}

		r.limiter.update(func(time.Time) { r.nextGeneration() })
		look(offerEvery)
		if len(f.rows) > 0 || !d.mayHave(time.Now(), "alice") || d.mayHave(time.Now().Add(2*time.Second), "alice") {
			t.Errorf("another generation: HAProxy knows %v, and alice may have some %v, in 2 s %v; want nothing, true, false", f.rows, d.mayHave(time.Now(), "alice"), d.mayHave(time.Now().Add(2*time.Second), "alice"))
		}
		look(3 * time.Second)
		if f.rows["~"] != r.limiter.credits.generation {
			t.Errorf("generation %d, want %d", f.rows["~"], r.limiter.credits.generation)
		}

		f.process, f.rows = 8, map[string]uint32{}
		look(offerEvery)
		if d.mayHave(time.Now().Add(time.Second), "alice") || testutil.ToFloat64(r.metrics.byDefault) != 0 {
			t.Error("a new process, which knows nothing, is taken for one that has credit by default")
		}
		look(3 * time.Second)
		if f.rows["~"] != r.limiter.credits.generation {
			t.Errorf("the new process knows %v", f.rows)
		}
	})
}

// While HAProxy does not answer, users may have what it was told last, and are not taken for users
// without credit. What it may not have heard it is told again.
func TestDefaultCreditIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f, look := newDefaultRig(t, 2, defaultLimits)
		look(4 * time.Second)
		f.err = errors.New("no socket")
		r.limiter.update(func(time.Time) { r.nextGeneration() })
		look(5 * time.Second)
		if !r.limiter.credits.byDefault.mayHave(time.Now(), "alice") || testutil.ToFloat64(r.metrics.byDefaultErrors) == 0 {
			t.Errorf("alice has none, and %v errors, want that she may have some, and more than 0", testutil.ToFloat64(r.metrics.byDefaultErrors))
		}
		before := r.limiter.credits.generation
		look(unreachedSpan - 10*time.Second)
		if r.limiter.credits.generation != before {
			t.Error("another generation, before HAProxy forgets who has no credit")
		}
		look(20 * time.Second)
		if r.limiter.credits.generation == before {
			t.Error("HAProxy may forget who has no credit, and goes on to give some")
		}
		f.err = nil
		look(4 * time.Second)
		if f.rows["~"] != r.limiter.credits.generation {
			t.Errorf("generation %d, want %d", f.rows["~"], r.limiter.credits.generation)
		}
	})
}

// HAProxy may have begun with what it was told when the answer is lost. It is not told the same once more: who looks at the
// rows while they are written again would find the generation unchanged, and miss some. So there is another one.
func TestDefaultCreditAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f, look := newDefaultRig(t, 2, defaultLimits)
		f.lost = 2
		for range 200 {
			look(offerEvery)
			d := &r.limiter.credits.byDefault
			if f.rows[rowGeneration] != 0 && time.Now().Unix() >= int64(f.rows[rowFrom]) && !d.mayHave(time.Now(), "alice") {
				t.Fatalf("HAProxy gives by %v, and the agent does not know", f.rows)
			}
		}
		now := r.limiter.credits.generation
		if diff := cmp.Diff([]uint32{now - 2, now - 1, now}, f.begun); diff != "" {
			t.Errorf("generations that HAProxy was told (-want +got):\n%s", diff)
		}
		if f.rows[rowGeneration] != now || testutil.ToFloat64(r.metrics.byDefault) != 1 {
			t.Errorf("HAProxy knows %v, and the metric says %v; want generation %d, and 1", f.rows, testutil.ToFloat64(r.metrics.byDefault), now)
		}
	})
}

func TestDefaultCreditIsNotOffered(t *testing.T) {
	for name, file := range map[string]string{
		"patterns":            "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 40}}}\nusers: {'a*': free}\n",
		"exempt patterns":     "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 40}}}\nexempt: {users: ['a*']}\n",
		"one in progress":     "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 40}, concurrent: 1}}\n",
		"no shares":           "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 1MB}}}\n",
		"a dry run":           "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 1MB}, mode: dry-run}}\n",
		"too small for two":   "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 2}}}\n",
		"a class not counted": "version: 1\ndefault_tier: free\ntiers: {free: {requests: {LIST: 10}}}\nclasses: {LIST: {query: [list]}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f, look := newDefaultRig(t, 2, file)
				look(6 * time.Second)
				if len(f.rows) > 0 || r.limiter.credits.byDefault.mayHave(time.Now(), "alice") {
					t.Errorf("HAProxy knows %v, want nothing", f.rows)
				}
			})
		})
	}
}

// HAProxy is told the share that an instance always has: the whole limit, an even part or the tier's
// default share, and other ones when the limits or the number of instances have changed.
func TestSharesByDefault(t *testing.T) {
	const limits = "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 64MB, up: %s}}}\n"
	synctest.Test(t, func(t *testing.T) {
		r, f, look := newDefaultRig(t, 1, fmt.Sprintf(limits, "32MB"))
		f.shares = "1"
		wants := func(what string, down, up uint32) {
			t.Helper()
			look(10 * time.Second)
			if f.rows["~down"] != down || f.rows["~up"] != up || f.rows["~"] != r.limiter.credits.generation {
				t.Errorf("%s: HAProxy knows %v, want shares of %d and %d, of generation %d", what, f.rows, down, up, r.limiter.credits.generation)
			}
		}
		wants("alone", 1_000_000, 500_000)
		r.force(parse(t, fmt.Sprintf(limits, "16MB")))
		wants("other limits", 1_000_000, 250_000)
		r.joined(bus.Registry{Instances: []string{"a", "b"}, Now: time.Now()})
		wants("two instances", 500_000, 125_000)
		r.force(parse(t, fmt.Sprintf(limits, "16MB, default_share: 8MB")))
		wants("a default share", 125_000, 125_000)
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 64MB}}}\n"))
		if wants("down alone", 500_000, 0); len(f.rows) == 0 || f.rows["~up"] != 0 {
			t.Errorf("rows %v", f.rows)
		}
		f.process, f.rows, f.shares = 8, map[string]uint32{}, ""
		if look(6 * time.Second); len(f.rows) > 0 || r.limiter.credits.byDefault.mayHave(time.Now(), "alice") {
			t.Errorf("a process whose configuration keeps no shares knows %v, want nothing", f.rows)
		}
	})
}

// A lone agent admits nobody who may have the whole limit by default before it has taken it back.
func TestAloneAgentWithdrawsDefaultCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, look := newDefaultRig(t, 1, defaultLimits)
		look(8 * time.Second)
		f := r.runtime.(*fakeRuntime)
		f.has("alice", 0, 30, 30, 40)
		if got := r.credited("alice", nil); !got.allowed {
			t.Fatalf("verdict = %+v, want allowed", got)
		}
		if diff := cmp.Diff([]string{"alice"}, f.told()); diff != "" {
			t.Errorf("withdrawn (-want +got):\n%s", diff)
		}
		allowed := 1
		for range 20 {
			if r.credited("alice", nil).allowed {
				allowed++
			}
		}
		if allowed != 10 {
			t.Errorf("allowed %d, want the 10 that HAProxy has left of 40", allowed)
		}
		if got := r.credited("wilma", nil); !got.allowed || len(f.told()) != 1 {
			t.Errorf("verdict of a user with a tier of their own = %+v, want allowed at once", got)
		}
	})
}

// Until HAProxy begins to give credit by default there is nothing to take back.
func TestAloneAgentWaitsForDefaultCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tables, look := newDefaultRig(t, 1, defaultLimits)
		for tables.rows["~from"] == 0 {
			look(offerEvery)
		}
		f := r.runtime.(*fakeRuntime)
		begins := time.Unix(int64(tables.rows["~from"]), 0)
		time.Sleep(time.Until(begins) - time.Millisecond)
		if got := r.credited("alice", nil); !got.allowed || len(f.told()) > 0 {
			t.Errorf("just before: %+v, taken back from %v; want allowed, and nobody", got, f.told())
		}
		time.Sleep(time.Until(begins))
		if got := r.credited("bob", nil); !got.allowed || len(f.told()) != 1 {
			t.Errorf("from then on: %+v, taken back from %v; want allowed, and bob", got, f.told())
		}
	})
}

// Whom a lone agent has taken credit back from is asked about until they are given credit: at once,
// without a withdrawal for each question, for HAProxy gives them none by itself.
func TestCreditIsTakenBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, look := newDefaultRig(t, 1, defaultLimits)
		look(8 * time.Second)
		f := r.runtime.(*fakeRuntime)
		given := false
		for second := 0; second < 8 && !given; second++ {
			got := r.credited("alice", nil)
			if !got.allowed {
				t.Errorf("refused after %d s, want allowed", second)
			}
			given = got.credit != nil
			time.Sleep(time.Second)
			r.limiter.update(r.limiter.forgetWithdrawals)
		}
		if n := len(f.told()); n != 1 || !given {
			t.Errorf("withdrawn %d times, and given credit %v; want once, and given again", n, given)
		}
	})
}

// A new process of HAProxy has no entries that say who shall have no credit. It gets them before it
// has any credit by default. Nor does it know of a withdrawal whose answer, which is on its way when
// HAProxy is replaced, is the old process'.
func TestNewProcessHearsOfWithdrawals(t *testing.T) {
	for _, onItsWay := range []bool{false, true} {
		t.Run(fmt.Sprint("an answer is on its way ", onItsWay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newProcessHearsOfWithdrawals(t, onItsWay) })
		})
	}
}

func newProcessHearsOfWithdrawals(t *testing.T, onItsWay bool) {
	r, f, look := newDefaultRig(t, 2, defaultLimits)
	look(8 * time.Second)
	runtime := r.runtime.(*fakeRuntime)
	hot := func() {
		r.applyPolicies([]policy.Message{policy.Hot{Key: ratelimit.Key{Class: "GET", User: "alice"}, Until: time.Now().Add(hotFor), Instances: 2}})
	}
	stayHot := func(seconds int) {
		for range seconds {
			hot()
			look(time.Second)
		}
	}
	replace := func() {
		f.process, f.rows = 8, map[string]uint32{}
		look(offerEvery) // the agent finds out
		runtime.fail(errors.New("no socket"))
	}
	if onItsWay {
		replaced := make(chan struct{})
		runtime.behind = func() { <-replaced }
		hot()
		synctest.Wait() // HAProxy has withdrawn
		replace()
		close(replaced)
		synctest.Wait()
	} else {
		stayHot(1)
		runtime.fail(errors.New("no socket"))
		replace()
	}
	stayHot(5)
	if got := runtime.told(); len(got) != 1 || len(f.rows) > 0 {
		t.Fatalf("withdrawn from %v, and HAProxy knows %v, want alice once and nothing", got, f.rows)
	}
	runtime.fail(nil)
	stayHot(5)
	if diff := cmp.Diff([]string{"alice", "alice"}, runtime.told()); diff != "" || f.rows["~"] == 0 {
		t.Errorf("withdrawn (-want +got):\n%sand HAProxy knows %v, want a generation", diff, f.rows)
	}
}

// A new agent takes back at once what the one before told HAProxy, which knows no better until it is
// taught the new generation.
func TestOfferOfTheAgentBeforeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, look := newDefaultRig(t, 2, defaultLimits)
		f.rows = map[string]uint32{"~": 17, "~0": 7}
		look(offerEvery)
		if len(f.rows) > 0 {
			t.Errorf("HAProxy knows %v, want nothing", f.rows)
		}
		look(8 * time.Second)
		if f.rows["~"] == 0 || f.rows["~"] == 17 {
			t.Errorf("HAProxy knows %v, want a generation of this agent", f.rows)
		}
	})
}

const defaultPlaces = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 40}, concurrent: 20}, staff: {}}\nusers: {wilma: staff}\n"

// by7 is a question of the process that has the tables, with what it says of the places of a user.
func by7(here, places int) func(*question) {
	return func(q *question) {
		q.seen.Process = 7
		if places > 0 {
			q.credit.places = concurrency.Places{Lent: true, Here: here, Places: places}
		}
	}
}

// Before HAProxy gives places by default, those have an entry that says they have none whom the core
// knows without. From then on everyone else is taken for one who uses them, until HAProxy has
// ended to give any and has said who does.
func TestPlacesByDefaultAreOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f, look := newDefaultRig(t, 1, defaultPlaces)
		runtime := r.runtime.(*fakeRuntime)
		look(4 * time.Second)
		if len(f.rows) > 0 {
			t.Fatalf("HAProxy knows %v, want nothing before it is known which process asks", f.rows)
		}
		runtime.fail(errors.New("no socket"))
		look(1100 * time.Millisecond) // it gives no credit any more
		asked := func(user string, here, places int) {
			t.Helper()
			if got := r.credited(user, by7(here, places)); !got.allowed {
				t.Errorf("%s, with %d in %d places, is refused", user, here, places)
			}
		}
		asked("alice", 0, 0)
		look(900 * time.Millisecond) // she is remembered for a second
		if len(f.rows) > 0 {
			t.Fatalf("HAProxy knows %v, want nothing while alice has no entry", f.rows)
		}
		runtime.fail(nil)
		look(2 * time.Second)
		if diff := cmp.Diff([]string{"alice"}, runtime.told()); diff != "" || f.rows["~places"] != 6 || f.rows["~"] != r.limiter.credits.generation {
			t.Fatalf("withdrawn (-want +got):\n%sand HAProxy knows %v, want 6 places", diff, f.rows)
		}

		// Bob has places in use that nobody was asked about: what is above 20 in sum is refused.
		look(4 * time.Second)
		runtime.has("bob", 4, 4, 4, 40)
		allowed := 0
		for range 20 {
			if r.credited("bob", by7(0, 0)).allowed {
				allowed++
			}
		}
		if allowed != 16 {
			t.Errorf("allowed %d requests of bob beside the 4 that are in progress, want 16", allowed)
		}

		// Another generation: who has requests in progress is known before it is forgotten
		// that everyone may.
		f.inUse = map[string]int{"carol": 5}
		r.limiter.update(func(time.Time) { r.nextGeneration() })
		look(3 * time.Second)
		inUse := func(user string) (n int) {
			r.limiter.update(func(time.Time) { n = r.limiter.allCores()[0].slots.InProgress(user) })
			return n
		}
		var over int64
		r.limiter.update(func(time.Time) { over = r.limiter.allCores()[0].slots.DefaultOver() })
		if over != 7 || inUse("carol") != 0 {
			t.Fatalf("process %d has ended to give places, and carol has %d in progress; want 7 and 0 as long as HAProxy renews what was", over, inUse("carol"))
		}
		f.generation = r.limiter.credits.generation
		look(offerAfter + 2*offerEvery)
		if inUse("carol") != 5 {
			t.Errorf("carol has %d in progress, want 5", inUse("carol"))
		}
		look(4 * time.Second)
		if f.rows["~"] != f.generation {
			t.Errorf("HAProxy knows %v, want the new generation", f.rows)
		}
	})
}
