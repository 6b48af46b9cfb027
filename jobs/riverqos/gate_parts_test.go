package riverqos

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

var ann, bob = flow{"ann", "slow"}, flow{"bob", "slow"}

func insertParams(queues ...string) (params []*rivertype.JobInsertParams) {
	for _, queue := range queues {
		params = append(params, &rivertype.JobInsertParams{Queue: queue, State: rivertype.JobStateAvailable})
	}
	return params
}

func TestPendingInserts(t *testing.T) {
	start := time.Unix(1000, 0)
	params := insertParams("slow", "slow", "slow")
	inserted := func(id int64) *rivertype.JobInsertResult {
		return &rivertype.JobInsertResult{Job: &rivertype.JobRow{ID: id}}
	}
	duplicate := inserted(3)
	duplicate.UniqueSkippedAsDuplicate = true

	var pending pendingInserts
	settle := pending.beginInsert([]*newJobs{{sizedFlow: sizedFlow{ann, 2}, params: params[:2]}, {sizedFlow: sizedFlow{bob, 5}, params: params[2:]}}, []int{2, 1}, start)
	for _, step := range []struct {
		name    string
		do      func()
		at      time.Duration
		ids     []int64 // that may be visible
		visible []int64 // that are
		want    []int   // of ann and bob that nobody can see
	}{
		{"while they are being inserted", func() {}, 0, []int64{}, nil, []int{2, 1}},
		{"when they have ids, and one was there already", func() {
			settle(params, []*rivertype.JobInsertResult{inserted(1), inserted(2), duplicate})
		}, time.Second, []int64{1, 2}, nil, []int{2, 0}},
		{"one is visible", func() {}, 2 * time.Second, []int64{1, 2}, []int64{1}, []int{1, 0}},
		{"another insert fails", func() {
			pending.beginInsert([]*newJobs{{sizedFlow: sizedFlow{bob, 5}, params: params}}, []int{3}, start)(params, nil)
		}, 2 * time.Second, []int64{2}, nil, []int{1, 0}},
		{"River does not tell the ids of two more", func() {
			pending.beginInsert([]*newJobs{{sizedFlow: sizedFlow{bob, 5}, params: params}}, []int{2}, start)(params, make([]*rivertype.JobInsertResult, 3))
		}, 3 * time.Second, []int64{2}, nil, []int{1, 2}},
		{"these are remembered for a short time", func() {}, rememberWithoutID + time.Second, []int64{2}, nil, []int{1, 0}},
		{"what is rolled back is forgotten", func() {}, rememberFor + time.Second, []int64{}, nil, []int{0, 0}},
	} {
		step.do()
		flows := []flow{ann, bob}
		if got := pending.insertedIDs(flows, start.Add(step.at)); !slices.Equal(got, step.ids) || got == nil {
			t.Errorf("%s: ids() = %v, want %v", step.name, got, step.ids)
		}
		if got := pending.invisible(flows, step.visible, start.Add(step.at)); !slices.Equal(got, step.want) {
			t.Errorf("%s: invisible(%v) = %v, want %v", step.name, step.visible, got, step.want)
		}
	}
	if len(pending.byFlow) != 0 {
		t.Errorf("%d flows are left, want 0", len(pending.byFlow))
	}
}

func TestUnwrittenEnds(t *testing.T) {
	one, two := attempt{1, time.Unix(1, 0)}, attempt{2, time.Unix(1, 0)}
	var ends unwrittenEnds
	ends.addAttempt(one, ann)
	ends.addAttempt(two, bob)
	for after, want := range map[time.Duration][]int64{0: {}, overdueAfter + time.Minute: {one.id}} {
		if _, overdue := ends.attemptsIn([]sizedFlow{{ann, 7}}, time.Now().Add(after)); !slices.Equal(overdue, want) {
			t.Errorf("after %v %v are overdue, want %v", after, overdue, want)
		}
	}
	if got, _ := ends.attemptsIn([]sizedFlow{{ann, 7}}, time.Now()); !slices.Equal(got, []attempt{one}) {
		t.Errorf("among(ann) = %v, want %v", got, one)
	}
	ends.keepOnly([]attempt{one, two}, []int64{2})
	if got, flows := ends.allAttempts(); !slices.Equal(got, []attempt{two}) || !slices.Equal(flows, []flow{bob}) {
		t.Errorf("all() = %v, %v, want %v of bob", got, flows, two)
	}
	for id := range int64(maxUnwritten + 5) {
		ends.addAttempt(attempt{id: id + 10}, ann)
	}
	if got, flows := ends.allAttempts(); len(got) != maxUnwritten || len(flows) != 2 {
		t.Errorf("all() = %d attempts of %d flows, want %d of 2", len(got), len(flows), maxUnwritten)
	}
}

func TestRechecks(t *testing.T) {
	list := newRechecks()
	held := insertParams("later")
	held[0].State = rivertype.JobStateScheduled
	list.add(nil, held)
	if len(list.work) != 0 {
		t.Error("an insert of jobs that are not available is work")
	}
	list.add([]sizedFlow{{ann, 1}}, held)
	list.add([]sizedFlow{{ann, 2}}, insertParams("slow"))
	if flows, queues := list.takeAll(); !slices.Equal(flows, []sizedFlow{{ann, 2}}) || !slices.Equal(queues, []string{"slow"}) || len(list.work) != 1 {
		t.Errorf("takeAll() = %v, %q, want ann's flow with the last size, and the queue slow", flows, queues)
	}
	if flows, queues := list.takeAll(); len(flows)+len(queues) != 0 {
		t.Errorf("takeAll() again = %v, %q, want none", flows, queues)
	}
}

// An insert whose turn to count does not come in time goes ahead, says so, and keeps those that follow from
// waiting as long.
func TestInsertsThatWaitInVainToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		shared := &resources{}
		var err error
		if shared.runner, err = (Config{Slots: jobs.NewMemory(nil), Tiers: jobs.FileTiers{}, Registry: reg}).newRunner(queue{}, nil, nil); err != nil {
			t.Fatal(err)
		}
		g := newGate(shared)
		g.counting <- struct{}{} // another insert counts, slowly
		all := []*newJobs{{sizedFlow: sizedFlow{ann, 1}, params: insertParams("slow", "slow")}}
		for i, want := range []time.Duration{countTimeout, 0} {
			began := time.Now()
			if rooms, _ := g.reserveRoom(t.Context(), all); !slices.Equal(rooms, []int{2}) || time.Since(began) != want {
				t.Errorf("insert %d has room for %v after %v, want both jobs after %v", i, rooms, time.Since(began), want)
			}
		}
		if got := countFailures(t, reg); got != 1 {
			t.Errorf("%v failures are counted, want 1", got)
		}
		g.lastUnanswered.Store(0)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		g.reserveRoom(gone, all)
		if got := countFailures(t, reg); got != 1 || g.lastUnanswered.Load() != 0 {
			t.Errorf("%v failures, want no more by a caller that has given up", got)
		}
	})
}

// countFailures are those of inserts that were not counted.
func countFailures(t *testing.T, registry *prometheus.Registry) (failures float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "sluice_jobs_errors_total" && metric.GetLabel()[0].GetValue() == "count" {
				failures += metric.GetCounter().GetValue()
			}
		}
	}
	return failures
}
