package slotstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// strangeNames could be mistaken for each other by who joins them to a key, or cuts them.
var strangeNames = []string{
	"a", "A", " ", "a ", "a:b", "a:", ":a", "a|b", "a b", "{a}", "}{", "a\x00", "\x00", "a\x00b", "\xff", "\xff\xfe", "\r\n",
	"größe", "gro\u0308ße", "0", "1", "-1", "01", "1e3", "nil", "null", "'; --", `"\`, "%s", "*", "[a]", "h", "r", "p", "q", "n",
	strings.Repeat("x", jobs.MaxName), strings.Repeat("\xff", jobs.MaxName),
}

// anyBytes has names as users, queues, jobs and holders.
func anyBytes(s *suite) {
	s.names = names{}
	limits := "2"
	for i, name := range strangeNames {
		word := fmt.Sprint("name", i)
		s.names[word] = name
		limits += "," + word + "=1"
	}
	for _, part := range [][]string{{
		"acquire ONE:ONE@ONE!ONE of LIMITS -> granted, 1 running, 1 in its queue",
		"acquire ONE:OTHER@ONE!OTHER of LIMITS -> refused, 1 running, 1 in its queue, place 1",
		"acquire ONE:third@OTHER!ONE of LIMITS -> granted, 2 running, 1 in its queue",
	}, { // now that all users have jobs
		"renew ONE:ONE@ONE!ONE ONE:OTHER@ONE!OTHER ONE:third@OTHER!ONE -> ONE:OTHER@ONE!OTHER",
		"release ONE:ONE@ONE!ONE of LIMITS -> ONE:OTHER@ONE",
		"reserved ONE -> ONE:OTHER@ONE",
		"usage ONE -> held ONE:third@OTHER!ONE; reserved ONE:OTHER@ONE",
		"acquire ONE:OTHER@ONE!OTHER of LIMITS -> granted, 2 running, 1 in its queue",
		"release ONE:OTHER@ONE!OTHER of LIMITS -> nothing",
		"usage ONE -> held ONE:third@OTHER!ONE",
	}} {
		for i := range strangeNames {
			one, other := fmt.Sprint("name", i), fmt.Sprint("name", (i+1)%len(strangeNames))
			words := strings.NewReplacer("ONE", one, "OTHER", other, "LIMITS", limits)
			for _, step := range part {
				s.playSteps(words.Replace(step))
			}
		}
	}
}

// renewInTime cannot tell whether leases that may end did not, unless it was quick enough:
// where the clock goes by itself it tries longer and longer ones.
func renewInTime(s *suite) {
	for lease := short; ; lease *= 2 {
		user := fmt.Sprint("alice", lease)
		one, two := newClaim(user, "1", "q"), newClaim(user, "2", "q")
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
		if err := errors.Join(err1, err2, err3); err != nil || !first.Granted || !second.Granted || len(got) > 0 {
			s.Fatalf("Acquire = %+v and %+v, Renew = %v, %v, want both granted and nothing lost", first, second, got, err)
		}
		s.afterTime(time.Millisecond, "only the other lease is over", func() error {
			usage, err := s.Slots.User(s.ctx, user)
			if got, want := s.usageText(usage), "held "+s.jobText(one.Job); err == nil && got != want {
				err = fmt.Errorf("the usage is %q, want %q", got, want)
			}
			return err
		})
		return
	}
}

func waiting(s *suite) {
	s.playSteps("waiting 100 -> nothing")
	var all []string
	for _, name := range strangeNames {
		s.names = names{"user": name}
		s.playSteps("acquire user:1@q of 1 -> granted, 1 running, 1 in its queue")
		if name[0] != 'a' {
			s.playSteps("acquire user:2@q of 1 -> refused, 1 running, 1 in its queue, place 1")
			all = append(all, name)
		}
	}
	slices.Sort(all) // by bytes
	for _, size := range []int{1, 2, 7, len(all) - 1, len(all), 1000} {
		after := ""
		for rest := all; ; rest = rest[min(size, len(rest)):] {
			got, err := s.Slots.Waiting(s.ctx, after, size)
			if want := rest[:min(size, len(rest))]; err != nil || !slices.Equal(got, want) {
				s.Fatalf("Waiting(%q, %d) = %q, %v, want %q", after, size, got, err, want)
			}
			if len(rest) == 0 {
				break
			}
			after = got[len(got)-1]
		}
	}
}

func bounded(s *suite) {
	if s.Slow {
		return
	}
	s.playSteps("acquire alice:0@q of 1 -> granted, 1 running, 1 in its queue")
	var all sync.WaitGroup
	for worker := range 64 {
		all.Go(func() {
			for i := worker; i < jobs.MaxParked; i += 64 {
				v, err := s.Slots.Acquire(s.ctx, newClaim("alice", fmt.Sprint("parked", i), fmt.Sprint(i%3)), limitOf(1), long, true)
				if err != nil || v.Granted || v.Place == 0 {
					s.Errorf("Acquire = %+v, %v, want it parked", v, err)
					return
				}
			}
		})
	}
	all.Wait()
	s.playSteps(
		"acquire alice:more@q of 1 -> refused, 1 running, 1 in its queue",
		"acquire bob:0@q of 1 -> granted, 1 running, 1 in its queue",
		"acquire bob:1@q of 1 -> refused, 1 running, 1 in its queue, place 1",
	)
	u, err := s.Slots.User(s.ctx, "alice")
	if err != nil || len(u.Parked) != jobs.MaxParked {
		s.Fatalf("User has %d parked, %v, want %d", len(u.Parked), err, jobs.MaxParked)
	}
	s.playSteps(
		"forget "+s.jobText(u.Parked[5000])+" -> nothing",
		fmt.Sprintf("acquire alice:more@q of 1 -> refused, 1 running, 1 in its queue, place %d", jobs.MaxParked),
	)
}

func invalid(s *suite) {
	tooLong := strings.Repeat("x", jobs.MaxName+1)
	good := newClaim("alice", "1", "q")
	claims := map[string]jobs.Claim{
		"no user": newClaim("", "1", "q"), "no job": newClaim("alice", "", "q"), "no holder": {Job: good.Job},
		"a long user": newClaim(tooLong, "1", "q"), "a long job": {Job: jobs.Job{User: "alice", ID: tooLong}, Holder: "h"},
		"a long queue": newClaim("alice", "1", tooLong), "a long holder": {Job: good.Job, Holder: tooLong},
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
	s.playSteps("usage alice -> nothing")
}

func endedContext(s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	one := newClaim("alice", "1", "q")
	s.playSteps("acquire alice:1@q of 1 -> granted, 1 running, 1 in its queue")
	_, acquire := s.Slots.Acquire(ctx, newClaim("alice", "2", "q"), limitOf(9), long, true)
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
	s.playSteps("usage alice -> held alice:1@q")
}
