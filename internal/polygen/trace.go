package polygen

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/tracing"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// slowRound is after how long a round of decide has a span though it sent nothing.
const slowRound = 10 * time.Millisecond

// round is what is traced of one round of decide. It is filled in whether there is a
// tracer or not, and costs nothing.
type round struct {
	began  time.Time
	events int           // that were taken up
	span   *tracing.Span // nil until something is sent
}

// tracePublishing begins the spans of a round that sends: its own, and that of the
// sending, which the caller ends. It returns what is to be sent: the messages, and before
// them the name of the span.
func (p *Polygen) tracePublishing(ctx context.Context, messages []policy.Addressed) ([]policy.Addressed, *tracing.Span) {
	if p.options.Tracer == nil {
		return messages, nil
	}
	// Begun in the past: before a round has sent something nobody wants its span.
	ctx, p.round.span = p.options.Tracer.Begin(ctx, "decide", p.round.began)
	p.round.span.Set(policyCounts(messages)...)
	_, publishing := p.options.Tracer.Begin(ctx, "publish policies", time.Time{})
	// A message of its own, which agents of before skip: their spans have no parent then.
	return append([]policy.Addressed{{Message: policy.Trace{Parent: publishing.Parent()}}}, messages...), publishing
}

// policyCounts are the numbers of messages, by kind and of all.
func policyCounts(messages []policy.Addressed) []tracing.Attr {
	counts := map[string]int{"total": len(messages)}
	for _, m := range messages {
		counts[policy.Kind(m.Message)]++
	}
	attrs := make([]tracing.Attr, 0, len(counts))
	for kind, n := range counts {
		attrs = append(attrs, tracing.Int("sluice.policies."+kind, n))
	}
	return attrs
}

// endRound ends the round's span. One that sent nothing has a span if it was slow.
func (p *Polygen) endRound(ctx context.Context) {
	if t := p.options.Tracer; t != nil {
		// What held it up held up policies, too: those of the round after it.
		if p.round.span == nil && time.Since(p.round.began) > slowRound {
			_, p.round.span = t.Begin(ctx, "decide", p.round.began)
		}
		p.round.span.Set(tracing.Int("sluice.events", p.round.events), tracing.Bool("sluice.leading", p.leading.Load()))
		p.round.span.End(nil)
	}
	p.round = round{}
}

// traceLead records a change of who leads.
func (p *Polygen) traceLead(ctx context.Context, began time.Time, leading bool) {
	name := "take the lead"
	if !leading {
		name = "lose the lead"
	}
	p.options.Tracer.Record(ctx, name, began, nil)
}

// errNotSent stands for an error of Redis in traces.
var errNotSent = errors.New("redis did not take the limits")

// tracePublication records that limits were published, or not.
func (p *Polygen) tracePublication(ctx context.Context, began time.Time, set *limits.Set, err error) {
	if p.options.Tracer == nil {
		return
	}
	// A span goes to whoever collects traces. The text of Redis' error may quote what was sent: users' names.
	if err != nil {
		err = errNotSent
	}
	p.options.Tracer.Record(ctx, "publish limits", began, err, tracing.String("sluice.limits.version", set.Version()), tracing.Int("sluice.limits.users", set.UserCount()))
}
