package concurrency_test

import "testing"

// newDefaultRig is an instance alone, whose user may have 10 requests in progress, and of whose HAProxy,
// process 1, each user but "apart" is to have so many places by default.
func newDefaultRig(t *testing.T, n int) *rig {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.Start(ms(-5000), "introduction", 10, count{Process: 1}, places{})
	r.pass(-5000, -1)
	if n > 0 {
		r.begin(-1, n)
		r.TakeOutput()
	}
	return r
}

func (r *rig) begin(at, n int) {
	r.t.Helper()
	if !r.CanBeginDefault(ms(at), 1) {
		r.t.Fatalf("at %d: no places may be given by default", at)
	}
	r.BeginDefault(ms(at), 1, n, func(user string) bool { return user != "apart" })
}

func (r *rig) wantDenied(at int, want bool) {
	r.t.Helper()
	if got := r.DefaultDenied(); got != want {
		r.t.Fatalf("at %d: DefaultDenied = %v, want %v", at, got, want)
	}
}

// TestBeginDefault has HAProxy told of those first who are known without places.
func TestBeginDefault(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(*rig)
		asked []string
		bound int
	}{
		{"nobody is known", func(*rig) {}, nil, 4},
		{"a request was asked about", func(r *rig) {
			r.wantAsk(-2, places{}, "yes")
			r.Progress(ms(-1), "u", 10, count{Tracked: 1, Active: 1})
		}, []string{"u"}, 1},
		{"places were lent", func(r *rig) { r.wantAsk(-300, places{}, "yes"); r.Lend(ms(-300), "u") }, nil, 6},
		{"and HAProxy may not know", func(r *rig) {
			r.start(-300, 2)
			r.Lend(ms(-300), "u")
			for range 4 {
				r.wantAsk(-250, places{}, "yes")
			}
			r.Progress(ms(-1), "u", 10, count{Tracked: 6, Active: 6})
			r.bound("5 places, and 5 requests beside them", 10)
		}, []string{"u"}, 11},
		{"fewer were lent", func(r *rig) {
			r.start(-300, 6)
			r.Progress(ms(-299), "u", 10, count{Tracked: 6, Active: 1})
			r.start(-298, 1)
			r.Lend(ms(-298), "u")
		}, nil, 7},
		{"they were withdrawn", func(r *rig) {
			r.wantAsk(-300, places{}, "yes")
			r.Lend(ms(-300), "u")
			r.Recall(ms(-100), "u")
			r.Withdrawn(ms(-99), "u", 1)
			r.TakeOutput()
		}, []string{"u"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newDefaultRig(t, 0)
			tt.do(r)
			r.TakeOutput()
			r.begin(-1, 4)
			r.wantDenied(-1, tt.asked == nil)
			r.wantWithdraw(-1, tt.asked...)
			r.bound("as begun", tt.bound)
			if tt.asked != nil {
				r.pass(0, 1500)
				r.wantDenied(1500, false)
				if again := r.TakeOutput().Withdraw; len(again) == 0 {
					t.Error("nobody has asked for it again")
				}
				r.Withdrawn(ms(1501), "u", 0)
				r.wantDenied(1501, true)
			}
		})
	}
}

