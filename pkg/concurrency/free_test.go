package concurrency_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// That Free is never negative and never above the limit, and exact alone, is checked
// at each push of each simulated cluster; see cluster.verify.

func TestFreeAlone(t *testing.T) {
	r := newRig(t, 1)
	if n, known := r.FreeSlots("u"); known {
		t.Errorf("Free of a user who was never seen = %d, want it not known", n)
	}
	r.start(0, 3)
	if n, known := r.FreeSlots("u"); n != 7 || !known {
		t.Errorf("Free = %d, %v with 3 of 10 in progress, want 7", n, known)
	}
	r.start(0, 20)
	if n, known := r.FreeSlots("u"); n != 0 || !known {
		t.Errorf("Free = %d, %v with all in progress, want 0", n, known)
	}
	r.Start(ms(1), "u", 4, count{}, concurrency.Places{})
	if n, _ := r.FreeSlots("u"); n != 0 {
		t.Errorf("Free = %d with 10 of 4 in progress, want 0", n)
	}
	r.Progress(ms(2), "u", 4, count{Tracked: 10, Active: 1})
	if n, _ := r.FreeSlots("u"); n != 3 {
		t.Errorf("Free = %d with 1 of 4 in progress, want 3", n)
	}
}

func TestFreeOfTheCluster(t *testing.T) {
	r := newRig(t, 2)
	_, waiting := r.start(0, 1)
	for _, ask := range r.Collect(ms(0), true, nil) {
		r.Reply(ms(1), ask, concurrency.Grant{Held: 2, Free: 5}) // another one has 3
	}
	if len(waiting) != 1 || !waiting[0].Verdict.Allowed {
		t.Fatalf("waiting = %+v, want one that is allowed", waiting)
	}
	if n, known := r.FreeSlots("u"); n != 6 || !known {
		t.Errorf("Free = %d, %v, want the one that is held and the 5 that the pool had", n, known)
	}
	r.Lost(ms(2), true)
	if n, _ := r.FreeSlots("u"); n != 9 {
		t.Errorf("Free = %d while the pool is lost, want all of a cool user's but the one", n)
	}
}
