package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// at is a time in the seconds 100 and following, as nanoseconds.
func at(seconds float64) int64 { return 100e9 + int64(seconds*1e9) }

// admitted, refused and lost are results of requests sent at one time and answered at another.
func admitted(sent, answered float64) Result {
	return Result{Scheduled: at(sent), Sent: at(sent), Answered: at(answered), Received: at(answered), Status: 200}
}

func refused(sent, answered float64) Result {
	r := admitted(sent, answered)
	r.Status, r.Reason = 429, 1
	return r
}

func lost(sent, given float64, f Failure) Result {
	return Result{Scheduled: at(sent), Sent: at(sent), Received: at(given), Failure: f}
}

func TestAttribute(t *testing.T) {
	tests := []struct {
		name   string
		limit  int
		slack  time.Duration
		in     []Result
		want   []int // from second 100
		excess int
	}{
		{"none", 1, 0, nil, nil, 0},
		{"within a second", 2, 0, []Result{admitted(0.1, 0.2), admitted(0.3, 0.4)}, []int{2}, 0},
		{"one too many within a second", 1, 0, []Result{admitted(0.1, 0.2), admitted(0.3, 0.4)}, []int{2}, 1},
		{"a straddler fills the earlier second", 2, 0, []Result{admitted(0.1, 0.2), admitted(0.9, 1.1)}, []int{2}, 0},
		{"a straddler makes way", 1, 0, []Result{admitted(0.1, 0.2), admitted(0.9, 1.1)}, []int{1, 1}, 0},
		{"a straddler has no way out", 1, 0, []Result{admitted(0.1, 0.2), admitted(0.9, 1.1), admitted(1.2, 1.3)}, []int{1, 2}, 1},
		{"who must leave first goes first", 1, 0, []Result{admitted(0.5, 2.5), admitted(0.6, 1.5), admitted(0.7, 0.8)}, []int{1, 1, 1}, 0},
		{"a gap", 1, 0, []Result{admitted(0.1, 0.2), admitted(3.1, 3.2)}, []int{1, 0, 0, 1}, 0},
		{"the last nanosecond is of its second", 1, 0, []Result{admitted(0.1, 0.999999999), admitted(1, 1)}, []int{1, 1}, 0},
		{"slack lets neighbours in", 1, 20 * ms, []Result{admitted(0.1, 0.2), admitted(0.97, 0.99)}, []int{1, 1}, 0},
		{"slack is no more than it is", 1, 20 * ms, []Result{admitted(0.1, 0.2), admitted(0.96, 0.979)}, []int{2}, 1},
		{"refused and lost ones do not count", 1, 0, []Result{admitted(0.1, 0.2), refused(0.1, 0.2), lost(0.1, 0.2, Closed)}, []int{1}, 0},
		{"a body that takes longer than the decision does not help", 1, 0, []Result{admitted(0.1, 0.2),
			{Sent: at(0.3), Answered: at(0.4), Received: at(1.5), Status: 200}}, []int{2}, 1},
		{"a limit of zero", 0, 0, []Result{admitted(0.1, 1.2)}, []int{0, 1}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := (&Report{Results: tt.in}).Attribute(tt.limit, tt.slack)
			if len(tt.want) > 0 && got.First != 100 {
				t.Errorf("First = %d, want 100", got.First)
			}
			if diff := cmp.Diff(tt.want, got.Counts); diff != "" || got.Excess(tt.limit) != tt.excess {
				t.Errorf("Excess = %d, want %d; counts (-want +got):\n%s", got.Excess(tt.limit), tt.excess, diff)
			}
		})
	}
}

// On every small input the attribution is one, and none is better: compared
// with all that there are.
func TestAttributeIsOptimal(t *testing.T) {
	const seconds = 4
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 3).Draw(t, "limit")
		var spans []Span
		for range rapid.IntRange(0, 7).Draw(t, "requests") {
			first := rapid.Int64Range(0, seconds-1).Draw(t, "first")
			spans = append(spans, Span{first, rapid.Int64Range(first, seconds-1).Draw(t, "last")})
		}
		best := bruteForce(spans, limit, make([]int, seconds))
		in := fmt.Sprint(spans)
		got := Attribute(spans, func(int64) int { return limit })

		if got.Excess(limit) != best {
			t.Errorf("Attribute(%s, %d) = %v, %d over the limit; want %d", in, limit, got, got.Excess(limit), best)
		}
		if (got.Max() <= limit) != (best == 0) {
			t.Errorf("Attribute(%s, %d).Max() = %d, but the least excess is %d", in, limit, got.Max(), best)
		}
		sum := 0
		for _, n := range got.Counts {
			sum += n
		}
		if sum != len(spans) {
			t.Errorf("Attribute(%s, %d) counts %d requests of %d", in, limit, sum, len(spans))
		}
	})
}

