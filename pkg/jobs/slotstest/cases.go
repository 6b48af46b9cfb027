package slotstest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

func upToTheLimit(s *suite) {
	s.acquire(job("alice", "1", "q"), limitOf(2), granted(1, 1))
	s.acquire(job("alice", "2", "q"), limitOf(2), granted(2, 2))
	s.acquireFor(job("alice", "3", "q"), limitOf(2), long, false, refused(2, 2, 0))
	s.usage("alice", []jobs.Claim{job("alice", "1", "q"), job("alice", "2", "q")}, nil, nil)
	s.release(job("alice", "1", "q"), limitOf(2))
	s.acquire(job("alice", "3", "q"), limitOf(2), granted(2, 2))
	s.acquireFor(job("alice", "1", "q"), limitOf(2), long, false, refused(2, 2, 0))
}

func queueLimits(s *suite) {
	l := jobs.Limits{Total: 3, Queues: map[string]int{"a": 1, "b": 2, "huge": 50}}
	s.acquire(job("alice", "a1", "a"), l, granted(1, 1))
	s.acquireFor(job("alice", "a2", "a"), l, long, false, refused(1, 1, 0))
	s.acquire(job("alice", "b1", "b"), l, granted(2, 1))
	s.acquire(job("alice", "other", "unnamed"), l, granted(3, 1))
	s.acquireFor(job("alice", "b2", "b"), l, long, false, refused(3, 1, 0))    // the total
	s.acquireFor(job("alice", "h1", "huge"), l, long, false, refused(3, 0, 0)) // the total
	s.release(job("alice", "a1", "a"), l)
	s.acquire(job("alice", "b2", "b"), l, granted(3, 2))
	s.release(job("alice", "other", "unnamed"), l)
	s.acquireFor(job("alice", "b3", "b"), l, long, false, refused(2, 2, 0))
	s.acquire(job("alice", "none", ""), l, granted(3, 1))
}

func slowQueue(s *suite) {
	l := jobs.Limits{Total: 2, Queues: map[string]int{"slow": 1}}
	slow := func(n int) jobs.Claim { return job("alice", fmt.Sprint("slow", n), "slow") }
	fast := func(n int) jobs.Claim { return job("alice", fmt.Sprint("fast", n), "fast") }
	s.acquire(slow(1), l, granted(1, 1))
	s.acquire(slow(2), l, refused(1, 1, 1))
	s.acquire(slow(3), l, refused(1, 1, 2))
	s.acquire(fast(1), l, granted(2, 1)) // the slow ones before it could not use the slot
	s.acquire(fast(2), l, refused(2, 1, 3))
	s.release(fast(1), l, fast(2)) // nor that one
	s.acquire(fast(2), l, granted(2, 1))
	s.release(slow(1), l, slow(2))
	s.usage("alice", []jobs.Claim{fast(2)}, []jobs.Claim{slow(2)}, []jobs.Claim{slow(3)})
}

func users(s *suite) {
	s.acquire(job("alice", "1", "q"), limitOf(1), granted(1, 1))
	s.acquire(job("alice", "2", "q"), limitOf(1), refused(1, 1, 1))
	s.acquire(job("bob", "3", "q"), limitOf(1), granted(1, 1))
	s.release(job("bob", "3", "q"), limitOf(1))
	s.reserveFree("carol", limitOf(1))
	s.usage("alice", []jobs.Claim{job("alice", "1", "q")}, nil, []jobs.Claim{job("alice", "2", "q")})
	s.usage("carol", nil, nil, nil)
}

