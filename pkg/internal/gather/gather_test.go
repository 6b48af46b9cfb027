package gather

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// rig sends calls that are names, whose replies are the names.
type rig struct {
	*Calls[string, string]
	t       *testing.T
	release chan struct{} // lets a group go, and all of them when it is closed
	callers sync.WaitGroup

	mu    sync.Mutex
	sizes []int // of the groups that were sent
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, release: make(chan struct{})}
	r.Calls = New(func(_ context.Context, calls []string) ([]string, error) {
		r.mu.Lock()
		r.sizes = append(r.sizes, len(calls))
		r.mu.Unlock()
		<-r.release
		if slices.Contains(calls, "fails") {
			return nil, errSent
		}
		return calls, nil
	})
	return r
}

var errSent = errors.New("the group could not be sent")

// ask makes a call, and returns when it is on its way or waits.
func (r *rig) ask(ctx context.Context, name string, want error) {
	r.callers.Go(func() {
		got, err := r.Do(ctx, name)
		if !errors.Is(err, want) || want == nil && got != name {
			r.t.Errorf("Do(%s) = %q, %v, want it and %v", name, got, err, want)
		}
	})
	synctest.Wait()
}

// fill puts as many groups on their way as can be, each of one call.
func (r *rig) fill() {
	for i := range maxSending {
		r.ask(r.t.Context(), fmt.Sprint("first", i), nil)
		<-time.After(pause)
	}
}

func (r *rig) sent(want ...int) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.sizes, want) {
		r.t.Errorf("groups of %v calls were sent, want %v", r.sizes, want)
	}
}

// Calls that come up while others are on their way share the next group, each has its own
// reply, and a call whose caller has given up is not sent.
func TestCallsShareGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.callers.Wait()
		r.fill()
		alone, end := context.WithCancel(t.Context())
		r.ask(alone, "given up, alone in its group", context.Canceled)
		end()
		synctest.Wait()
		some, end := context.WithCancel(t.Context())
		r.ask(some, "given up", context.Canceled)
		for i := range 5 {
			r.ask(t.Context(), fmt.Sprint("shares", i), nil)
		}
		end()
		synctest.Wait()
		r.release <- struct{}{} // one of the first
		r.sent(append(slices.Repeat([]int{1}, maxSending), 5)...)
		close(r.release)
	})
}

// A group waits for more calls if another one has just been sent, but seldom where calls come one after another.
func TestCallsThatComeFastWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.callers.Wait()
		close(r.release)
		r.ask(t.Context(), "first", nil)
		r.sent(1)
		for i := range 3 {
			r.ask(t.Context(), fmt.Sprint("fast", i), nil)
		}
		r.sent(1)
		<-time.After(pause)
		r.sent(1, 3)
		began := time.Now()
		for i := range 2 * (1 + unpaused) {
			if _, err := r.Do(t.Context(), fmt.Sprint("one after another", i)); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 2*pause {
			t.Errorf("%d calls one after another took %v, want %v", 2*(1+unpaused), took, 2*pause)
		}
		// The pause is not in vain any more.
		r.ask(t.Context(), "one", nil)
		r.ask(t.Context(), "another one", nil)
		<-time.After(pause)
		r.sent(slices.Concat([]int{1, 3}, slices.Repeat([]int{1}, 2*(1+unpaused)), []int{2})...)
	})
}

// Callers that give up while their group waits for more calls leave its turn to others.
func TestGivingUpInThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.callers.Wait()
		close(r.release)
		r.ask(t.Context(), "first", nil)
		for range maxSending + 1 {
			ctx, end := context.WithCancel(t.Context())
			r.ask(ctx, "given up in the pause", context.Canceled)
			end()
			synctest.Wait()
		}
		<-time.After(pause)
		r.ask(t.Context(), "later", nil)
		r.sent(1, 1)
	})
}

// An error of a group is that of each of its calls.
func TestErrorOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.callers.Wait()
		r.fill()
		r.ask(t.Context(), "fails", errSent)
		r.ask(t.Context(), "with it", errSent)
		close(r.release)
		<-time.After(pause)
		r.ask(t.Context(), "the next one", nil)
	})
}