// bruteForce is the least excess of all attributions.
func bruteForce(spans []Span, limit int, counts []int) int {
	if len(spans) == 0 {
		return Seconds{Counts: counts}.Excess(limit)
	}
	best := 1 << 30
	for s := spans[0].First; s <= spans[0].Last; s++ {
		counts[s]++
		best = min(best, bruteForce(spans[1:], limit, counts))
		counts[s]--
	}
	return best
}

func TestRatios(t *testing.T) {
	r := &Report{
		Start:    time.Unix(0, at(0)),
		Duration: 2500 * ms,
		Results: []Result{
			admitted(0.1, 0.2), admitted(0.3, 0.4), admitted(0.99, 1.01), // the third is decided in either
			admitted(1.1, 1.2), refused(1.5, 1.6), refused(1.7, 1.8), lost(1.9, 1.95, Closed),
			admitted(2.1, 2.2),
			{Scheduled: at(2.2), Received: at(2.3), Failure: Dropped},
		},
	}
	want := Ratios{
		Limit: 2,
		Rows: []Row{
			{Second: 100, Whole: true, Offered: 3, Admitted: 2, Answered: 2, Ratio: 1},
			{Second: 101, Whole: true, Offered: 4, Admitted: 2, Answered: 2, Refused: 2, Ratio: 1},
			{Second: 102, Offered: 1, Admitted: 1, Answered: 1, Ratio: 0.5},
		},
		Max: 1, Mean: 1,
	}
	if diff := cmp.Diff(want, r.Ratios(2, 0)); diff != "" {
		t.Errorf("Ratios(2) (-want +got):\n%s", diff)
	}
	over := r.Ratios(1, 0)
	if over.Max != 2 || over.Mean != 2 || over.Excess != 2 {
		t.Errorf("Ratios(1) = max %v, mean %v, excess %d; want 2, 2, 2", over.Max, over.Mean, over.Excess)
	}
	if got := (&Report{}).Ratios(1, 0); len(got.Rows) != 0 || got.Max != 0 || got.Mean != 0 {
		t.Errorf("Ratios of nothing = %+v", got)
	}
}

func TestFalseRefusals(t *testing.T) {
	tests := []struct {
		name  string
		limit int
		slack time.Duration
		in    []Result
		want  int
	}{
		{"below the limit", 2, 0, []Result{admitted(0.1, 0.2), refused(0.3, 0.4)}, 1},
		{"above the limit", 1, 0, []Result{admitted(0.1, 0.2), refused(0.3, 0.4)}, 0},
		{"another second's requests do not justify it", 1, 0, []Result{admitted(0.1, 0.2), refused(1.3, 1.4)}, 1},
		{"a straddler may", 1, 0, []Result{admitted(0.9, 1.1), refused(1.3, 1.4)}, 0},
		{"a straddling refusal has two seconds to be justified in", 1, 0, []Result{admitted(1.2, 1.3), refused(0.9, 1.1)}, 0},
		{"slack may", 1, 200 * ms, []Result{admitted(0.8, 0.9), refused(1.3, 1.4)}, 0},
		{"a lost request may have counted", 1, 0, []Result{lost(0.1, 0.2, Closed), refused(0.3, 0.4)}, 0},
		{"until the server closed", 1, 0, []Result{lost(0.1, 0.2, Closed), refused(1.3, 1.4)}, 1},
		{"one that timed out may count at any later time", 1, 0, []Result{lost(0.1, 0.2, TimedOut), refused(7.3, 7.4)}, 0},
		{"one not sent cannot", 1, 0, []Result{{Scheduled: at(0.1), Received: at(0.2), Failure: NoConnect}, refused(0.3, 0.4)}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&Report{Results: tt.in}).Ratios(tt.limit, tt.slack).FalseRefusals; got != tt.want {
				t.Errorf("FalseRefusals = %d, want %d", got, tt.want)
			}
		})
	}
}
