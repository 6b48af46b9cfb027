package slotstest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// random compares the back end with the model after every call of a random history.
// Where time can be advanced, leases end in it. Each history has users of its own,
// which sort behind those of the histories before it.
func random(s *suite) {
	history := 0
	rapid.Check(s.T, func(t *rapid.T) {
		history++
		h := &play{suite: s, t: t, prefix: fmt.Sprintf("%08d", history), before: fmt.Sprintf("%08d~", history-1)}
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
	model  model
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
	return l
}

func (h *play) anyDuration() time.Duration {
	if h.Advance == nil {
		return long
	}
	return time.Duration(rapid.SampledFrom([]int{1, 5, 20, 3_600_000}).Draw(h.t, "ms")) * time.Millisecond
}

func (h *play) acquire(t *rapid.T) {
	c, l, lease, park := h.anyClaim(), h.anyLimits(), h.anyDuration(), rapid.IntRange(0, 3).Draw(h.t, "park") > 0
	got, err := h.Slots.Acquire(h.ctx, c, l, lease, park)
	if want := h.model.acquire(c, l, lease, park); err != nil || got != want {
		t.Fatalf("Acquire(%+v, %v, %v, %v) = %+v, %v, want %+v", c, l, lease, park, got, err, want)
	}
}

func (h *play) renewSome(t *rapid.T) {
	claims := make([]jobs.Claim, rapid.IntRange(0, 5).Draw(h.t, "claims"))
	for i := range claims {
		claims[i] = h.anyClaim()
	}
	lease := h.anyDuration()
	got, err := h.Slots.Renew(h.ctx, claims, lease)
	if want := h.model.renewLeases(claims, lease); err != nil || !slices.Equal(got, want) {
		t.Fatalf("Renew(%+v, %v) = %+v, %v, want %+v", claims, lease, got, err, want)
	}
}

func (h *play) release(t *rapid.T) {
	c, l, reserve := h.anyClaim(), h.anyLimits(), h.anyDuration()
	got, err := h.Slots.Release(h.ctx, c, l, reserve)
	if want := h.model.release(c, l, reserve); err != nil || !slices.Equal(got, want) {
		t.Fatalf("Release(%+v, %v, %v) = %q, %v, want %q", c, l, reserve, got, err, want)
	}
}

func (h *play) reserveFree(t *rapid.T) {
	user, l, reserve := h.anyUser(), h.anyLimits(), h.anyDuration()
	got, err := h.Slots.ReserveFree(h.ctx, user, l, reserve)
	if want := h.model.reserveFree(user, l, reserve); err != nil || !slices.Equal(got, want) {
		t.Fatalf("ReserveFree(%q, %v, %v) = %q, %v, want %q", user, l, reserve, got, err, want)
	}
}

func (h *play) forget(t *rapid.T) {
	j := h.anyClaim().Job
	if err := h.Slots.Forget(h.ctx, j); err != nil {
		t.Fatalf("Forget(%q) = %v", j, err)
	}
	h.model.forget(j)
}

func (h *play) readAll(t *rapid.T) {
	user := h.anyUser()
	reserved, err := h.Slots.Reserved(h.ctx, user)
	if want := h.model.reservedOf(user); err != nil || !slices.Equal(reserved, want) {
		t.Fatalf("Reserved(%q) = %q, %v, want %q", user, reserved, err, want)
	}
	u, err := h.Slots.User(h.ctx, user)
	want := h.model.usageOf(user)
	if h.Advance == nil { // what is left cannot be told
		for _, slots := range [][]jobs.Slot{u.Held, u.Reserved, want.Held, want.Reserved} {
			for i := range slots {
				slots[i].Left = 0
			}
		}
	}
	if diff := cmp.Diff(sorted(want), sorted(u)); err != nil || diff != "" {
		t.Fatalf("User(%q): %v (-want +got):\n%s", user, err, diff)
	}
	after, n := h.before, rapid.IntRange(1, 4).Draw(h.t, "page")
	if rapid.Bool().Draw(h.t, "after a user") {
		after = h.anyUser()
	}
	users, err := h.Slots.Waiting(h.ctx, after, n)
	if want := h.model.waiting(after, n); err != nil || !slices.Equal(users, want) {
		t.Fatalf("Waiting(%q, %d) = %q, %v, want %q", after, n, users, err, want)
	}
}

func (h *play) passTime(*rapid.T) {
	d := time.Duration(rapid.SampledFrom([]int{1, 4, 15, 100}).Draw(h.t, "ms")) * time.Millisecond
	h.Advance(d)
	h.model.now += d
}
