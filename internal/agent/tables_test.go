package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

func TestLearn(t *testing.T) {
	said := func(table, user string, tracked, active uint64) peers.Update {
		return peers.Update{Table: table, Key: user, Values: peers.Values{peers.HTTPReqCnt: tracked, peers.ConnCur: active}}
	}
	long := strings.Repeat("x", maxUser+1)
	for _, tt := range []struct {
		name   string
		limits string // "" for none yet
		update peers.Update
		want   int // in progress
	}{
		{"of a user nobody asked about", slotLimits, said("/active", "alice", 5, 2), 2},
		{"more than the limit", slotLimits, said("/active", "alice", 50, 20), 20},
		{"nothing in progress", slotLimits, said("/active", "alice", 5, 0), 0},
		{"more than there ever were", slotLimits, said("/active", "alice", 2, 5), 0},
		{"of one without a limit", slotLimits, said("/active", "staff", 5, 2), 0},
		{"of another table", slotLimits, said("/block", "alice", 5, 2), 0},
		{"of a name that is none", slotLimits, said("/active", "al\nice", 5, 2), 0},
		{"of a name that is too long", slotLimits, said("/active", long, 5, 2), 0},
		{"of no name", slotLimits, said("/active", "", 5, 2), 0},
		{"before there are limits", "", said("/active", "alice", 5, 2), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.limiter.inForce.set.Store(nil)
			if tt.limits != "" {
				r.limiter.inForce.set.Store(parse(t, tt.limits))
			}
			r.learnProgress(tt.update)
			if got := r.inProgress(tt.update.Key); got != tt.want {
				t.Errorf("in progress after learn(%+v) = %d, want %d", tt.update, got, tt.want)
			}
		})
	}
}

// What becomes of what is in progress, when sessions end and begin. Before, there
// are three. A millisecond is between two events.
func TestSessions(t *testing.T) {
	type (
		push  struct{ tracked, active uint64 } // HAProxy tells of the user
		start struct{ process int64 }          // a request is admitted
		is    struct{ process uint64 }         // HAProxy's runtime socket leads to a process; 0: to none
	)
	up, gone := peers.Session{State: peers.Up}, peers.Session{State: peers.Gone}
	synced := peers.Session{State: peers.Synced}
	closed, broken := peers.Session{State: peers.Down, Closed: true}, peers.Session{State: peers.Down}
	for _, tt := range []struct {
		name     string
		events   []any
		want     int // in progress
		draining float64
	}{
		{"the session has just been lost", []any{broken}, 3, 0},
		{"closed: who knows why", []any{closed}, 3, 0},
		{"lost and found", []any{broken, up}, 3, 0},
		{"lost and found, and told of", []any{broken, up, push{8, 2}, synced}, 2, 0},
		{"lost and found, and not told of: they have ended", []any{broken, up, synced}, 0, 0},
		{"replaced", []any{closed, up}, 3, 1},
		{"replaced, and the new one has told everything: the old one's count", []any{closed, up, synced}, 3, 1},
		{"replaced, and the new one has one, too", []any{closed, up, push{1, 1}, synced}, 4, 1},
		{"replaced, and the new one's has ended", []any{closed, up, push{1, 1}, push{1, 0}}, 3, 1},
		{"closed by the same process", []any{is{1}, broken, up, closed, up}, 3, 0},
		{"closed by the same process, which has told everything", []any{is{1}, broken, up, closed, up, push{8, 2}, synced}, 2, 0},
		{"closed by the same process, and then replaced", []any{is{1}, broken, up, closed, up, closed, is{2}, up, push{1, 1}}, 4, 1},
		{"replaced by a process that says so", []any{is{1}, broken, up, closed, is{2}, up, push{1, 1}}, 4, 1},
		{"closed, and nobody says by whom", []any{is{1}, broken, up, closed, is{0}, up, push{1, 1}}, 4, 1},
		{"replaced twice", []any{closed, up, push{2, 2}, closed, up, push{1, 1}}, 6, 1},
		{"replaced, and the session is lost", []any{closed, up, push{2, 2}, broken, up, push{2, 1}}, 4, 1},
		{"ended", []any{closed, gone}, 0, 0},
		{"ended after a loss", []any{broken, gone}, 0, 0},
		{"ended, and started", []any{closed, gone, up, push{1, 1}}, 1, 0},
		{"closed, then lost: nothing was replaced", []any{closed, up, broken, up, push{9, 3}}, 6, 1},
		{"replaced, and ended", []any{closed, up, push{2, 2}, closed, gone}, 0, 0},
		{"admitted before the end of the session: the old one's", []any{start{}, closed, up, push{1, 1}}, 5, 1},
		{"admitted later, nobody knows for whom", []any{closed, start{}, up, push{1, 1}}, 5, 1},
		{"admitted later: the new one's", []any{start{1}, closed, start{2}, up, push{1, 1}}, 5, 1},
		{"admitted earlier: the new one's", []any{start{1}, start{2}, closed, up, push{1, 1}}, 5, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil)
				haproxy := &fakeRuntime{err: errors.New("no such socket")}
				r.runtime = haproxy
				r.followSession(up)
				r.progress("wide", 7, 3)
				for _, e := range tt.events {
					wait(ms)
					switch e := e.(type) {
					case peers.Session:
						r.followSession(e)
					case is:
						haproxy.process, haproxy.err = e.process, nil
						if e.process == 0 {
							haproxy.err = errors.New("no such socket")
						}
					case push:
						r.progress("wide", e.tracked, e.active)
					case start:
						q := question{user: "wide", verb: "GET", seen: concurrency.Count{Process: e.process}}
						if v := r.verdict(q); !v.allowed {
							t.Errorf("verdict(%+v) = %+v, want allowed", q, v)
						}
					}
				}
				r.endDraining()
				if got, draining := r.inProgress("wide"), testutil.ToFloat64(r.metrics.draining); got != tt.want || draining != tt.draining {
					t.Errorf("in progress = %d (draining %v), want %d (%v)", got, draining, tt.want, tt.draining)
				}
			})
		})
	}
}

