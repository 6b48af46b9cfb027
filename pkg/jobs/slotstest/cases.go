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

func renewForLonger(s *suite) {
	one := newClaim("alice", "1", "q")
	s.playSteps("acquire alice:1@q of 2 -> granted, 1 running, 1 in its queue", "acquire alice:2@q of 2 -> granted, 2 running, 2 in its queue")
	if lost, err := s.Slots.Renew(s.ctx, []jobs.Claim{one}, 2*long); err != nil || len(lost) > 0 {
		s.Fatalf("Renew = %v, %v, want nothing lost", lost, err)
	}
	usage, err := s.Slots.User(s.ctx, "alice")
	for _, slot := range usage.Held {
		if (slot.Left > long) != (slot.Job == one.Job) {
			s.Errorf("%v are left of %q's slot, want more than %v of the one that was renewed alone", slot.Left, slot.ID, long)
		}
	}
	if err != nil || len(usage.Held) != 2 {
		s.Errorf("User = %+v, %v, want two slots held", usage, err)
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

// arguments are those of all methods, each of which takes some of them.
type arguments struct {
	claim  jobs.Claim
	user   string
	limits jobs.Limits
	length time.Duration // of a lease or reservation
	after  string
	page   int
}

// refusedCalls makes calls with one argument that is wrong, and calls whose context has
// ended. Those that take it have to fail without doing anything.
func refusedCalls(s *suite) {
	s.playSteps("acquire alice:1@q of 1 -> granted, 1 running, 1 in its queue", "acquire alice:2@q of 1 -> refused, 1 running, 1 in its queue, place 1")
	const ofClaim, ofLimits, ofLength = "acquire release renew", "acquire release reserve", "acquire release reserve renew"
	tooLong := strings.Repeat("x", jobs.MaxName+1)
	for _, wrong := range []struct {
		calls  string
		change func(*arguments)
	}{
		{ofClaim + " forget", func(a *arguments) { a.claim.User = "" }},
		{ofClaim + " forget", func(a *arguments) { a.claim.User = tooLong }},
		{ofClaim + " forget", func(a *arguments) { a.claim.ID = "" }},
		{ofClaim + " forget", func(a *arguments) { a.claim.ID = tooLong }},
		{ofClaim + " forget", func(a *arguments) { a.claim.Queue = tooLong }},
		{ofClaim, func(a *arguments) { a.claim.Holder = "" }},
		{ofClaim, func(a *arguments) { a.claim.Holder = tooLong }},
		{"reserve usage taken", func(a *arguments) { a.user = "" }},
		{"reserve usage taken", func(a *arguments) { a.user = tooLong }},
		{ofLimits, func(a *arguments) { a.limits.Total = 0 }},
		{ofLimits, func(a *arguments) { a.limits.Total = -1 }},
		{ofLimits, func(a *arguments) { a.limits.EachQueue = -1 }},
		{ofLimits, func(a *arguments) { a.limits.Queues = map[string]int{"x": 0} }},
		{ofLimits, func(a *arguments) { a.limits.Queues = map[string]int{tooLong: 1} }},
		{ofLength, func(a *arguments) { a.length = 0 }},
		{ofLength, func(a *arguments) { a.length = -time.Second }},
		{"waiting", func(a *arguments) { a.page = 0 }},
		{"waiting", func(a *arguments) { a.page = -1 }},
		{"waiting", func(a *arguments) { a.after = tooLong }},
	} {
		a := arguments{newClaim("alice", "1", "q"), "alice", limitOf(9), long, "", 1}
		wrong.change(&a)
		s.wantErrors(s.ctx, a, wrong.calls, jobs.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	good := arguments{newClaim("alice", "1", "q"), "alice", limitOf(9), short, "", 1}
	s.wantErrors(ctx, good, ofLength+" forget usage taken waiting", context.Canceled)
	s.playSteps("usage alice -> held alice:1@q; parked alice:2@q")
}

// wantErrors makes the calls of these names, and checks that all fail with an error.
func (s *suite) wantErrors(ctx context.Context, a arguments, calls string, want error) {
	s.Helper()
	for _, call := range strings.Fields(calls) {
		var err error
		switch call {
		case "acquire":
			_, err = s.Slots.Acquire(ctx, a.claim, a.limits, a.length, true)
		case "release":
			_, err = s.Slots.Release(ctx, a.claim, a.limits, a.length)
		case "renew":
			_, err = s.Slots.Renew(ctx, []jobs.Claim{newClaim("alice", "1", "q"), a.claim}, a.length)
		case "forget":
			err = s.Slots.Forget(ctx, a.claim.Job)
		case "reserve":
			_, err = s.Slots.ReserveFree(ctx, a.user, a.limits, a.length)
		case "usage":
			_, err = s.Slots.User(ctx, a.user)
		case "taken":
			_, err = s.Slots.Taken(ctx, []string{"alice", a.user})
		case "waiting":
			_, err = s.Slots.Waiting(ctx, a.after, a.page)
		}
		if !errors.Is(err, want) {
			s.Errorf("%s of %.300v: %v, want %v", call, a, err, want)
		}
	}
}
