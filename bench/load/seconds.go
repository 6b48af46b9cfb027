package load

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Seconds are counts per whole second of the wall clock.
type Seconds struct {
	First  int64 // since 1970
	Counts []int // of First and the seconds that follow
}

// At returns the count of a second; outside of what was counted it is 0.
func (s Seconds) At(second int64) int {
	if i := second - s.First; i >= 0 && i < int64(len(s.Counts)) {
		return s.Counts[i]
	}
	return 0
}

// Max returns the largest count.
func (s Seconds) Max() int {
	most := 0
	for _, n := range s.Counts {
		most = max(most, n)
	}
	return most
}

// Excess returns by how much the counts exceed a limit, added up.
func (s Seconds) Excess(limit int) int {
	sum := 0
	for _, n := range s.Counts {
		sum += max(0, n-limit)
	}
	return sum
}

func (s *Seconds) add(second int64, n int) {
	if len(s.Counts) == 0 {
		s.First = second
	}
	if second < s.First {
		s.Counts = append(make([]int, s.First-second), s.Counts...)
		s.First = second
	}
	for int64(len(s.Counts)) <= second-s.First {
		s.Counts = append(s.Counts, 0)
	}
	s.Counts[second-s.First] += n
}

// AdmittedBySecond counts the admitted requests by when their answer came. Near
// the end of a second an answer may come in the next one, so that a count may
// exceed a limit that was kept.
func (r *Report) AdmittedBySecond() Seconds {
	var s Seconds
	for _, res := range r.Results {
		if res.Admitted() {
			s.add(second(res.Answered), 1)
		}
	}
	return s
}

// Attribute counts the admitted requests by the second in which they were
// decided, as favourably to a limit per second as can be. A request was decided
// at some instant between Sent and Answered, so one that straddles the boundary
// of a second may belong to either side. If a count exceeds the limit, then no
// way of attributing the requests satisfies it: the limit was broken, whatever
// happened in between. If none does, the limit may have been kept.
//
// Slack is by how much the clock of the process that decides may differ from this one:
// the interval is that much longer on both sides.
//
// Earlier seconds are filled first, with those requests that must be attributed
// soonest. No attribution has a smaller Excess over the limit.
func (r *Report) Attribute(limit int, slack time.Duration) Seconds {
	var spans []Span
	for _, res := range r.Results {
		if res.Admitted() {
			spans = append(spans, spanOf(res.Sent, res.Answered, slack))
		}
	}
	return Attribute(spans, func(int64) int { return limit })
}

// A Span is the seconds, or windows of another length, to any one of which a request may belong.
type Span struct{ First, Last int64 }

func spanOf(from, to int64, slack time.Duration) Span {
	return Span{second(from - int64(slack)), second(to + int64(slack))}
}

// second is the second of a time in nanoseconds since 1970, before 1970 too.
func second(ns int64) int64 {
	s := ns / int64(time.Second)
	if ns < s*int64(time.Second) {
		s--
	}
	return s
}

// Attribute is the scheduling of unit jobs with release times and deadlines,
// limit of a second to each, by the earliest deadline, which is optimal. A span that
// finds no room is counted in its last second, over the limit. It sorts the spans.
func Attribute(spans []Span, limit func(second int64) int) Seconds {
	var s Seconds
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.First, b.First) })
	var open deadlines // of the spans that have begun and are not attributed
	for now := int64(0); len(spans) > 0 || len(open) > 0; now++ {
		if len(open) == 0 {
			now = spans[0].First
		}
		for len(spans) > 0 && spans[0].First == now {
			heap.Push(&open, spans[0].Last)
			spans = spans[1:]
		}
		n, room := 0, limit(now)
		for len(open) > 0 && (n < room || open[0] == now) {
			heap.Pop(&open)
			n++
		}
		s.add(now, n)
	}
	return s
}

type deadlines []int64

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i] < d[j] }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(int64)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}