// Where HAProxy's processes cannot be seen, a replaced one is done when it must be.
func TestDrainFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, func(o *Options) { o.DrainFor = time.Minute }).run()
		r.progress("wide", 7, 3)
		r.followSession(peers.Session{State: peers.Down, Closed: true})
		r.followSession(peers.Session{State: peers.Up})
		for _, s := range []struct {
			after      time.Duration
			inProgress int
			draining   float64
		}{{0, 3, 1}, {time.Minute - ms, 3, 1}, {2 * flushEvery, 0, 0}} {
			wait(s.after)
			r.endDraining()
			if got, draining := r.inProgress("wide"), testutil.ToFloat64(r.metrics.draining); got != s.inProgress || draining != s.draining {
				t.Errorf("after another %v: in progress = %d (draining %v), want %d (%v)", s.after, got, draining, s.inProgress, s.draining)
			}
		}
	})
}

// HAProxy compares a deadline with its machine's clock, not with the cluster's.
func TestHere(t *testing.T) {
	for _, offset := range []time.Duration{0, 300 * time.Microsecond, -300 * time.Microsecond, 400 * ms, -400 * ms,
		5 * time.Minute, -5 * time.Minute, 5*time.Minute + 10*ms, 5*time.Minute - 10*ms} {
		t.Run(offset.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				now := time.Now()
				r.clock.Sample(now, now, now.Add(offset))
				whole := offset.Round(time.Second) // the deadline is a second of the cluster, and of this machine's
				want := now.Add(2 * time.Second).Unix()
				if got := r.haproxySecond(now.Add(2*time.Second + whole).Unix()); got != want {
					t.Errorf("haproxySecond(2 s from now) with a clock that is %v behind = %d, want %d", offset, got, want)
				}
			})
		})
	}
}

