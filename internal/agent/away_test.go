package agent

import (
	"slices"
	"testing"

	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestAway(t *testing.T) {
	type list []ratelimit.Away
	const sec = 1000
	for _, tt := range []struct {
		name  string
		lists [][]string // one in each second
		want  list       // in the last of these seconds
	}{
		{"nobody", [][]string{{"a#1", "b#1"}, {"a#1", "b#1"}}, nil},
		{"one leaves", [][]string{{"a#1", "b#1", "c#1"}, {"a#1", "b#1"}}, list{{Of: 3, Through: sec + 1 + awaySpan}}},
		{"two leave", [][]string{{"a#1", "b#1", "c#1"}, {"a#1", "b#1"}, {"a#1"}}, list{{Of: 2, Through: sec + 2 + awaySpan}, {Of: 3, Through: sec + 1 + awaySpan}}},
		{"two leave at a time", [][]string{{"a#1", "b#1", "c#1"}, {"a#1"}}, list{{Of: 3, Through: sec + 1 + awaySpan}, {Of: 3, Through: sec + 1 + awaySpan}}},
		{"it is back", [][]string{{"a#1", "b#1"}, {"a#1"}, {"a#1", "b#2"}}, list{{Of: 2, Through: sec + 2 + backSpan, Counted: sec + 3}}},
		{"it is back before it is missed", [][]string{{"a#1", "b#1"}, {"a#1", "b#1", "b#2"}, {"a#1", "b#2"}}, nil},
		{"another one comes", [][]string{{"a#1", "b#1"}, {"a#1"}, {"a#1", "c#1"}}, list{{Of: 2, Through: sec + 1 + awaySpan}}},
		{"it has gone for good", append([][]string{{"a#1", "b#1"}}, slices.Repeat([][]string{{"a#1"}}, awaySpan+2)...), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a away
			var got list
			for i, names := range tt.lists {
				a.follow(sec+int64(i), names)
				got = a.list(sec + int64(i))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("list() = %v, want %v", got, tt.want)
			}
		})
	}
}

// Of very many that leave at a time only some are left something.
func TestAwayIsBounded(t *testing.T) {
	var names []string
	for c := 'a'; c <= 'z'; c++ {
		names = append(names, string(c)+"#1")
	}
	var a away
	a.follow(1, names)
	a.follow(2, names[:1])
	if got := len(a.list(2)); got != maxAway {
		t.Errorf("%d are away, want %d", got, maxAway)
	}
	if a.list(3 + awaySpan); len(a.until) != 0 {
		t.Errorf("%d are remembered when that is over, want none", len(a.until))
	}
}

// A clock that is set back does not keep anybody away for longer.
func TestAwayWhenTheClockIsSetBack(t *testing.T) {
	var a away
	a.follow(1000, []string{"a#1", "b#1"})
	a.follow(1001, []string{"a#1"})
	if got := a.list(10); len(got) != 1 || got[0].Through != 10+awaySpan {
		t.Errorf("list() = %v, want one through %d", got, 10+awaySpan)
	}
}