// TestCanBeginDefault: not while others may hold all slots, nor for a process whose withdrawals may
// reach another one.
func TestCanBeginDefault(t *testing.T) {
	for _, tt := range []struct {
		name    string
		do      func(*rig)
		process int64
		want    bool
	}{
		{"the process that asks", func(*rig) {}, 1, true},
		{"another one", func(*rig) {}, 2, false},
		{"one that is not known", func(r *rig) { r.Restarted(ms(-4000)) }, 0, false},
		{"another one has begun to ask", func(r *rig) { r.Start(ms(-1), "u", 10, count{Process: 2}, places{}) }, 1, false},
		{"it has replaced another one", func(r *rig) {
			r.Start(ms(-3000), "u", 10, count{Process: 2}, places{})
			r.Replaced(ms(-3000))
		}, 2, false},
		{"which has ended", func(r *rig) {
			r.Start(ms(-3000), "u", 10, count{Process: 2}, places{})
			r.Replaced(ms(-3000))
			r.Drained(ms(-1))
		}, 2, true},
		{"another instance has joined", func(r *rig) { r.Cluster(ms(-29_000), 2, 0) }, 1, false},
		{"long ago", func(r *rig) { r.Cluster(ms(-30_000), 2, 0) }, 1, true},
		{"the pool is lost", func(r *rig) { r.Lost(ms(-1), true) }, 1, false},
		{"it has begun", func(r *rig) { r.begin(-1, 1) }, 1, false},
	} {
		r := newDefaultRig(t, 0)
		tt.do(r)
		if got := r.CanBeginDefault(ms(0), tt.process); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestPlacesByDefault goes through the places of a user of whom nothing is known.
func TestPlacesByDefault(t *testing.T) {
	r := newDefaultRig(t, 4)
	r.bound("before anybody has asked", 4)
	if got := r.Bound("apart"); got != 0 {
		t.Fatalf("somebody whom it is not for: %d, want 0", got)
	}
	for range 6 { // HAProxy has no entry, perhaps, and may make one
		r.wantAsk(0, places{}, "yes")
	}
	r.bound("with 6 who were asked about", 10)
	r.wantWithdraw(0)
	r.wantAsk(1, places{}, "wait")
	r.wantWithdraw(1, "u")
	r.Withdrawn(ms(2), "u", 3)
	r.bound("with 3 of HAProxy's", 10)
	if got := r.decided(); len(got) != 1 || !got[0] {
		t.Fatalf("decided %v, want that the one that waits is allowed", got)
	}

	// Whom nothing is to be remembered of but that they have none is denied for minutes, and
	// HAProxy is told again before it forgets.
	r.Progress(ms(3), "u", 10, count{Tracked: 7, Active: 1})
	r.Withdrawn(ms(4), "u", 0)
	r.bound("with 1", 1)
	r.TakeOutput()
	r.pass(5, 119_000)
	r.wantWithdraw(119_000)
	r.pass(119_000, 121_900)
	r.wantWithdraw(121_900, "u", "u")
	r.Withdrawn(ms(121_901), "u", 0)
	r.pass(121_902, 125_000)
	r.wantWithdraw(125_000)
	r.Progress(ms(125_001), "u", 10, count{Tracked: 7})
	r.pass(125_002, 127_000)
	r.bound("forgotten, and perhaps made anew", 4)
	r.Denied(ms(127_001), "u")
	r.bound("with an entry that says they have none", 0)
	r.Denied(ms(127_001), "apart")
	if n := r.Stats().Users; n != 1 {
		t.Errorf("%d users are known, want 1", n)
	}
}

// TestPlacesOfAnotherAgent has HAProxy say that there are more places than by default.
func TestPlacesOfAnotherAgent(t *testing.T) {
	r := newDefaultRig(t, 4)
	r.wantAsk(0, places{true, 6, 7}, "yes")
	r.bound("7 places, and one", 8)
	r.wantWithdraw(0, "u")
	r.Withdrawn(ms(1), "u", 6)
	r.bound("withdrawn", 7)
}

// TestFewerPlacesThanByDefault: HAProxy may forget what an answer brought, and give more.
func TestFewerPlacesThanByDefault(t *testing.T) {
	for byDefault, want := range map[int]int{5: 5, 6: 0} {
		r := newDefaultRig(t, byDefault)
		r.Denied(ms(0), "u")
		r.start(0, 2)
		if n := r.Lend(ms(0), "u"); n != want {
			t.Errorf("%d places were lent of 5, want %d: %d are by default", n, want, byDefault)
		}
	}
}

// TestDefaultOfAnotherProcess: the requests of one that was replaced count until it has ended.
func TestDefaultOfAnotherProcess(t *testing.T) {
	r := newDefaultRig(t, 4)
	r.Natives(ms(0), "u", 2)
	r.inProgress("two by default", 2)
	r.Natives(ms(0), "u", 0)
	r.Replaced(ms(1))
	r.bound("of the one before", 4)
	r.wantAsk(2, places{}, "yes")
	r.bound("of the one before, and one", 5)
	r.Drained(ms(3))
	r.bound("it has ended", 1)
	if r.DefaultOver() != 0 {
		t.Error("the new one has begun to give places")
	}

	r = newDefaultRig(t, 4)
	r.Restarted(ms(1))
	r.bound("nothing goes on", 0)
}

// TestDefaultEnds: everyone may have requests in progress until it is known who has.
func TestDefaultEnds(t *testing.T) {
	r := newDefaultRig(t, 4)
	if r.DefaultOver() != 0 {
		t.Fatal("it is over before it has ended")
	}
	r.EndDefault()
	if r.DefaultDenied() || r.DefaultOver() != 1 {
		t.Fatalf("DefaultDenied = %v, DefaultOver = %d; want false and 1", r.DefaultDenied(), r.DefaultOver())
	}
	r.bound("ended", 4)
	r.InUse(ms(0), "u", 2)
	r.InUse(ms(0), "v", 0)
	r.DefaultEnded()
	r.bound("in use", 4)
	r.inProgress("in use", 2)
	if got := r.Bound("v"); got != 0 || r.DefaultOver() != 0 {
		t.Errorf("another user: %d, want 0", got)
	}

	// What is more than the pool takes for held is told, and taken back, whoever reads it first.
	for _, tallied := range []bool{false, true} {
		r = newDefaultRig(t, 4)
		r.EndDefault()
		r.Cluster(ms(0), 2, 0)
		r.live = append(r.live, "other0")
		if tallied {
			r.Natives(ms(0), "u", 3)
		}
		r.InUse(ms(1), "u", 3)
		r.DefaultEnded()
		r.wantWithdraw(1, "u")
		r.exchange(2, false)
		if got := r.pool["me"].Active; got != 4 {
			t.Errorf("the pool knows of %d in progress: %v, want 4", got, r.pool)
		}
	}
}
