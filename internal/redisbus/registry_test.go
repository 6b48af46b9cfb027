package redisbus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// Each instance is right after its next heartbeat whatever messages it missed: none of these
// agents hears any.
func heartbeatsCatchUp(t *testing.T, s *server) {
	ctx := context.Background()
	a, other := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	var names []string // that are there beside a
	join := func(more ...string) { names = append(names, more...) }
	leave := func(gone ...string) {
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(gone, name) })
		for _, name := range gone {
			testkit.Must(t, other.Leave(ctx, name))
		}
	}
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"alone", func() {}},
		{"one joined", func() { join("b") }},
		{"nothing changed", func() {}},
		{"one joined and another left", func() { join("0", "c"); leave("b") }},
		{"one left and is back", func() { leave("c"); join("c") }},
		{"all left", func() { leave(slices.Clone(names)...) }},
		{"Redis was emptied", func() { join("d", "e"); s.do(t, "FLUSHALL") }},
	} {
		step.change()
		sees(t, step.name, a, other, names)
	}
}

// sees has a and the others register until a sees exactly them: on a slow machine one may
// lapse meanwhile.
func sees(t *testing.T, what string, a, other *redisbus.Bus, others []string) {
	t.Helper()
	ctx := context.Background()
	want := slices.Sorted(slices.Values(append([]string{"a"}, others...)))
	testkit.Eventually(t, what, func() error {
		for _, name := range others {
			if _, err := other.Register(ctx, name, "", ""); err != nil {
				return err
			}
		}
		r, err := a.Register(ctx, "a", "", "")
		if err == nil && !slices.Equal(r.Instances, want) {
			err = fmt.Errorf("Register(a) = %q, want %q", r.Instances, want)
		}
		return err
	})
}

// One call may find several instances gone, and be the first of another one. All are told
// of it at once.
func changesTogether(t *testing.T, s *server) {
	ctx := context.Background()
	a, other := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	ear := listen(t, a, redisbus.InstancesChannel)
	testkit.Eventually(t, "three changes in one call", func() error {
		s.do(t, "FLUSHALL")
		for _, name := range []string{"a", "b", "c"} {
			if _, err := a.Register(ctx, name, "", ""); err != nil {
				return err
			}
		}
		silent := time.Now().UnixMilli() - 2000
		s.do(t, "ZADD", "sluice:{cluster}:instances", silent, "b", silent, "c")
		before := s.do(t, "GET", "sluice:{cluster}:epoch").(string)
		if _, err := other.Register(ctx, "d", "", ""); err != nil {
			return err
		}
		if after := s.do(t, "GET", "sluice:{cluster}:epoch").(string); !strings.HasPrefix(before, "3-") || !strings.HasPrefix(after, "4-") {
			return fmt.Errorf("the epoch went from %s to %s, want one change", before, after)
		}
		return nil
	})
	testkit.Eventually(t, "announcement", func() error {
		if r, want := ear.next(t).(redisbus.Registry), []string{"a", "d"}; !slices.Equal(r.Instances, want) {
			return fmt.Errorf("was told of %q, want %q", r.Instances, want)
		}
		return nil
	})
}

// The first message of a Redis that was emptied names one instance. Whoever reads it when an answer
// has named more must not take that one for all.
func overtakenChange(t *testing.T, s *server) {
	a := s.open(t, redisbus.Options{})
	ear := listen(t, a, redisbus.InstancesChannel)
	var r redisbus.Registry
	for _, name := range []string{"a", "b"} {
		var err error
		if r, err = a.Register(context.Background(), name, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	before := r.Now.Add(-time.Hour).Truncate(time.Second)
	s.do(t, "PUBLISH", "sluice:instances", fmt.Sprintf("2 %d %d 0: 6:1-word 0 1:b", before.Unix(), before.Nanosecond()/1000))
	for {
		if told := ear.next(t).(redisbus.Registry); told.Now.Equal(before) {
			if want := []string{"a", "b"}; !slices.Equal(told.Instances, want) {
				t.Errorf("was told of %q, want %q", told.Instances, want)
			}
			return
		}
	}
}

// A failover to a replica that lagged takes changes back, and those made since have their
// numbers. Nobody takes one for the other.
func registryGoesBack(t *testing.T, s *server) {
	ctx := context.Background()
	const instances, epoch = "sluice:{cluster}:instances", "sluice:{cluster}:epoch"
	a, other := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	sees(t, "two instances", a, other, []string{"b"})
	kept := s.do(t, "GET", epoch)

	sees(t, "three instances", a, other, []string{"b", "lost"})
	number := func() string { return strings.SplitN(s.do(t, "GET", epoch).(string), "-", 2)[0] }
	before := number()

	s.do(t, "SET", epoch, kept)
	s.do(t, "ZREM", instances, "lost")
	if _, err := s.open(t, redisbus.Options{}).Register(ctx, "new", "", ""); err != nil {
		t.Fatal(err)
	}
	if after := number(); after != before {
		t.Logf("the number of the epoch was %s and is %s: an instance lapsed meanwhile", before, after)
	}
	sees(t, "another third one", a, other, []string{"b", "new"})
}
