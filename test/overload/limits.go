package overload

import (
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/bench/load"
)

// limitFile is what the cluster limits. "minute" can have no credit, so the agent is asked about each of its requests.
const limitFile = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 20}, concurrent: 50}
  hot: {requests: {GET: 100}}
  minute: {requests: {GET: {minute: 6000}}}
users:
  "hot-*": hot
  "minute-*": minute
`

// limit is the same for the judge.
type limit struct{ requests, seconds int }

func limitOf(user string) limit {
	switch {
	case strings.HasPrefix(user, "hot-"):
		return limit{100, 1}
	case strings.HasPrefix(user, "minute-"):
		return limit{6000, 60}
	}
	return limit{20, 1}
}

// lateAllowance is what all HAProxies together admit of a user in a second besides, while their agents live but answer too late: each a
// tenth of its even part of the default tier's limit, one at least. See docs/failures.md.
const lateAllowance = instances * max(1, (20/instances+9)/10)

// Exactness is what users were let through in their windows.
type Exactness struct {
	User    string  // the worst
	Worst   float64 // admitted ÷ limit, most
	Over    int     // requests over a limit and what is allowed besides
	Hot     float64 // admitted ÷ limit of those who ask for more than a limit by the second, on average of the seconds that were asked for
	Windows int     // that were looked at
}

// exactness attributes what arrived to windows, as favourably to the limits as can be. The seconds, both included, are those in which
// the hot asked all the time: a request may arrive long after that, of a client who is gone.
func exactness(arrived map[string]map[load.Span]int, seconds load.Span) (e Exactness) {
	for user, counts := range arrived {
		l := limitOf(user)
		var spans []load.Span
		for s, n := range counts {
			s.First, s.Last = s.First/int64(l.seconds), s.Last/int64(l.seconds)
			spans = append(spans, slices.Repeat([]load.Span{s}, n)...)
		}
		allowed := l.requests + lateAllowance*l.seconds
		windows := load.Attribute(spans, func(int64) int { return allowed })
		e.Windows += len(windows.Counts)
		e.Over += windows.Excess(allowed)
		if worst := float64(windows.Max()) / float64(l.requests); worst > e.Worst {
			e.Worst, e.User = worst, user
		}
		for second := seconds.First; second <= seconds.Last && strings.HasPrefix(user, "hot-"); second++ {
			e.Hot += float64(windows.At(second)) / float64(l.requests) / few / float64(seconds.Last-seconds.First+1)
		}
	}
	return e
}
