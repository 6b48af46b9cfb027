package overload

import "time"

// Waits counts durations by the millisecond.
type Waits struct {
	Counts  []int
	N       int
	Longest time.Duration
}

func (w *Waits) add(d time.Duration) {
	for int64(len(w.Counts)) <= d.Milliseconds() {
		w.Counts = append(w.Counts, 0)
	}
	w.Counts[d.Milliseconds()]++
	w.N++
	w.Longest = max(w.Longest, d)
}

// merge adds all of other ones.
func (w *Waits) merge(others Waits) {
	if n := len(others.Counts) - len(w.Counts); n > 0 {
		w.Counts = append(w.Counts, make([]int, n)...)
	}
	for ms, n := range others.Counts {
		w.Counts[ms] += n
	}
	w.N += others.N
	w.Longest = max(w.Longest, others.Longest)
}

// quantile is what a part of the durations, 0 to 1, was not longer than, to the millisecond; 0 of none.
func (w *Waits) quantile(part float64) time.Duration {
	sum := 0
	for ms, n := range w.Counts {
		if sum += n; n > 0 && float64(sum) >= part*float64(w.N) {
			return min(time.Duration(ms+1)*time.Millisecond, w.Longest)
		}
	}
	return 0
}
