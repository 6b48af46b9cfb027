package view

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
)

func (r *rig) started(instance, user string, active int, starts float64, classes ...ClassRates) {
	r.Started(r.now, instance, user, active, Rates{Started: starts}, classes)
}

// What users start and have in progress is known without any limit.
func TestStarted(t *testing.T) {
	of := func(class string, n float64) ClassRates { return ClassRates{class, Rates{Started: n}} }
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
	if l := limitOf(r.get("alice"), concurrent); l.Used != 2 {
		t.Errorf("%d of %d in progress, want 2", l.Used, l.Max)
	}
}

// Far below a limit of requests no pool tells what is used of it: the instances' reports do.
func TestRequestsFarBelowTheLimit(t *testing.T) {
	r := newRig(t)
	r.Limits(parse(t, "version: 1\ndefault_tier: a\ntiers: {a: {requests: {GET: {second: 100, minute: 600}}}}\n"))
	r.started("one", "alice", 0, 3, ClassRates{"GET", Rates{Started: 3}})
	r.started("two", "alice", 0, 5, ClassRates{"GET", Rates{Started: 4}}, ClassRates{"PUT", Rates{Started: 1}})
	for limit, used := range map[string]int64{"GET": 7, "GET/minute": 0} { // of a minute the pool tells
		if l := limitOf(r.get("alice"), limit); l.Used != used || *l.Last != used {
			t.Errorf("%s: used %d, last %d, want %d", limit, l.Used, *l.Last, used)
		}
	}
}

// Refused requests are known beside those that started, by class, in the list and in the totals.
func TestRefused(t *testing.T) {
	r := newRig(t)
	r.Started(r.now, "one", "staff", 0, Rates{Started: 5, Refused: 1995}, []ClassRates{{"GET", Rates{5, 1990}}, {"PUT", Rates{0, 5}}})
	r.Started(r.now, "two", "staff", 0, Rates{Refused: 3}, []ClassRates{{"PUT", Rates{0, 3}}})
	r.Started(r.now, "two", "alice", 0, Rates{Started: 9}, nil)
	u := r.get("staff")
	if diff := cmp.Diff(map[string]float64{"*": 1998, "GET": 1990, "PUT": 8}, u.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	l := r.whole(r.now)
	if first := l.Top(api.ByRefused, 1); len(first) != 1 || first[0].User != "staff" || first[0].Refused != 1998 || first[0].Rate != 5 {
		t.Errorf("first by refused: %+v, want staff with 1998 refused and 5 admitted a second", first)
	}
	if l.Totals.Refused != 1998 || l.Totals.Rate != 14 {
		t.Errorf("totals: %v refused, %v admitted, want 1998 and 14", l.Totals.Refused, l.Totals.Rate)
	}
	r.wait(2 * time.Second)
	if u := r.get("staff"); u.Refused != nil {
		t.Errorf("refused after 2 s of silence: %v", u.Refused)
	}
}
