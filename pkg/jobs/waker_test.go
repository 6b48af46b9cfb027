package jobs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fakeTable answers to Wake as a queue would.
type fakeTable struct {
	noQueue
	answers map[string][]WakeResult // the next first; the last one goes on
	fails   int                     // so many calls fail before
	calls   map[string]int
}

func (f *fakeTable) Wake(_ context.Context, ids []string) (map[string]WakeResult, error) {
	if f.fails > 0 {
		f.fails--
		return nil, errors.New("no answer")
	}
	results := map[string]WakeResult{}
	for _, id := range ids {
		answers := f.answers[id]
		results[id] = answers[min(f.calls[id], len(answers)-1)]
		f.calls[id]++
	}
	return results, nil
}

func TestWaker(t *testing.T) {
	const gone, early, awake, done, foreign = WakeGone, WakeEarly, WakeAwake, WakeDone, WakeForeign
	for _, c := range []struct {
		name    string
		table   fakeTable
		wake    []string       // jobs that a slot is reserved for
		calls   map[string]int // how often each was tried, in the end
		slots   []string       // jobs that have a reservation in the end
		results map[string]int // by the metric's label
	}{
		{
			name:  "a job that is parked",
			table: fakeTable{answers: map[string][]WakeResult{"1": {done}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 1}, slots: []string{"1"}, results: map[string]int{"done": 1},
		},
		{
			name:  "a job that its queue has not written yet is tried again",
			table: fakeTable{answers: map[string][]WakeResult{"1": {early, early, early, done}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 4}, slots: []string{"1"}, results: map[string]int{"early": 3, "done": 1},
		},
		{
			// At once, and then each 25 ms until 2 s are over.
			name:  "a job that its queue never writes is left to the sweep",
			table: fakeTable{answers: map[string][]WakeResult{"1": {early}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 81}, slots: []string{"1"}, results: map[string]int{"early": 81},
		},
		{
			name:  "a database that does not answer is asked again",
			table: fakeTable{fails: 2, answers: map[string][]WakeResult{"1": {done}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 1}, slots: []string{"1"}, results: map[string]int{"error": 2, "done": 1},
		},
		{
			name:  "the slot of a job that is gone goes to the next in line",
			table: fakeTable{answers: map[string][]WakeResult{"1": {gone}, "2": {done}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 1, "2": 1}, slots: []string{"2"}, results: map[string]int{"gone": 1, "done": 1},
		},
		{
			name:  "a job that is available needs nothing",
			table: fakeTable{answers: map[string][]WakeResult{"1": {awake}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 1}, slots: []string{"1"}, results: map[string]int{"awake": 1},
		},
		{
			name:  "jobs of another queue are left alone",
			table: fakeTable{answers: map[string][]WakeResult{"1": {foreign}}},
			wake:  []string{"1"}, calls: map[string]int{"1": 1}, slots: []string{"1"}, results: map[string]int{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewMemory(nil)
				one, long := Limits{Total: 1}, time.Hour
				for i, job := range []string{"0", "1", "2"} { // the first has the slot, the others wait
					if _, err := slots.Acquire(t.Context(), claimOf("ann", job, string(rune('a'+i))), one, long, true); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := slots.Release(t.Context(), claimOf("ann", "0", "a"), one, long); err != nil {
					t.Fatal(err)
				}
				c.table.calls = map[string]int{}
				runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: &c.table})
				waker := runner.waker
				running, stop := context.WithCancel(t.Context())
				defer stop()
				go waker.runRetries(running)

				var reserved []Job
				for _, job := range c.wake {
					reserved = append(reserved, claimOf("ann", job, "").Job)
				}
				waker.wakeReserved(t.Context(), reserved)
				time.Sleep(time.Second * 4)
				synctest.Wait()
				for id, want := range c.calls {
					if got := c.table.calls[id]; got != want {
						t.Errorf("job %s was tried %d times, want %d", id, got, want)
					}
				}
				left, err := slots.User(t.Context(), "ann")
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, job := range left.Reserved {
					names = append(names, job.ID)
				}
				if !slices.Equal(names, c.slots) {
					t.Errorf("slots are reserved for %q, want %q", names, c.slots)
				}
				for _, result := range []string{"gone", "early", "awake", "done", "foreign", "error"} {
					if got := testutil.ToFloat64(runner.metrics.Wakes.WithLabelValues(result)); got != float64(c.results[result]) {
						t.Errorf("%v wake-ups are counted as %s, want %d", got, result, c.results[result])
					}
				}
				if tries := len(waker.retries); tries != 0 {
					t.Errorf("%d jobs are to be tried again, want 0", tries)
				}
			})
		})
	}
}
