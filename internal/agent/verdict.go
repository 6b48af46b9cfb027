package agent

import (
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type verdict struct {
	allowed   bool
	uncounted bool          // of an allowed request: it does not count as in progress
	priority  int           // of an allowed request: HAProxy's priority class
	share     [2]int64      // of an allowed request, by direction: bytes per second; 0: not limited
	left      *quotaLeft    // of an allowed request, if the access log wants to know
	credit    *grant        // of an allowed request: what HAProxy may admit by itself from now on
	charged   *costs        // of an allowed request, if what it costs is limited
	behind    bool          // of an allowed request: ask again for what its body says that it costs
	wait      time.Duration // not yet: ask again in line, which may take so long

	others string // the key that the user shares with others; "" if they have their own

	cause  cause.Cause   // of a refused request: who found that nothing is left
	limit  int           // that refused it, in requests in progress; 0 if another did,
	rate   limits.Rate   // which is this one,
	cost   limits.Cost   // or this one
	retry  time.Duration // from now, its window ends,
	window int64         // which has so many seconds
}

// Names of what refuses, as the variable sluice.reason has them.
const (
	rateReason = "request-rate"
	slotReason = "concurrent-requests"
	costReason = "cost"
	zeroReason = "denied" // a limit of 0 of requests or of what they cost
)

// answerQuestion answers one request start. HAProxy gets variables only if the request is
// refused or has to wait, has a priority of its own or a share of bandwidth, or counts
// for another key than the user's own.
func (a *Agent) answerQuestion(r *spop.Request) {
	q := readQuestion(r)
	v := a.verdict(q)
	// HAProxy tracks by this key what it lets through or makes wait: its tables must count the request
	// where the agent does. What is refused is not tracked.
	if v.others != "" && (v.allowed || v.wait > 0) {
		r.SetString("others", v.others)
	}
	switch {
	case v.allowed:
		// It passes: that HAProxy cannot hold the share is an error of ours, and no failure of ours fails a request.
		if v.share != [2]int64{} && numberArg(r, "unheld", 1) == 1 {
			a.countUnheld(q.user)
		}
		v.answerAllowed(r)
	case v.wait > 0:
		r.SetUint("wait", uint32(v.wait.Milliseconds()))
		r.SetUint("limit", uint32(v.limit))
	default:
		v.answerRefused(r)
	}
}

func (v *verdict) answerAllowed(r *spop.Request) {
	if v.priority != 0 {
		r.SetString("priority", strconv.Itoa(v.priority)) // as text: it may be negative
	}
	for _, d := range bandwidth.Directions {
		// A direction without the variable is not limited.
		if v.share[d] > 0 {
			r.SetUint(d.String(), shareUnits(v.share[d]))
		}
	}
	if v.left != nil {
		v.left.answer(r)
	}
	if v.credit != nil {
		v.credit.answer(r)
	}
	if v.charged != nil {
		v.charged.answer(r)
	}
	if v.behind {
		r.SetUint("charge", 1)
	}
	if v.uncounted {
		r.SetUint("uncounted", 1)
	}
}

func (v *verdict) answerRefused(r *spop.Request) {
	r.SetString("cause", string(v.cause))
	// When a slot will be free nobody knows, so nothing is said of when to come back.
	if v.limit > 0 {
		r.SetString("reason", slotReason)
		r.SetUint("limit", uint32(v.limit))
		return
	}
	r.SetString("class", v.limitName())
	if v.cost.Unit != "" {
		r.SetString("reason", costReason)
		r.SetString("unit", v.cost.Unit)
		r.SetString("limit", strconv.FormatInt(v.cost.Max, 10)) // as text: it may be more than a number of HAProxy's in an answer
	} else {
		r.SetString("reason", rateReason)
		r.SetUint("limit", uint32(v.rate.Max))
	}
	if v.cause == cause.LimitZero {
		r.SetString("reason", zeroReason)
		return
	}
	// Rounded up, and never 0: whoever comes back as told finds the next window begun.
	r.SetUint("retry", uint32(max(1, math.Ceil(v.retry.Seconds()))))
	setWindow(r, v.window)
}

func (v *verdict) limitName() string {
	switch {
	case v.limit > 0:
		return "concurrent"
	case v.cost.Unit != "":
		return v.cost.Name()
	}
	return v.rate.Name()
}

// verdict decides one request start, and counts what came of it.
func (a *Agent) verdict(q question) verdict {
	if !validUser(q.user) {
		// Not from our haproxy.cfg. To refuse would fail requests for an error of ours; see the package.
		a.metrics.malformed.Inc()
		return verdict{allowed: true}
	}
	set := a.limiter.inForce.set.Load()
	of := set.User(q.user)
	// Names that nobody has to know cost memory only if they are limited at all.
	shares := !of.Unlimited() && set.MadeUp(q.user) && !a.names.takePlace(a.clock.Now(), q.user, of)
	if shares {
		q.user = set.Others(q.user)
		// The table was asked about the name, and knows nothing of the others. Nor can they
		// have credit, which is by name.
		q.seen.Tracked, q.seen.Active = 0, 0
		q.credit = haproxyCredit{}
	}
	v := a.limiter.decide(set, q, of)
	if shares {
		v.others = q.user
	}
	a.countVerdict(&q, of, &v)
	return v
}

// countVerdict counts what came of a question. Who only waits is counted once more when
// that is over.
func (a *Agent) countVerdict(q *question, of *limits.Limits, v *verdict) {
	// The question that follows counts.
	if v.behind {
		return
	}
	// Whoever is told to wait has not started: the second question counts.
	if v.allowed {
		a.starts.countStart(q.user, q.verb, q.op)
		a.metrics.started.count(series{of.Tier, q.verb, q.op})
		if v.charged != nil {
			a.countCosts(q, of.Tier, v.charged)
		}
	}
	came := outcome(of.Tier, "allowed", "")
	switch {
	case v.allowed && of.Tier == limits.ExemptTier:
		came = outcome(of.Tier, "exempt", "")
		a.metrics.exempt.Inc()
	case v.allowed:
		a.metrics.allowed.Inc()
	case v.wait > 0:
		came = outcome(of.Tier, "wait", "concurrent")
		a.metrics.lined.Inc()
	default:
		limit := v.limitName()
		came = outcome(of.Tier, "refused", limit)
		a.metrics.refused.WithLabelValues(limit).Inc()
		a.metrics.refusals.WithLabelValues(string(v.cause)).Inc()
	}
	// People look for users who are refused, and for those whose credit does not suffice: reports of
	// starts keep these when there is no room for all.
	if q.credit.spent || !v.allowed {
		a.starts.nearLimit(q.user)
	}
	a.metrics.byTier.count(came)
	if q.user == limits.UnreadableKey {
		a.metrics.unreadable.Inc()
	}
}

// countUnheld counts a request of a user whose bandwidth is limited, at a HAProxy whose files were written for
// limits without bandwidth.
func (a *Agent) countUnheld(user string) {
	a.metrics.unheld.Inc()
	if skipped, now := a.unheldLog.Allow(); now {
		a.options.Logger.Warn("a user's bandwidth is not limited here: haproxy's files were written for limits without bandwidth; write them again (sluice haproxy), and reload haproxy",
			slog.String("user", user), slog.Int("skipped", skipped))
	}
}
