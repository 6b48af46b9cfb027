package load

import (
	"math"
	"slices"
	"time"
)

// A Report is what became of the requests of a run, or of some of them.
type Report struct {
	Start    time.Time     // of the schedule, on the wall clock
	Duration time.Duration // of the schedule
	Planned  int           // requests in the whole schedule
	CPU      time.Duration // that the process used during the run
	Targets  []string      // addresses
	Users    []string      // labels, in the order in which they first came
	Reasons  []string      // values of Sluice-Reason; the first is that there was none
	Results  []Result      // of the requests that were due, in the order of the schedule
}

// Only returns the report of those requests that keep is true of. Planned and
// CPU stay those of the whole run.
func (r *Report) Only(keep func(Result) bool) *Report {
	part := *r
	part.Results = nil
	for _, res := range r.Results {
		if keep(res) {
			part.Results = append(part.Results, res)
		}
	}
	return &part
}

// Admitted returns the report of the admitted requests.
func (r *Report) Admitted() *Report { return r.Only(Result.Admitted) }

// Refused returns the report of the requests that a limit refused.
func (r *Report) Refused() *Report { return r.Only(Result.Refused) }

// User returns the report of one user's requests, empty if there were none.
func (r *Report) User(name string) *Report {
	i := int32(slices.Index(r.Users, name))
	return r.Only(func(res Result) bool { return res.User == i })
}

// Target returns the report of the requests to the i-th target.
func (r *Report) Target(i int) *Report {
	return r.Only(func(res Result) bool { return int(res.Target) == i })
}

// Statuses counts the answers by status.
func (r *Report) Statuses() map[int]int {
	n := make(map[int]int)
	for _, res := range r.Results {
		if res.Status != 0 {
			n[int(res.Status)]++
		}
	}
	return n
}

// Failures counts the requests without a complete answer by the failure.
func (r *Report) Failures() map[Failure]int {
	n := make(map[Failure]int)
	for _, res := range r.Results {
		if res.Failure != Answered {
			n[res.Failure]++
		}
	}
	return n
}

// A Distribution is a set of durations in ascending order.
type Distribution []time.Duration

// Latency is the time from when a request was due to the last byte of its
// answer, for those answered. It includes what the requests waited for a free
// connection, as clients would have.
func (r *Report) Latency() Distribution {
	return r.times(func(res Result) int64 { return res.Received - res.Scheduled })
}

// Service is the same from when the request was sent. It says more about the
// server when all is well, and less when it is not.
func (r *Report) Service() Distribution {
	return r.times(func(res Result) int64 { return res.Received - res.Sent })
}

func (r *Report) times(of func(Result) int64) Distribution {
	var d Distribution
	for _, res := range r.Results {
		if res.Failure == Answered {
			d = append(d, time.Duration(of(res)))
		}
	}
	slices.Sort(d)
	return d
}

// Quantile returns the smallest of the durations that the part q of them, 0 to
// 1, does not exceed. Of none it is 0.
func (d Distribution) Quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(d)))) - 1
	return d[min(max(i, 0), len(d)-1)]
}
