package bus_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// Each instance is right after its next heartbeat whatever messages it missed: none of these
// agents hears any.
func heartbeatsCatchUp(t *testing.T, s *server) {
	ctx := context.Background()
	a, other := s.open(t, bus.Options{}), s.open(t, bus.Options{})
	var names []string // that are there beside a
	join := func(more ...string) { names = append(names, more...) }
	leave := func(gone ...string) {
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(gone, name) })
		for _, name := range gone {
			if err := other.Leave(ctx, name); err != nil {
				t.Fatal(err)
			}
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
		{"more changes than are kept", func() {
			for i := range 40 {
				join(fmt.Sprint("more-", i))
			}
		}},
		{"all left", func() { leave(slices.Clone(names)...) }},
		{"Redis was emptied", func() { join("d", "e"); s.do(t, "FLUSHALL") }},
	} {
		step.change()
		sees(t, step.name, a, other, names)
	}
}

// sees has a and the others register until a sees exactly them: on a slow machine one may
// lapse meanwhile.
func sees(t *testing.T, what string, a, other *bus.Bus, others []string) {
	t.Helper()
	ctx := context.Background()
	want := slices.Sorted(slices.Values(append([]string{"a"}, others...)))
	proctest.Eventually(t, what, func() error {
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
	a, other := s.open(t, bus.Options{}), s.open(t, bus.Options{})
	ear := listen(t, a, bus.InstancesChannel)
	proctest.Eventually(t, "three changes in one call", func() error {
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
	proctest.Eventually(t, "announcement", func() error {
		if r, want := ear.next(t).(bus.Registry), []string{"a", "d"}; !slices.Equal(r.Instances, want) {
			return fmt.Errorf("was told of %q, want %q", r.Instances, want)
		}
		return nil
	})
}

// The first message of a Redis that was emptied names one instance. Whoever reads it when an answer
// has named more must not take that one for all.
func overtakenChange(t *testing.T, s *server) {
	a := s.open(t, bus.Options{})
	ear := listen(t, a, bus.InstancesChannel)
	var r bus.Registry
	for _, name := range []string{"a", "b"} {
		var err error
		if r, err = a.Register(context.Background(), name, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	before := r.Now.Add(-time.Hour).Truncate(time.Second)
	s.do(t, "PUBLISH", "sluice:instances", fmt.Sprintf("2 %d %d 0: 6:1-word 0 1:b", before.Unix(), before.Nanosecond()/1000))
	for {
		if told := ear.next(t).(bus.Registry); told.Now.Equal(before) {
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
	const instances, epoch, changes = "sluice:{cluster}:instances", "sluice:{cluster}:epoch", "sluice:{cluster}:changes"
	a, other := s.open(t, bus.Options{}), s.open(t, bus.Options{})
	sees(t, "two instances", a, other, []string{"b"})
	kept := s.do(t, "GET", epoch)
	log := s.do(t, "ZRANGE", changes, 0, -1, "WITHSCORES").([]any)

	sees(t, "three instances", a, other, []string{"b", "lost"})
	number := func() string { return strings.SplitN(s.do(t, "GET", epoch).(string), "-", 2)[0] }
	before := number()

	s.do(t, "SET", epoch, kept)
	s.do(t, "ZREM", instances, "lost")
	s.do(t, "DEL", changes)
	for i := 0; i < len(log); i += 2 {
		s.do(t, "ZADD", changes, log[i+1], log[i])
	}
	if _, err := s.open(t, bus.Options{}).Register(ctx, "new", "", ""); err != nil {
		t.Fatal(err)
	}
	if after := number(); after != before {
		t.Logf("the number of the epoch was %s and is %s: an instance lapsed meanwhile", before, after)
	}
	sees(t, "another third one", a, other, []string{"b", "new"})
}

// fleet registers the instances 0 to n-1 until the registry has them, a few at a time: on a slow machine
// the first ones would else lapse before the last ones come.
func fleet(t *testing.T, s *server, b *bus.Bus, n int) (epoch string) {
	t.Helper()
	const few, slow = 4, 8 // instances, and a pace at which they lapse after 12 s
	all := numbers(0, n-1)
	proctest.Eventually(t, fmt.Sprintf("%d instances", n), func() error {
		s.heard(t, all, silence{0, slow})
		there := s.do(t, "ZRANGE", "sluice:{cluster}:instances", 0, -1).([]any)
		missing := slices.DeleteFunc(slices.Clone(all), func(instance string) bool { return slices.Contains(there, any(instance)) })
		if len(missing) == 0 && len(there) == n {
			epoch = s.do(t, "GET", "sluice:{cluster}:epoch").(string)
			return nil
		}
		for instances := range slices.Chunk(missing[:min(len(missing), 16*few)], few) {
			inParallel(few, len(instances), func(i int) { _, _ = b.Register(context.Background(), instances[i], "", "") })
			s.heard(t, instances, silence{0, slow})
		}
		return fmt.Errorf("there were %d instances, want %d", len(there), n)
	})
	return epoch
}

// numbers are the names of the instances from one number to another.
func numbers(from, to int) (instances []string) {
	for i := from; i <= to; i++ {
		instances = append(instances, fmt.Sprint(i))
	}
	return instances
}

// heard puts into the registry when instances were heard.
func (s *server) heard(t *testing.T, instances []string, at silence) {
	t.Helper()
	now := s.do(t, "TIME").([]any)
	seconds, _ := strconv.ParseInt(now[0].(string), 10, 64)
	micros, _ := strconv.ParseInt(now[1].(string), 10, 64)
	score := strconv.FormatFloat(float64(seconds*1000+micros/1000-at.ago)+float64(at.pace)/16, 'f', 4, 64)
	command := []any{"ZADD", "sluice:{cluster}:instances", "XX"}
	for _, instance := range instances {
		command = append(command, score, instance)
	}
	s.do(t, command...)
}

// silence is how long ago an instance was heard last, in milliseconds, and at which pace it beats.
type silence struct {
	ago  int64
	pace int
}

// A cluster grows from 10 instances to 1000, most of which die. Nobody who lives is gone, whichever rhythm
// they have heard of, and the dead are when they were silent for six of their heartbeats.
func rhythmFollows(t *testing.T, s *server) {
	ctx := context.Background()
	b := s.open(t, bus.Options{})
	for _, tt := range []struct {
		instances int
		pace      string
	}{{10, ""}, {250, ""}, {251, "~2"}, {1000, "~4"}} {
		epoch := fleet(t, s, b, tt.instances)
		if _, pace, marked := strings.Cut(epoch, "~"); marked != (tt.pace != "") || marked && "~"+pace != tt.pace {
			t.Errorf("the epoch of %d instances is %s, want it to end with %q", tt.instances, epoch, tt.pace)
		}
	}
	for _, step := range []struct {
		name   string
		dead   int       // of the thousand, how many have been silent for too long
		silent []silence // of the first ones
		gone   []int     // of these
	}{
		{"of 1000", 0, []silence{{5000, 4}, {6100, 4}, {5000, 1}, {6100, 1}}, []int{1, 3}},
		{"990 die at once, and not all have heard of it", 990, []silence{{5000, 4}, {6100, 4}, {1000, 1}, {1600, 1}}, []int{1, 3}},
	} {
		proctest.Eventually(t, step.name, func() error {
			fleet(t, s, b, 1000)
			s.heard(t, numbers(0, 999), silence{0, 4})
			if step.dead > 0 {
				s.heard(t, numbers(1000-step.dead, 999), silence{6100, 4})
			}
			// Who lists them finds out who is dead, and nobody else knows it yet.
			if _, err := s.open(t, bus.Options{}).Instances(ctx); err != nil {
				return err
			}
			var want []string
			for i := range 1000 - step.dead {
				if !slices.Contains(step.gone, i) {
					want = append(want, fmt.Sprint(i))
				}
			}
			// That may take a while, and when nobody was heard for one, nobody is taken for dead.
			s.heard(t, numbers(0, 999-step.dead), silence{0, 4})
			for i, of := range step.silent {
				s.heard(t, numbers(i, i), of)
			}
			r, err := b.Register(ctx, "4", "", "")
			if slices.Sort(want); err == nil && !slices.Equal(r.Instances, want) {
				err = fmt.Errorf("there are %d instances, want %d without %v", len(r.Instances), len(want), step.gone)
			}
			return err
		})
	}
}
