package slotstest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// random compares the back end with jobs.NewMemory, which is the simplest there is, after
// every call of a random history. Where time can be advanced, leases end in it. Each
// history has users of its own, which sort behind those of the histories before it.
func random(s *suite) {
	history := 0
	rapid.Check(s.T, func(t *rapid.T) {
		history++
		h := &play{suite: s, t: t, prefix: fmt.Sprintf("%08d", history), before: fmt.Sprintf("%08d~", history-1)}
		h.model = jobs.NewMemory(func() time.Time { return h.now })
		actions := map[string]func(*rapid.T){
			"acquire": h.acquire, "acquire too": h.acquire, "acquire also": h.acquire,
			"renew": h.renewSome, "release": h.release, "release too": h.release,
			"reserve free": h.reserveFree, "forget": h.forget, "look": h.readAll,
		}
		if s.Advance != nil {
			actions["time"] = h.passTime
		}
		t.Repeat(actions)
	})
}

type play struct {
	*suite
	t      *rapid.T
	prefix string // of the history's users
	before string // sorts between these and those of the histories before
	model  jobs.Slots
	now    time.Time // the model's
}

func (h *play) anyUser() string {
	return h.prefix + rapid.SampledFrom([]string{"", ":", "a"}).Draw(h.t, "user")
}

func (h *play) anyClaim() jobs.Claim {
	return jobs.Claim{
		Job: jobs.Job{
			User:  h.anyUser(),
			ID:    rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "\x00", ":"}).Draw(h.t, "job"),
			Queue: rapid.SampledFrom([]string{"", "q", "r"}).Draw(h.t, "queue"),
		},
		Holder: rapid.SampledFrom([]string{"x", "y"}).Draw(h.t, "holder"),
	}
}

func (h *play) anyLimits() jobs.Limits {
	l := jobs.Limits{Total: rapid.IntRange(1, 4).Draw(h.t, "total")}
	if rapid.Bool().Draw(h.t, "has queues") {
		l.Queues = map[string]int{"q": rapid.IntRange(1, 3).Draw(h.t, "q")}
		if rapid.Bool().Draw(h.t, "has more") {
			l.Queues[""] = rapid.IntRange(1, 5).Draw(h.t, "unnamed")
		}
	}
	l.EachQueue = rapid.IntRange(0, 3).Draw(h.t, "each queue")
	return l
}

func (h *play) anyDuration() time.Duration {
	if h.Advance == nil {
		return long
	}
	return time.Duration(rapid.SampledFrom([]int{1, 5, 20, 3_600_000}).Draw(h.t, "ms")) * time.Millisecond
}

func (h *play) acquire(*rapid.T) {
	c, l, lease, park := h.anyClaim(), h.anyLimits(), h.anyDuration(), rapid.IntRange(0, 3).Draw(h.t, "park") > 0
	compare(h, "Acquire", func(slots jobs.Slots) (jobs.Verdict, error) { return slots.Acquire(h.ctx, c, l, lease, park) })
}

func (h *play) renewSome(*rapid.T) {
	claims := make([]jobs.Claim, rapid.IntRange(0, 5).Draw(h.t, "claims"))
	for i := range claims {
		claims[i] = h.anyClaim()
	}
	lease := h.anyDuration()
	compare(h, "Renew", func(slots jobs.Slots) ([]jobs.Claim, error) {
		lost, err := slots.Renew(h.ctx, claims, lease)
		sortClaims(lost)
		return lost, err
	})
}

func (h *play) release(*rapid.T) {
	c, l, reserve := h.anyClaim(), h.anyLimits(), h.anyDuration()
	compare(h, "Release", func(slots jobs.Slots) ([]jobs.Job, error) { return slots.Release(h.ctx, c, l, reserve) })
}

func (h *play) reserveFree(*rapid.T) {
	user, l, reserve := h.anyUser(), h.anyLimits(), h.anyDuration()
	compare(h, "ReserveFree", func(slots jobs.Slots) ([]jobs.Job, error) { return slots.ReserveFree(h.ctx, user, l, reserve) })
}

func (h *play) forget(*rapid.T) {
	j := h.anyClaim().Job
	compare(h, "Forget", func(slots jobs.Slots) (any, error) { return nil, slots.Forget(h.ctx, j) })
}

func (h *play) readAll(*rapid.T) {
	user := h.anyUser()
	compare(h, "User", func(slots jobs.Slots) (jobs.Usage, error) {
		u, err := slots.User(h.ctx, user)
		// Those who hold slots are in no particular order.
		slices.SortFunc(u.Held, func(a, b jobs.Slot) int { return cmp.Compare(a.ID, b.ID) })
		for _, list := range [][]jobs.Slot{u.Held, u.Reserved} {
			for i := range list {
				if h.Advance == nil { // what is left cannot be told
					list[i].Left = 0
				}
			}
		}
		return u, err
	})
	// Beside somebody who has nothing.
	compare(h, "Taken", func(slots jobs.Slots) ([]jobs.Slot, error) {
		taken, err := slots.Taken(h.ctx, []string{h.prefix + "nobody", user})
		slices.SortFunc(taken, func(a, b jobs.Slot) int { return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.ID, b.ID)) })
		for i := range taken {
			if h.Advance == nil {
				taken[i].Left = 0
			}
		}
		return taken, err
	})
	after, n := h.before, rapid.IntRange(1, 4).Draw(h.t, "page")
	if rapid.Bool().Draw(h.t, "after a user") {
		after = h.anyUser()
	}
	compare(h, "Waiting", func(slots jobs.Slots) ([]string, error) { return slots.Waiting(h.ctx, after, n) })
}

// compare makes a call of the model and of the back end.
func compare[T any](h *play, method string, call func(jobs.Slots) (T, error)) {
	want, invalid := call(h.model)
	got, err := call(h.Slots)
	// Nobody is promised whether an empty list is nil.
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || invalid != nil || diff != "" {
		h.t.Fatalf("%s: %v, and of the model %v (-want +got):\n%s", method, err, invalid, diff)
	}
}

func (h *play) passTime(*rapid.T) {
	d := time.Duration(rapid.SampledFrom([]int{1, 4, 15, 100}).Draw(h.t, "ms")) * time.Millisecond
	h.Advance(d)
	h.now = h.now.Add(d)
}
