package view

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
)

func (r *rig) started(instance, user string, active int, starts float64, classes ...ClassStarts) {
	r.Started(r.now, instance, user, active, starts, classes)
}

// What users start and have in progress is known without any limit.
func TestStarted(t *testing.T) {
	of := func(class string, n float64) ClassStarts { return ClassStarts{class, n} }
	for _, tt := range []struct {
		name       string
		history    func(*rig)
		user       string
		want       map[string]float64
		rate       float64
		inProgress int
	}{
		{"nothing heard", func(*rig) {}, "staff", nil, 0, 0},
		{"one without a limit", func(r *rig) { r.started("one", "staff", 3, 9, of("GET", 7), of("PUT", 2), of("LIST", 5)) }, "staff",
			map[string]float64{"*": 9, "GET": 7, "PUT": 2, "LIST": 5}, 9, 3},
		{"over all instances", func(r *rig) {
			r.started("one", "staff", 3, 9, of("GET", 9))
			r.started("two", "staff", 1, 2, of("GET", 1), of("PUT", 1))
		}, "staff",
			map[string]float64{"*": 11, "GET": 10, "PUT": 1}, 11, 4},
		{"the newest report of an instance counts", func(r *rig) {
			r.started("one", "staff", 3, 9, of("GET", 9))
			r.wait(time.Second)
			r.started("one", "staff", 0, 2, of("PUT", 2))
		}, "staff", map[string]float64{"*": 2, "PUT": 2}, 2, 0},
		{"requests go on, and none starts", func(r *rig) { r.started("one", "staff", 3, 0) }, "staff", nil, 0, 3},
		{"who is silent has stopped", func(r *rig) { r.started("one", "staff", 3, 9, of("GET", 9)); r.wait(2 * time.Second) }, "staff", nil, 0, 0},
		{"an instance is gone", func(r *rig) {
			r.started("one", "staff", 3, 9, of("GET", 9))
			r.started("two", "staff", 1, 1, of("GET", 1))
			r.Instances([]string{"two"})
		}, "staff", map[string]float64{"*": 1, "GET": 1}, 1, 1},
		{"classes without a limit count beside those with one", func(r *rig) {
			r.use("alice", 4)
			r.wait(time.Second)
			r.started("one", "alice", 0, 34, of("GET", 4), of("PUT", 30))
		}, "alice", map[string]float64{"*": 34, "GET": 4, "PUT": 30}, 34, 0},
		{"reports near a limit are newer", func(r *rig) { r.started("one", "alice", 2, 1, of("GET", 1)); r.progress("one", "alice", 5, 5, 0) }, "alice",
			map[string]float64{"*": 1, "GET": 1}, 1, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.history(r)
			u := r.get(tt.user)
			if diff := cmp.Diff(tt.want, u.Started); diff != "" {
				t.Errorf("started (-want +got):\n%s", diff)
			}
			if rate := r.RequestRate(r.now, tt.user); rate != tt.rate || u.InProgress != tt.inProgress {
				t.Errorf("rate %v, %d in progress, want %v and %d", rate, u.InProgress, tt.rate, tt.inProgress)
			}
			for _, s := range r.whole(r.now).Top(api.ByRate, 5) {
				if diff := cmp.Diff(tt.want, s.Started); s.User == tt.user && diff != "" {
					t.Errorf("started in the list (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// The limit of requests in progress shows what is used of it far below it, too.
func TestInProgressFarBelowTheLimit(t *testing.T) {
	r := newRig(t)
	r.started("one", "alice", 2, 0)
	for _, l := range r.get("alice").Limits {
		if l.Name == concurrent && l.Used != 2 {
			t.Errorf("%d of %d in progress, want 2", l.Used, l.Max)
		}
	}
}

// Far below a limit of requests no pool tells what is used of it: the instances' reports do.
func TestRequestsFarBelowTheLimit(t *testing.T) {
	r := newRig(t)
	r.Limits(parse(t, "version: 1\ndefault_tier: a\ntiers: {a: {requests: {GET: {second: 100, minute: 600}}}}\n"))
	r.started("one", "alice", 0, 3, ClassStarts{"GET", 3})
	r.started("two", "alice", 0, 5, ClassStarts{"GET", 4}, ClassStarts{"PUT", 1})
	for _, tt := range []struct {
		key, limit string
		used       int64
	}{
		{"alice", "GET", 7},
		{"alice", "GET/minute", 0}, // of which the pool tells
	} {
		for _, l := range r.get(tt.key).Limits {
			if l.Name == tt.limit && (l.Used != tt.used || *l.Last != tt.used) {
				t.Errorf("%s of %s: used %d, last %d, want %d", tt.limit, tt.key, l.Used, *l.Last, tt.used)
			}
		}
	}
}
