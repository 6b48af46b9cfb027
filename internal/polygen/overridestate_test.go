package polygen

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// at is a time of these tests, in minutes.
func at(minutes int) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(minutes) * time.Minute)
}

func setAt(user string, concurrent, since, until int) limits.Override {
	return limits.Override{User: user, Limits: json.RawMessage(fmt.Sprintf(`{"concurrent":%d}`, concurrent)), Reason: "r", Since: at(since), Until: at(until)}
}

func stateOf(writes ...limits.Override) (s overrideState) {
	for _, o := range writes {
		if o.Limits == nil {
			s.remove(o)
		} else {
			s = s.merge(overrideState{list: []limits.Override{o}})
		}
	}
	return s
}

func TestOverrideStateMerge(t *testing.T) {
	ten, fifty := setAt("bob", 10, 1, 90), setAt("bob", 50, 2, 60)
	removed := removalOf(fifty, at(3))
	for _, tt := range []struct {
		name          string
		a, b          overrideState
		list, removed int // how many
		concurrent    string
	}{
		{"nothing", overrideState{}, overrideState{}, 0, 0, ""},
		{"one lacks what the other has", stateOf(ten), overrideState{}, 1, 0, `{"concurrent":10}`},
		{"the later one counts, and the longer one does not come back", stateOf(ten), stateOf(fifty), 1, 1, `{"concurrent":50}`},
		{"one was removed", stateOf(fifty, removed), stateOf(fifty), 0, 1, ""},
		{"it was set again after that", stateOf(fifty, removed), stateOf(setAt("bob", 70, 4, 50)), 1, 1, `{"concurrent":70}`},
		{"an older one of a removed user", stateOf(removed), stateOf(ten), 0, 1, ""},
		{"other users", stateOf(removed), stateOf(setAt("eve", 10, 1, 90)), 1, 1, `{"concurrent":10}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range []overrideState{tt.a.merge(tt.b), tt.b.merge(tt.a)} {
				if len(s.list) != tt.list || len(s.removed) != tt.removed || tt.list > 0 && string(s.list[0].Limits) != tt.concurrent {
					t.Errorf("merge = %+v, want %d overrides, the first one of %s, and %d removals", s, tt.list, tt.concurrent, tt.removed)
				}
			}
		})
	}
}

// Whatever is written on which side, and in whatever order sides hear of each other: all that have heard of all
// say the same, which is what the last write of each user said.
func TestOverrideStatesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sides := make([]overrideState, 3)
		last := map[string]limits.Override{}
		for range rapid.IntRange(1, 12).Draw(t, "writes") {
			side := &sides[rapid.IntRange(0, 2).Draw(t, "side")]
			user := rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "user")
			minute := int(side.stamp(at(0)).Sub(at(0)) / time.Minute)
			for _, s := range sides { // each write has a time of its own
				minute = max(minute, int(s.stamp(at(0)).Sub(at(0))/time.Minute))
			}
			minute++
			if before, there := side.find(user); there && rapid.Bool().Draw(t, "remove") {
				side.remove(removalOf(before, at(minute)))
				last[user] = removalOf(before, at(minute))
			} else {
				o := setAt(user, minute, minute, minute+rapid.IntRange(1, 60).Draw(t, "for"))
				*side = side.merge(stateOf(o))
				last[user] = o
			}
			if rapid.Bool().Draw(t, "hear") {
				from := rapid.IntRange(0, 2).Draw(t, "from")
				*side = side.merge(sides[from])
			}
		}
		a := sides[0].merge(sides[1]).merge(sides[2])
		for _, other := range []overrideState{sides[2].merge(sides[1]).merge(sides[0]), sides[0].merge(sides[1].merge(sides[2])), a.merge(sides[1])} {
			if !a.equal(other) {
				t.Fatalf("states differ:\n%+v\n%+v", a, other)
			}
		}
		for user, o := range last {
			got, there := a.find(user)
			if there != (o.Limits != nil) || there && !got.Since.Equal(o.Since) {
				t.Fatalf("%s has %+v (%v), want the last write %+v", user, got, there, o)
			}
		}
	})
}

func TestOverrideStateFits(t *testing.T) {
	var s overrideState
	for i := range limitfile.MaxOverrides + 3 {
		s.list = append(s.list, setAt(fmt.Sprint("u", i), 7, i, 10_000))
	}
	long := fmt.Sprintf("%0*d", limitfile.MaxOverridesSize/3, 0)
	for i := range 4 {
		s.removed = append(s.removed, limits.Override{User: fmt.Sprint(i, long), Since: at(i), Until: at(9)})
	}
	dropped := s.fit()
	if dropped != 3+2 || !fits(s.list) || !fits(s.removed) {
		t.Errorf("fit = %d, %d overrides and %d removals are left, want 5 dropped", dropped, len(s.list), len(s.removed))
	}
	for _, gone := range []string{"u0", "u1", "u2"} {
		if _, there := s.find(gone); there {
			t.Errorf("%s is there: the oldest should go", gone)
		}
	}
	if again := s.fit(); again != 0 {
		t.Errorf("fit dropped %d more", again)
	}
}

// Times of writes grow, whatever the clock does.
func TestOverrideStamp(t *testing.T) {
	s := stateOf(setAt("bob", 10, 5, 90))
	if got := s.stamp(at(3)); !got.Equal(at(5).Add(time.Millisecond)) {
		t.Errorf("with the clock set back stamp = %v, want just after the last write", got)
	}
	if got := s.stamp(at(7)); !got.Equal(at(7)) {
		t.Errorf("stamp = %v, want now", got)
	}
}