// names could be mistaken for each other by who joins them to a key, or cuts them.
var names = []string{
	"a", "A", " ", "a ", "a:b", "a:", ":a", "a|b", "a b", "{a}", "}{", "a\x00", "\x00", "a\x00b", "\xff", "\xff\xfe", "\r\n",
	"größe", "gro\u0308ße", "0", "1", "-1", "01", "1e3", "nil", "null", "'; --", `"\`, "%s", "*", "[a]", "h", "r", "p", "q", "n",
	strings.Repeat("x", jobs.MaxName), strings.Repeat("\xff", jobs.MaxName),
}

func anyBytes(s *suite) {
	l := jobs.Limits{Total: 2, Queues: map[string]int{}}
	for _, name := range names {
		l.Queues[name] = 1
	}
	for i, name := range names { // as users, queues, jobs and holders
		other := names[(i+1)%len(names)]
		first, second := job(name, name, name), job(name, other, name)
		third := jobs.Claim{Job: jobs.Job{User: name, ID: "third", Queue: other}, Holder: name}
		first.Holder, second.Holder = name, other
		s.acquire(first, l, granted(1, 1))
		s.acquire(second, l, refused(1, 1, 1))
		s.acquire(third, l, granted(2, 1))
	}
	for i, name := range names {
		other := names[(i+1)%len(names)]
		first, second := job(name, name, name), job(name, other, name)
		first.Holder, second.Holder = name, other
		third := jobs.Claim{Job: jobs.Job{User: name, ID: "third", Queue: other}, Holder: name}
		s.usage(name, []jobs.Claim{first, third}, nil, []jobs.Claim{second})
		s.renewed([]jobs.Claim{first, second, third}, long, second)
		s.release(first, l, second)
		s.reserved(name, second)
		s.acquire(second, l, granted(2, 1))
	}
}

func acquireAgain(s *suite) {
	s.acquire(job("alice", "1", "q"), limitOf(3), granted(1, 1))
	s.acquire(job("alice", "1", "q"), limitOf(3), granted(1, 1))
	s.acquire(job("alice", "2", "q"), limitOf(3), granted(2, 2))
	s.acquire(job("alice", "1", "q"), limitOf(1), granted(2, 2)) // it has one, whatever the limit
	s.release(job("alice", "1", "q"), limitOf(3))
	s.usage("alice", []jobs.Claim{job("alice", "2", "q")}, nil, nil)
}

func releaseAgain(s *suite) {
	one, two, three, four := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q"), job("alice", "4", "q")
	s.acquire(one, limitOf(2), granted(1, 1))
	s.acquire(two, limitOf(2), granted(2, 2))
	s.acquire(three, limitOf(2), refused(2, 2, 1))
	s.acquire(four, limitOf(2), refused(2, 2, 2))
	s.release(one, limitOf(2), three)
	s.release(one, limitOf(2))
	s.release(one, limitOf(2))
	s.usage("alice", []jobs.Claim{two}, []jobs.Claim{three}, []jobs.Claim{four})
	s.release(job("alice", "never seen", "q"), limitOf(2))
	s.release(three, limitOf(2)) // it has no slot yet
	s.release(four, limitOf(2))
	s.usage("alice", []jobs.Claim{two}, []jobs.Claim{three}, []jobs.Claim{four})
	s.release(job("bob", "1", "q"), limitOf(2))
	s.acquire(job("bob", "2", "q"), limitOf(1), granted(1, 1)) // not below zero
	s.acquireFor(job("bob", "3", "q"), limitOf(1), long, false, refused(1, 1, 0))
}

func takeOver(s *suite) {
	one := job("alice", "1", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(heldBy(one, "later"), limitOf(1), granted(1, 1))
	s.usage("alice", []jobs.Claim{heldBy(one, "later")}, nil, nil)
	s.renewed([]jobs.Claim{heldBy(one, "later")}, long)
	s.release(heldBy(one, "later"), limitOf(1))
	s.usage("alice", nil, nil, nil)
}

func zombie(s *suite) {
	one, two := job("alice", "1", "q"), job("alice", "2", "q")
	s.acquire(heldBy(one, "earlier"), limitOf(1), granted(1, 1))
	s.acquire(heldBy(one, "later"), limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.release(heldBy(one, "earlier"), limitOf(1))
	s.renewed([]jobs.Claim{heldBy(one, "earlier"), heldBy(one, "later")}, long, heldBy(one, "earlier"))
	s.usage("alice", []jobs.Claim{heldBy(one, "later")}, nil, []jobs.Claim{two})
	s.release(heldBy(one, "later"), limitOf(1), two)
}

// keepsQueue: what a job was counted in is what is counted back.
func keepsQueue(s *suite) {
	l := jobs.Limits{Total: 3, Queues: map[string]int{"a": 1}}
	one, two := job("alice", "1", "a"), job("alice", "2", "a")
	elsewhere := func(c jobs.Claim) jobs.Claim { c.Queue = "b"; return c }
	s.acquire(one, l, granted(1, 1))
	s.acquire(elsewhere(one), l, granted(1, 1))
	s.acquire(two, l, refused(1, 1, 1))
	s.acquire(elsewhere(two), l, refused(1, 1, 1))
	s.release(elsewhere(one), l, two)
	s.acquire(elsewhere(two), l, granted(1, 1))
	s.usage("alice", []jobs.Claim{two}, nil, nil)
	s.release(elsewhere(two), l)
	s.acquire(elsewhere(two), l, granted(1, 1))
	s.usage("alice", []jobs.Claim{elsewhere(two)}, nil, nil)
}

func parked(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "r")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquireFor(two, limitOf(1), long, false, refused(1, 1, 0))
	s.usage("alice", []jobs.Claim{one}, nil, nil)
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.acquire(three, limitOf(1), refused(1, 0, 2))
	s.acquire(two, limitOf(1), refused(1, 1, 1)) // keeps its place
	s.acquireFor(two, limitOf(1), long, false, refused(1, 1, 1))
	s.acquire(heldBy(two, "later"), limitOf(1), refused(1, 1, 1))
	s.acquire(three, limitOf(1), refused(1, 0, 2))
	s.usage("alice", []jobs.Claim{one}, nil, []jobs.Claim{two, three})
}

func firstInLine(s *suite) {
	l := limitOf(2)
	var line []jobs.Claim
	s.acquire(job("alice", "a", "q"), l, granted(1, 1))
	s.acquire(job("alice", "b", "q"), l, granted(2, 2))
	for i := range 12 { // names and queues in no order
		c := job("alice", fmt.Sprint(i*7%12), fmt.Sprint("queue", i*5%3))
		s.acquire(c, l, refused(2, 0, i+1))
		line = append(line, c)
	}
	s.usage("alice", []jobs.Claim{job("alice", "a", "q"), job("alice", "b", "q")}, nil, line)
	s.release(job("alice", "a", "q"), l, line[0])
	s.release(job("alice", "b", "q"), l, line[1])
	s.reserved("alice", line[0], line[1])
	for i := 2; i < len(line); i++ {
		before := line[i-2]
		if _, err := s.Slots.Acquire(s.ctx, before, l, long, true); err != nil {
			s.Fatal(err)
		}
		s.release(before, l, line[i])
		s.reserved("alice", line[i-1], line[i])
	}
}

func reservedSlot(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.release(one, limitOf(1), two)
	s.acquire(three, limitOf(1), refused(1, 1, 1))
	s.acquireFor(one, limitOf(1), long, false, refused(1, 1, 0))
	s.renewed([]jobs.Claim{two}, long, two) // nobody holds it yet
	s.reserved("alice", two)
	s.acquire(two, limitOf(1), granted(1, 1))
	s.reserved("alice")
	s.usage("alice", []jobs.Claim{two}, nil, []jobs.Claim{three})
}

func overtaking(s *suite) {
	one, two, three, four := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q"), job("alice", "4", "other")
	low, high := jobs.Limits{Total: 2, Queues: map[string]int{"q": 1}}, limitOf(3)
	s.acquire(one, low, granted(1, 1))
	s.acquire(two, low, refused(1, 1, 1))
	s.acquire(three, low, refused(1, 1, 2))
	s.acquire(job("alice", "5", "q"), high, refused(1, 1, 3)) // the limit is raised, but two could use it
	s.acquire(three, high, refused(1, 1, 2))
	s.acquireFor(four, high, long, false, refused(1, 0, 0))
	s.acquire(four, low, granted(2, 1)) // nobody before it could use that
	s.reserveFree("alice", high, two)
	s.usage("alice", []jobs.Claim{one, four}, []jobs.Claim{two}, []jobs.Claim{three, job("alice", "5", "q")})
}

func comesByItself(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.acquire(three, limitOf(1), refused(1, 1, 2))
	s.acquire(two, limitOf(2), granted(2, 2)) // nobody was before it
	s.acquire(three, limitOf(3), granted(3, 3))
	s.usage("alice", []jobs.Claim{one, two, three}, nil, nil)
	s.reserveFree("alice", limitOf(9))
}

func reserveAgain(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.acquire(three, limitOf(1), refused(1, 1, 2))
	s.reserveFree("alice", limitOf(1))
	s.reserveFree("alice", limitOf(3), two, three)
	s.reserveFree("alice", limitOf(3))
	s.reserved("alice", two, three)
	s.usage("alice", []jobs.Claim{one}, []jobs.Claim{two, three}, nil)
}

func crash(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.renewed([]jobs.Claim{one}, short) // the last time
	s.after(short, "the parked job gets a reservation", func() error {
		reserved, err := s.Slots.ReserveFree(s.ctx, "alice", limitOf(1), long)
		if err == nil && !slices.Equal(reserved, []jobs.Job{two.Job}) {
			err = fmt.Errorf("got ReserveFree = %q, want %q", reserved, two.Job)
		}
		return err
	})
	s.usage("alice", nil, []jobs.Claim{two}, nil)
	s.acquire(two, limitOf(1), granted(1, 1))
	s.release(one, limitOf(1)) // the dead worker was not dead
	s.usage("alice", []jobs.Claim{two}, nil, nil)

	s.acquireFor(job("bob", "1", "q"), limitOf(1), short, true, granted(1, 1))
	s.after(short, "another job is granted the slot", func() error {
		v, err := s.Slots.Acquire(s.ctx, job("bob", "2", "q"), limitOf(1), long, false)
		if err == nil && v != granted(1, 1) {
			err = fmt.Errorf("got Acquire = %+v", v)
		}
		return err
	})

	s.acquireFor(job("carol", "1", "q"), limitOf(1), short, true, granted(1, 1))
	s.after(short, "nothing is left of the user", func() error { return s.hasUsage("carol", nil, nil, nil) })
	s.acquire(three, limitOf(1), refused(1, 1, 1))
}

// renew cannot tell whether leases that may end did not, unless it was quick enough:
// where the clock goes by itself it tries longer and longer ones.
func renew(s *suite) {
	for lease := short; ; lease *= 2 {
		user := fmt.Sprint("alice", lease)
		one, two := job(user, "1", "q"), job(user, "2", "q")
		began := time.Now()
		first, err1 := s.Slots.Acquire(s.ctx, one, limitOf(2), lease, true)
		second, err2 := s.Slots.Acquire(s.ctx, two, limitOf(2), lease, true)
		if s.Advance != nil {
			s.Advance(lease - time.Millisecond)
		}
		got, err3 := s.Slots.Renew(s.ctx, []jobs.Claim{one}, long)
		if s.Advance == nil && time.Since(began) >= lease {
			continue
		}
		if err := errors.Join(err1, err2, err3); err != nil || first != granted(1, 1) || second != granted(2, 2) || len(got) > 0 {
			s.Fatalf("Acquire = %+v and %+v, Renew = %v, %v, want both granted and nothing lost", first, second, got, err)
		}
		s.after(time.Millisecond, "only the other lease is over", func() error {
			return s.hasUsage(user, []jobs.Claim{one}, nil, nil)
		})
		break
	}
	three := job("bob", "3", "q") // shorter than before is anew, too
	s.acquire(three, limitOf(1), granted(1, 1))
	s.renewed([]jobs.Claim{three}, short)
	s.after(short, "a lease that was renewed is over", func() error { return s.hasUsage("bob", nil, nil, nil) })
}

func lost(s *suite) {
	over, mine, taken := job("alice", "1", "q"), job("alice", "2", "q"), job("bob", "1", "q")
	free, parked := job("carol", "1", "q"), job("alice", "3", "q")
	s.renewed(nil, long)
	s.acquireFor(over, limitOf(2), short, true, granted(1, 1))
	s.after(short, "the lease is over", func() error { return s.hasUsage("alice", nil, nil, nil) })
	s.acquire(mine, limitOf(1), granted(1, 1))
	s.acquire(parked, limitOf(1), refused(1, 1, 1))
	s.acquire(taken, limitOf(1), granted(1, 1))
	s.acquire(heldBy(taken, "another"), limitOf(1), granted(1, 1))
	s.renewed([]jobs.Claim{taken, mine, over, free, parked, mine}, long, taken, over, free, parked)
	s.usage("alice", []jobs.Claim{mine}, nil, []jobs.Claim{parked})
	s.usage("carol", nil, nil, nil)
	s.acquire(over, limitOf(2), refused(1, 1, 2)) // it may come again
}

func lapse(s *suite) {
	one, two, three := job("alice", "1", "q"), job("alice", "2", "q"), job("alice", "3", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	s.acquire(two, limitOf(1), refused(1, 1, 1))
	s.acquire(three, limitOf(1), refused(1, 1, 2))
	reserved, err := s.Slots.Release(s.ctx, one, limitOf(1), short)
	s.same("Release", reserved, err, []jobs.Claim{two})
	s.after(short, "the reservation is over", func() error {
		return s.hasUsage("alice", nil, nil, []jobs.Claim{three})
	})
	s.reserved("alice")
	s.reserveFree("alice", limitOf(1), three)
	s.acquire(two, limitOf(1), refused(1, 1, 1)) // a newcomer

	s.acquire(job("bob", "1", "q"), limitOf(1), granted(1, 1))
	s.acquire(job("bob", "2", "q"), limitOf(1), refused(1, 1, 1))
	s.reserveFreeFor("bob", limitOf(2), short, job("bob", "2", "q"))
	s.after(short, "nobody waits any more", func() error {
		users, err := s.Slots.Waiting(s.ctx, "", 9)
		if err == nil && !slices.Equal(users, []string{"alice"}) {
			err = fmt.Errorf("got Waiting = %q, want alice", users)
		}
		return err
	})
}

func raised(s *suite) {
	low := jobs.Limits{Total: 3, Queues: map[string]int{"q": 1}}
	high := jobs.Limits{Total: 4, Queues: map[string]int{"q": 3}}
	s.acquire(job("alice", "1", "q"), low, granted(1, 1))
	for i := range 4 {
		s.acquire(job("alice", fmt.Sprint(i+2), "q"), low, refused(1, 1, i+1))
	}
	s.reserveFree("alice", low)
	s.reserveFree("alice", high, job("alice", "2", "q"), job("alice", "3", "q"))
	s.reserveFree("alice", limitOf(4), job("alice", "4", "q"))
	s.release(job("alice", "1", "q"), limitOf(9), job("alice", "5", "q"))
}

func lowered(s *suite) {
	for i := range 5 {
		s.acquire(job("alice", fmt.Sprint(i), "q"), limitOf(5), granted(i+1, i+1))
	}
	waits := job("alice", "waits", "other")
	s.acquire(waits, limitOf(2), refused(5, 0, 1))
	for i := range 3 {
		s.renewed([]jobs.Claim{job("alice", fmt.Sprint(i), "q")}, long)
		s.release(job("alice", fmt.Sprint(i), "q"), limitOf(2))
	}
	s.acquire(waits, limitOf(2), refused(2, 0, 1))
	s.release(job("alice", "3", "q"), limitOf(2), waits)
	s.usage("alice", []jobs.Claim{job("alice", "4", "q")}, []jobs.Claim{waits}, nil)
	l := jobs.Limits{Total: 9, Queues: map[string]int{"q": 1}}
	s.acquireFor(job("alice", "5", "q"), l, long, false, refused(2, 1, 0))
}

func forget(s *suite) {
	held, reserved := job("alice", "1", "q"), job("alice", "2", "q")
	first, middle, last := job("alice", "3", "q"), job("alice", "4", "q"), job("alice", "5", "q")
	s.acquire(job("alice", "0", "q"), limitOf(2), granted(1, 1))
	s.acquire(held, limitOf(2), granted(2, 2))
	for i, c := range []jobs.Claim{reserved, first, middle, last} {
		s.acquire(c, limitOf(2), refused(2, 2, i+1))
	}
	s.release(job("alice", "0", "q"), limitOf(2), reserved)

	s.forget(held)
	s.forget(middle)
	s.forget(middle)
	s.forget(job("alice", "never seen", "q"))
	s.forget(job("bob", "never seen", "q"))
	s.usage("alice", []jobs.Claim{held}, []jobs.Claim{reserved}, []jobs.Claim{first, last})
	s.forget(reserved)
	s.forget(reserved)
	s.usage("alice", []jobs.Claim{held}, nil, []jobs.Claim{first, last})
	s.reserveFree("alice", limitOf(2), first)
	s.forget(last)
	s.release(held, limitOf(2))
	s.forget(first)
	s.usage("alice", nil, nil, nil)
	s.acquire(middle, limitOf(1), granted(1, 1)) // it may come again
}

func waiting(s *suite) {
	page := func(after string, n int, want ...string) {
		s.Helper()
		got, err := s.Slots.Waiting(s.ctx, after, n)
		if err != nil || !slices.Equal(got, want) {
			s.Fatalf("Waiting(%q, %d) = %q, %v, want %q", after, n, got, err, want)
		}
	}
	page("", 100)
	var all []string
	for _, name := range append(slices.Clone(names), "b1", "b2", "b3") {
		s.acquire(job(name, "1", "q"), limitOf(1), granted(1, 1))
		if name[0] != 'a' {
			s.acquire(job(name, "2", "q"), limitOf(1), refused(1, 1, 1))
			all = append(all, name)
		}
	}
	slices.Sort(all) // by bytes
	page("", 1000, all...)
	for _, n := range []int{1, 2, 7, len(all) - 1, len(all)} {
		var got []string
		for after := ""; len(got) < len(all); after = got[len(got)-1] {
			want := all[len(got):min(len(got)+n, len(all))]
			page(after, n, want...)
			got = append(got, want...)
		}
		page(all[len(all)-1], n)
	}
	page("b1\x00", 1, "b2") // after one that is not there
	s.release(job("b1", "1", "q"), limitOf(1), job("b1", "2", "q"))
	page("b", 1, "b1") // whose slot is reserved
	s.acquire(job("b1", "2", "q"), limitOf(1), granted(1, 1))
	page("b", 1, "b2")
	s.forget(job("b2", "2", "q"))
	page("b", 1, "b3")
	s.release(job("b3", "1", "q"), limitOf(1), job("b3", "2", "q"))
	s.forget(job("b3", "2", "q"))
	page("b", 1, "gro\u0308ße")
}

func bounded(s *suite) {
	if s.Slow {
		return
	}
	s.acquire(job("alice", "0", "q"), limitOf(1), granted(1, 1))
	var all sync.WaitGroup
	for worker := range 64 {
		all.Go(func() {
			for i := worker; i < jobs.MaxParked; i += 64 {
				v, err := s.Slots.Acquire(s.ctx, job("alice", fmt.Sprint("parked", i), fmt.Sprint(i%3)), limitOf(1), long, true)
				if err != nil || v.Granted || v.Place == 0 {
					s.Errorf("Acquire = %+v, %v, want it parked", v, err)
					return
				}
			}
		})
	}
	all.Wait()
	s.acquire(job("alice", "one more", "q"), limitOf(1), refused(1, 1, 0))
	s.acquire(job("bob", "0", "q"), limitOf(1), granted(1, 1))
	s.acquire(job("bob", "1", "q"), limitOf(1), refused(1, 1, 1))
	u, err := s.Slots.User(s.ctx, "alice")
	if err != nil || len(u.Parked) != jobs.MaxParked {
		s.Fatalf("User has %d parked, %v, want %d", len(u.Parked), err, jobs.MaxParked)
	}
	s.forget(jobs.Claim{Job: u.Parked[5000]})
	s.acquire(job("alice", "one more", "q"), limitOf(1), refused(1, 1, jobs.MaxParked))
}

func largest(s *suite) {
	l := jobs.Limits{Total: math.MaxInt, Queues: map[string]int{"q": math.MaxInt, "r": 1}}
	one, two, three := job("alice", "1", "q"), job("alice", "2", "r"), job("alice", "3", "r")
	s.acquireFor(one, l, math.MaxInt64, true, granted(1, 1))
	s.acquireFor(two, l, math.MaxInt64, true, granted(2, 1))
	s.acquireFor(three, l, math.MaxInt64, true, refused(2, 1, 1))
	s.renewed([]jobs.Claim{one, two}, math.MaxInt64)
	reserved, err := s.Slots.Release(s.ctx, two, l, math.MaxInt64)
	s.same("Release", reserved, err, []jobs.Claim{three})
	s.reserved("alice", three)
	s.acquire(three, l, granted(2, 1))
}

func invalid(s *suite) {
	tooLong := strings.Repeat("x", jobs.MaxName+1)
	good := job("alice", "1", "q")
	claims := map[string]jobs.Claim{
		"no user": job("", "1", "q"), "no job": job("alice", "", "q"), "no holder": heldBy(good, ""),
		"a long user": job(tooLong, "1", "q"), "a long job": {Job: jobs.Job{User: "alice", ID: tooLong}, Holder: "h"},
		"a long queue": job("alice", "1", tooLong), "a long holder": heldBy(good, tooLong),
	}
	limits := map[string]jobs.Limits{
		"a limit of 0": {}, "a limit below 0": {Total: -1},
		"a queue's limit of 0":     {Total: 1, Queues: map[string]int{"x": 0}},
		"a queue's limit below 0":  {Total: 1, Queues: map[string]int{"x": -1}},
		"a limit of a long queue":  {Total: 1, Queues: map[string]int{tooLong: 1}},
		"a limit of queue q below": {Total: 1, Queues: map[string]int{"q": 0}},
	}
	check := func(what string, errs ...error) {
		s.Helper()
		for i, err := range errs {
			if !errors.Is(err, jobs.ErrInvalid) {
				s.Errorf("%s, call %d: %v, want ErrInvalid", what, i, err)
			}
		}
	}
	for name, c := range claims {
		_, acquire := s.Slots.Acquire(s.ctx, c, limitOf(1), long, true)
		_, release := s.Slots.Release(s.ctx, c, limitOf(1), long)
		_, renew := s.Slots.Renew(s.ctx, []jobs.Claim{good, c}, long)
		check(name, acquire, release, renew)
		if c.Holder != "" && len(c.Holder) <= jobs.MaxName {
			check(name, s.Slots.Forget(s.ctx, c.Job))
		}
	}
	for _, user := range []string{"", tooLong} {
		_, reserveFree := s.Slots.ReserveFree(s.ctx, user, limitOf(1), long)
		_, reserved := s.Slots.Reserved(s.ctx, user)
		_, usage := s.Slots.User(s.ctx, user)
		check(fmt.Sprintf("user of %d bytes", len(user)), reserveFree, reserved, usage)
	}
	for name, l := range limits {
		_, acquire := s.Slots.Acquire(s.ctx, good, l, long, true)
		_, release := s.Slots.Release(s.ctx, good, l, long)
		_, reserveFree := s.Slots.ReserveFree(s.ctx, "alice", l, long)
		check(name, acquire, release, reserveFree)
	}
	for _, d := range []time.Duration{0, -time.Second} {
		_, acquire := s.Slots.Acquire(s.ctx, good, limitOf(1), d, true)
		_, release := s.Slots.Release(s.ctx, good, limitOf(1), d)
		_, reserveFree := s.Slots.ReserveFree(s.ctx, "alice", limitOf(1), d)
		_, renew := s.Slots.Renew(s.ctx, []jobs.Claim{good}, d)
		check(fmt.Sprintf("lease of %v", d), acquire, release, reserveFree, renew)
	}
	for _, n := range []int{0, -1} {
		_, err := s.Slots.Waiting(s.ctx, "", n)
		check(fmt.Sprintf("page of %d", n), err)
	}
	_, err := s.Slots.Waiting(s.ctx, tooLong, 1)
	check("page after a long name", err)
	s.usage("alice", nil, nil, nil)
}

func ended(s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	one := job("alice", "1", "q")
	s.acquire(one, limitOf(1), granted(1, 1))
	_, acquire := s.Slots.Acquire(ctx, job("alice", "2", "q"), limitOf(9), long, true)
	_, release := s.Slots.Release(ctx, one, limitOf(1), long)
	_, renew := s.Slots.Renew(ctx, []jobs.Claim{one}, short)
	_, reserveFree := s.Slots.ReserveFree(ctx, "alice", limitOf(1), long)
	_, reserved := s.Slots.Reserved(ctx, "alice")
	_, waiting := s.Slots.Waiting(ctx, "", 1)
	_, usage := s.Slots.User(ctx, "alice")
	errs := []error{acquire, release, renew, reserveFree, reserved, waiting, usage, s.Slots.Forget(ctx, one.Job)}
	for i, err := range errs {
		if !errors.Is(err, context.Canceled) {
			s.Errorf("call %d: %v, want context.Canceled", i, err)
		}
	}
	s.usage("alice", []jobs.Claim{one}, nil, nil)
}
