package riverqos

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A history of what a process knows of flows.
func TestKnownFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known knownFlows
		inserts := func(n int, flows ...flow) (all []*newJobs) {
			for _, f := range flows {
				all = append(all, &newJobs{sizedFlow: sizedFlow{f, 9}, params: insertParams(slices.Repeat([]string{"x"}, n)...)})
			}
			return all
		}
		reads := func(flows []flow, err error) {
			known.readHeld(time.Now(), func(context.Context, int) ([]flow, error) { return flows, err })
			synctest.Wait()
		}
		for _, step := range []struct {
			name string
			do   func()
			new  []*newJobs
			want bool
		}{
			{"nothing is known", func() {}, inserts(1, ann), false},
			{"nobody holds jobs back", func() { reads(nil, nil) }, inserts(1, ann), true},
			{"a second one within a second", func() {}, inserts(1, ann), false},
			{"two at once", func() {}, inserts(2, bob), false},
			{"one of two flows has no room, and the other keeps its own", func() {}, inserts(1, bob, ann), false},
			{"that room", func() {}, inserts(1, bob), true},
			{"a count finds room for three", func() { known.noteCount(ann, 3, false, time.Now()) }, inserts(2, ann), true},
			{"one is left", func() {}, inserts(2, ann), false},
			{"that one", func() {}, inserts(1, ann), true},
			{"what is known is a second old", func() { time.Sleep(knowFor + 1) }, inserts(1, ann), true},
			{"a count finds jobs held back", func() { known.noteCount(ann, 0, true, time.Now()); time.Sleep(knowFor / 2) }, inserts(1, ann), false},
			{"they were too late to be read", func() { reads(nil, nil); time.Sleep(knowFor + 1); reads(nil, nil) }, inserts(1, ann), false},
			{"they are gone", func() { time.Sleep(holdFor); reads(nil, nil) }, inserts(1, ann), true},
			{"another process holds some back", func() { time.Sleep(knowFor + 1); reads([]flow{ann}, nil) }, inserts(1, ann), false},
			{"others are not concerned", func() {}, inserts(1, bob), true},
			{"a reading fails", func() { time.Sleep(knowFor + 1); reads(nil, errors.New("no answer")); time.Sleep(knowFor) }, inserts(1, bob), false},
			{"too many hold jobs back", func() { time.Sleep(knowFor + 1); reads(make([]flow, maxKnown), nil) }, inserts(1, bob), false},
			{"few do", func() { time.Sleep(knowFor + 1); reads(nil, nil) }, inserts(1, bob), true},
			{"nobody has read for long", func() { time.Sleep(3 * knowFor) }, inserts(1, bob), false},
		} {
			step.do()
			if got := known.take(step.new, time.Now()); got != step.want {
				t.Errorf("%s: take() = %v, want %v", step.name, got, step.want)
			}
		}
		for i := range maxKnown + 5 {
			known.note(flow{"user", string(rune(i))}, knownRoom{})
		}
		if len(known.rooms) > maxKnown {
			t.Errorf("%d flows are remembered, want %d at most", len(known.rooms), maxKnown)
		}
	})
}

// Those that end while a call is under way share the next one, and all wait for it.
func TestEndsShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newEndsQueue()
		var calls [][]int64
		free := make(chan struct{})
		var ended sync.WaitGroup
		end := func(id int64) {
			ended.Go(func() {
				queue.share(t.Context(), endedAttempt{attempt: attempt{id: id}}, func(_ context.Context, all []endedAttempt) {
					var ids []int64
					for _, ended := range all {
						ids = append(ids, ended.id)
					}
					slices.Sort(ids)
					calls = append(calls, ids)
					<-free
				})
			})
			synctest.Wait()
		}
		for id := range int64(4) {
			end(id)
		}
		if want := [][]int64{{0}}; !slices.EqualFunc(calls, want, slices.Equal[[]int64]) {
			t.Errorf("calls = %v, want %v", calls, want)
		}
		close(free)
		ended.Wait()
		if want := [][]int64{{0}, {1, 2, 3}}; !slices.EqualFunc(calls, want, slices.Equal[[]int64]) {
			t.Errorf("calls = %v, want %v", calls, want)
		}
	})
}
