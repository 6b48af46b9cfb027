package judge

import (
	"math"
	"time"
)

// step is how finely bytes are counted: as transfers are written down.
const step = 100 * time.Millisecond

// movement is bytes that moved evenly between two times.
type movement struct {
	from, to time.Time
	bytes    int64
}

const (
	down = iota
	up
)

// addMovements gives each user the bytes of their transfers, and those of requests that were too short to be one.
func (t *trial) addMovements(of func(user string) *account) {
	transfers := map[string]bool{}
	for _, x := range t.history.Transfers {
		transfers[x.ID] = true
		a := of(x.User)
		for direction, bytes := range [2]int64{down: x.Down, up: x.Up} {
			if bytes > 0 {
				a.moved[direction] = append(a.moved[direction], movement{x.At.Add(-step), x.At, bytes})
			}
		}
	}
	for i := range t.history.Requests {
		r := &t.history.Requests[i]
		arrival := t.arrivals[r.ID]
		if arrival == nil || transfers[r.ID] {
			continue
		}
		a := of(r.User)
		if r.Down > 0 {
			a.moved[down] = append(a.moved[down], movement{arrival.At, r.Done, r.Down})
		}
		if arrival.Up > 0 {
			a.moved[up] = append(a.moved[up], movement{r.Sent, arrival.Ended, arrival.Up})
		}
	}
}

// judgeBytes compares the bytes of each second, beginning at each tenth of one, with the limit.
func (t *trial) judgeBytes(a *account) {
	for direction, what := range [2]string{down: "bytes down in a second", up: "bytes up in a second"} {
		of := func(v version) int64 { return [2]int64{down: v.down, up: v.up}[direction] }
		limited := false
		for _, v := range a.versions {
			limited = limited || of(v) > 0
		}
		if !limited || len(a.moved[direction]) == 0 {
			continue
		}
		first, steps := spread(a.moved[direction])
		sum, worst := 0.0, Observation{}
		const second = int(time.Second / step)
		for i := range steps {
			sum += steps[i]
			if i >= second {
				sum -= steps[i-second]
			}
			end := first.Add(time.Duration(i+1) * step)
			begin := end.Add(-time.Second)
			limit := most(inForce(a.versions, begin, end), of)
			if !math.IsInf(limit, 1) && sum*max(worst.Limit, 1) > worst.Count*limit {
				worst = Observation{Property: Bytes, User: a.user, Instance: -1, What: what, Begin: begin, End: end, Count: sum, Limit: limit, Default: math.Inf(1)}
			}
			if (i%second == second-1 || i == len(steps)-1) && worst.Count > 0 {
				t.tell(worst)
				worst = Observation{}
			}
		}
	}
}

func spread(moved []movement) (first time.Time, steps []float64) {
	first, last := moved[0].from, moved[0].to
	for _, m := range moved {
		if m.from.Before(first) {
			first = m.from
		}
		if m.to.After(last) {
			last = m.to
		}
	}
	first = first.Truncate(step)
	steps = make([]float64, last.Sub(first)/step+1)
	for _, m := range moved {
		from, to := m.from.Sub(first), max(m.to.Sub(first), m.from.Sub(first)+1)
		for i := from / step; i <= (to-1)/step; i++ {
			part := min(to, (i+1)*step) - max(from, i*step)
			steps[i] += float64(m.bytes) * float64(part) / float64(to-from)
		}
	}
	return first, steps
}
