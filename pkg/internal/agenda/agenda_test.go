package agenda_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

type thing struct {
	agenda.Place
	name string
}

const ms = int64(time.Millisecond)

func taken(g *agenda.Agenda[*thing], at int64) (names []string) {
	g.Take(at, func(x *thing) { names = append(names, x.name) })
	slices.Sort(names)
	return names
}

func TestAgenda(t *testing.T) {
	start := time.Unix(1_700_000_000, 0).UnixNano()
	var g agenda.Agenda[*thing]
	taken(&g, start)
	a, b, c, far := &thing{name: "a"}, &thing{name: "b"}, &thing{name: "c"}, &thing{name: "far"}
	g.Put(a, start+20*ms)
	g.Put(b, start+20*ms)
	g.Put(b, start+10*ms) // an earlier time moves it
	g.Put(c, start+30*ms)
	g.Put(c, start+40*ms) // a later one does not
	g.Put(far, start+int64(time.Hour))
	for _, step := range []struct {
		after time.Duration
		want  []string
	}{
		{5 * time.Millisecond, nil},
		{15 * time.Millisecond, []string{"b"}},
		{25 * time.Millisecond, []string{"a"}},
		{45 * time.Millisecond, []string{"c"}},
		{time.Second, nil},
		{3 * time.Second, []string{"far"}}, // 2.5 s at most: then it is put off again
		{time.Hour, nil},
	} {
		if got := taken(&g, start+int64(step.after)); !slices.Equal(got, step.want) {
			t.Errorf("taken after %v = %v, want %v", step.after, got, step.want)
		}
	}
}

// A clock that is set back makes everything due at once, rather than late.
func TestAgendaClockSetBack(t *testing.T) {
	start := time.Unix(1_700_000_000, 0).UnixNano()
	var g agenda.Agenda[*thing]
	taken(&g, start)
	x := &thing{name: "x"}
	g.Put(x, start+int64(time.Second))
	if got := taken(&g, start-int64(time.Hour)); !slices.Equal(got, []string{"x"}) {
		t.Errorf("taken after the clock was set back = %v, want x", got)
	}
}

// However much is due, one call looks at 4096 things, and the next at the rest.
func TestAgendaLooksAreBounded(t *testing.T) {
	var g agenda.Agenda[*thing]
	taken(&g, ms)
	for range 5000 {
		g.Put(&thing{name: "x"}, 2*ms)
	}
	if first, second := len(taken(&g, 100*ms)), len(taken(&g, 100*ms)); first != 4096 || second != 904 {
		t.Errorf("taken %d, then %d, want 4096, then 904", first, second)
	}
}

// Whoever calls Take no sooner than Next says misses nothing: what is due is looked at as soon
// as by calls in every tick.
func TestNextMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var often, seldom agenda.Agenda[*thing]
		now := time.Unix(1_700_000_000, 0).UnixNano()
		taken(&often, now)
		taken(&seldom, now)
		if _, any := seldom.Next(); any {
			t.Fatal("Next() of an empty agenda tells of something")
		}
		const longest = 50 * int64(agenda.Tick) // without a call: else what is far may be looked at too soon
		called := now
		ones, others := map[string]*thing{}, map[string]*thing{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				name := string(rune('a' + rapid.IntRange(0, 5).Draw(t, "thing")))
				if ones[name] == nil {
					ones[name], others[name] = &thing{name: name}, &thing{name: name}
				}
				at := now + ms*int64(rapid.IntRange(0, 2000).Draw(t, "in ms"))
				often.Put(ones[name], at)
				seldom.Put(others[name], at)
				continue
			}
			for range rapid.IntRange(1, 100).Draw(t, "ticks") {
				now += int64(agenda.Tick)
				want := taken(&often, now)
				at, any := seldom.Next()
				if (!any || at > now) && now-called < longest {
					if want != nil {
						t.Fatalf("%v due, but Next() = %d, %v at %d", want, at, any, now)
					}
					continue
				}
				called = now
				if got := taken(&seldom, now); !slices.Equal(got, want) {
					t.Fatalf("taken %v, want %v", got, want)
				}
			}
		}
	})
}

// An agenda from which everything was taken has nothing more.
func TestNextOfNothing(t *testing.T) {
	var g agenda.Agenda[*thing]
	taken(&g, ms)
	x := &thing{name: "x"}
	g.Put(x, 100*ms)
	g.Put(x, 50*ms)
	if at, any := g.Next(); !any || at != 55*ms {
		t.Errorf("Next() = %d ms, %v, want 55 ms", at/ms, any)
	}
	if got := taken(&g, 60*ms); len(got) != 1 {
		t.Fatalf("taken %v", got)
	}
	if at, any := g.Next(); !any || at != 105*ms { // where x stood before
		t.Errorf("Next() = %d ms, %v, want 105 ms", at/ms, any)
	}
	taken(&g, 110*ms)
	if at, any := g.Next(); any {
		t.Errorf("Next() = %d ms, want nothing", at/ms)
	}
}