// polygen's words about a user, and what HAProxy is told of them.
func TestBlockPolicies(t *testing.T) {
	block, unblock := redisbus.Block{User: "alice", Limit: 2, Release: 1}, redisbus.Unblock{User: "alice"}
	type native = concurrency.TableEntry
	// alice has two requests in progress, and so many were refused.
	for _, tt := range []struct {
		name     string
		refused  int
		policies []redisbus.Message
		want     []native // the until is in seconds from now
	}{
		{"few are refused: HAProxy only learns the limit", 4, []redisbus.Message{block}, []native{{User: "alice", Limit: 2, Cap: 2}}},
		{"many: HAProxy refuses by itself", 5, []redisbus.Message{block}, []native{{User: "alice", Until: 2, Limit: 2, Cap: 2}}},
		{"unblocked", 5, []redisbus.Message{block, unblock}, []native{{User: "alice", Until: 2, Limit: 2, Cap: 2}, {User: "alice", Limit: 2, Cap: 2}}},
		{"unblocked, never blocked", 5, []redisbus.Message{unblock}, nil},
		{"another user", 5, []redisbus.Message{redisbus.Block{User: "bob", Limit: 2}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				for range 2 + tt.refused {
					r.ask("alice", "GET")
				}
				r.applyPolicies(tt.policies)
				got := r.toldOfBlocks()
				for i := range got {
					if got[i].Until > 0 {
						got[i].Until -= time.Now().Unix()
					}
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("HAProxy was told %+v, want %+v", got, tt.want)
				}
				blocks := func(n native) bool { return n.Until > 0 }
				wantBlocks := float64(len(slices.DeleteFunc(slices.Clone(tt.want), func(n native) bool { return !blocks(n) })))
				wantOthers := float64(len(tt.want)) - wantBlocks
				if b, u := testutil.ToFloat64(r.metrics.blocked), testutil.ToFloat64(r.metrics.unblocked); b != wantBlocks || u != wantOthers {
					t.Errorf("counted %v blocks and %v others, want %v and %v", b, u, wantBlocks, wantOthers)
				}
			})
		})
	}
}

// Of a user whom HAProxy refuses nobody asks: new limits must take effect nevertheless.
func TestNewLimitsReachABlockedUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		r.progress("alice", 2, 2)
		for range 6 {
			r.ask("alice", "GET")
		}
		r.applyPolicies([]redisbus.Message{redisbus.Block{User: "alice", Limit: 2, Release: 1}})
		r.force(parse(t, strings.Replace(slotLimits, "free: {concurrent: 2}", "free: {concurrent: 20}", 1)))
		told := r.toldOfBlocks()
		if want := (concurrency.TableEntry{User: "alice", Limit: 20, Cap: 20}); len(told) < 2 || told[len(told)-1] != want {
			t.Errorf("HAProxy was told %+v, want %+v in the end", told, want)
		}
	})
}

// polygen says how slots are best shared: an instance keeps its share while
// requests come, and gives back what is beyond it.
func TestSlotsPolicy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		shares []redisbus.SlotShare
		want   int // slots held for two requests in progress and refused ones
	}{
		{"most of them", []redisbus.SlotShare{{Instance: "a", Slots: 6}, {Instance: "b", Slots: 2}}, 6},
		{"as many as are in use", []redisbus.SlotShare{{Instance: "a", Slots: 2}, {Instance: "b", Slots: 6}}, 2},
		{"what runs is held, whatever the share", []redisbus.SlotShare{{Instance: "b", Slots: 8}}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
				r.pool.set(ms, nil)
				r.pool.occupy("wide", "b", 6)
				r.progress("wide", 2, 2)
				wait(10 * ms)
				if got := r.ask("wide", "GET"); got.allowed {
					t.Fatalf("verdict(wide) = %+v, want refused", got)
				}
				r.applyPolicies([]redisbus.Message{redisbus.Slots{User: "wide", Until: time.Now().Add(3 * time.Second), Shares: tt.shares}})
				if tt.want > 2 {
					r.pool.occupy("wide", "b", 2) // which has been told, too
				}
				wait(45 * ms)
				if got := r.pool.held("wide", "a"); got != tt.want {
					t.Errorf("slots held = %d, want %d", got, tt.want)
				}
			})
		})
	}
}
