package spoa

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// What polygen wants to know is said when HAProxy has acknowledged that it refuses,
// whatever came first, and once.
func TestConfirm(t *testing.T) {
	get := ratelimit.Key{Class: "GET", User: "u"}
	type step = func(r *rig, second int64)
	var (
		asked    = func(r *rig, second int64) { r.applyPolicies(bus.Policies{policy.Confirm{Key: get, Second: second}}) }
		throttle = func(r *rig, second int64) {
			r.applyPolicies(bus.Policies{policy.Throttle{Key: get, Second: second, Limit: 10}})
		}
		spent = func(r *rig, _ int64) {
			for range 11 {
				r.ask("u", "GET")
			}
		}
		begun = func(r *rig, _ int64) { r.ask("u", "GET") }
		later = func(r *rig, _ int64) { time.Sleep(time.Second) }
		old   = func(r *rig, second int64) { asked(r, second-1) }
		other = func(r *rig, second int64) {
			r.applyPolicies(bus.Policies{policy.Confirm{Key: ratelimit.Key{Class: "GET", User: "u", Window: limits.Minute}, Second: second}})
		}
	)
	for _, tt := range []struct {
		name  string
		steps []step
		want  int // confirmations
	}{
		{"nobody asked", []step{throttle}, 0},
		{"a user without requests here", []step{asked, throttle}, 1},
		{"who has spent their tokens", []step{spent, asked, throttle}, 1},
		{"whom HAProxy refuses already", []step{spent, throttle, asked}, 1},
		{"asked twice", []step{spent, throttle, asked, asked}, 2},
		{"taught twice", []step{asked, throttle, throttle}, 1},
		{"one with tokens left", []step{begun, asked, throttle}, 0},
		{"until they are spent", []step{begun, asked, throttle, spent}, 1},
		{"the window is over", []step{asked, later, throttle}, 0},
		{"the one before", []step{old, throttle}, 0},
		{"another window of theirs", []step{other, throttle}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil).run()
				var acknowledged []func()
				r.teachThen = func(_, _ string, _ peers.Values, _ time.Duration, then func()) {
					if then != nil {
						acknowledged = append(acknowledged, then)
					}
				}
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
				second := time.Now().Unix()
				for _, s := range tt.steps {
					s(r, second)
				}
				if len(r.confirmations.answered) > 0 {
					t.Error("confirmed before HAProxy had acknowledged")
				}
				time.Sleep(7 * time.Millisecond)
				for _, then := range acknowledged {
					then()
				}
				if len(r.confirmations.answered) != tt.want {
					t.Fatalf("%d confirmations, want %d", len(r.confirmations.answered), tt.want)
				}
				for range tt.want {
					want := bus.Confirmed{Instance: r.options.Instance, At: r.clock.Now(), Second: second, Key: get}
					if got := <-r.confirmations.answered; got != want {
						t.Errorf("confirmed %+v, want %+v", got, want)
					}
				}
				if tt.want > 0 && len(r.confirmations.asked) != 0 {
					t.Errorf("still to be confirmed: %v", r.confirmations.asked)
				}
			})
		})
	}
}

// Who asks for too much, or never hears an answer, fills nothing.
func TestConfirmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		now := time.Now()
		for i := range 3 * maxConfirms {
			r.confirm(now, policy.Confirm{Key: ratelimit.Key{Class: "GET", User: string(rune('a' + i))}, Second: now.Unix()})
		}
		if len(r.confirmations.asked) != maxConfirms {
			t.Errorf("%d are to be confirmed, want %d", len(r.confirmations.asked), maxConfirms)
		}
		r.confirm(now.Add(time.Second), policy.Confirm{Key: ratelimit.Key{Class: "GET", User: "z"}, Second: now.Unix() + 1})
		if len(r.confirmations.asked) != 1 {
			t.Errorf("%d are to be confirmed in the next second, want 1", len(r.confirmations.asked))
		}
		then := slices.Repeat([]func(){r.confirming(ratelimit.TableEntry{Key: ratelimit.Key{Class: "GET", User: "z"}, WindowStart: now.Unix() + 1})}, 3*maxConfirms)
		for _, say := range then {
			say() // must not block
		}
	})
}
