package concurrency_test

import (
	"strconv"
	"testing"
	"time"
)

// TestForgetPlaces drops places of which HAProxy's table has no entry any more, and no others.
func TestForgetPlaces(t *testing.T) {
	const minute = 60_000 // ms
	for _, tt := range []struct {
		name    string
		process int64
		began   int // the read, in ms; it ends a second later
		shown   bool
		before  func(*rig)
		want    int // users whose places are remembered
	}{
		{"the table has no entry", 1, 11 * minute, false, nil, 0},
		{"it has one", 1, 11 * minute, true, nil, 1},
		{"one may have been made behind the read", 1, 9 * minute, false, nil, 1},
		{"it is another process' table", 2, 11 * minute, false, nil, 1},
		{"the process is not known", 0, 11 * minute, false, nil, 1},
		{"places of a process that was replaced may be in use", 1, 11 * minute, false, func(r *rig) { r.Replaced(ms(10 * minute)) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			limit := 10
			r := newCreditRig(t, 1, &limit)
			r.Start(ms(0), "u", 10, count{Process: 1}, places{})
			r.Lend(ms(0), "u")
			r.Progress(ms(1), "u", 10, count{Tracked: 1, Active: 0})
			r.rest(100)
			if got := r.Stats().Resting; got != 1 {
				t.Fatalf("%d users are at rest, want one", got)
			}
			r.Natives(ms(5*minute), "u", 2)
			if tt.before != nil {
				tt.before(r)
			}
			for calls := 1; !r.ForgetPlaces(ms(tt.began+1000), tt.process, ms(tt.began), func(string) bool { return tt.shown }); calls++ {
				if calls > 1000 {
					t.Fatal("there is no last call")
				}
			}
			if got := r.Stats().Resting; got != tt.want {
				t.Errorf("%d users are at rest, want %d", got, tt.want)
			}
			if want := 2 * tt.want; tt.before == nil && r.Stats().InProgress != want {
				t.Errorf("in progress = %d, want %d", r.Stats().InProgress, want)
			}
		})
	}
}

// TestForgetPlacesOfMany looks at some of many users in each call.
func TestForgetPlacesOfMany(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	const users = 3500
	for i := range users {
		name := "user" + strconv.Itoa(i)
		r.Start(ms(0), name, 10, count{Process: 1}, places{})
		r.Lend(ms(0), name)
		r.Progress(ms(1), name, 10, count{Tracked: 1, Active: 0})
	}
	r.rest(100)
	if got := r.Stats().Resting; got != users {
		t.Fatalf("%d users are at rest, want %d", got, users)
	}
	began, most := ms(int(11*time.Minute/time.Millisecond)), 0
	for last := false; !last; {
		before := r.Stats().Resting
		last = r.ForgetPlaces(began, 1, began, func(string) bool { return false })
		most = max(most, before-r.Stats().Resting)
	}
	if left := r.Stats().Resting; left != 0 || most > 1000 {
		t.Errorf("%d users are left, and %d were dropped at once; want none, and few", left, most)
	}
}
