package spoa

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/tracing"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// traceApply begins a span for policies that come with the name of the span that sent
// them. Others have none: a polygen that does not trace sends some every second.
func (a *Agent) traceApply(messages []policy.Message) *tracing.Span {
	// Nearly everywhere: what is counted below would be for nobody.
	if a.options.Tracer == nil {
		return nil
	}
	counts := map[string]int{}
	parent := ""
	for _, m := range messages {
		if t, ok := m.(policy.Trace); ok {
			parent = t.Parent
			continue
		}
		counts[policy.Kind(m)]++
		counts["total"]++
	}
	// A span of its own for each batch would be noise: somebody traces what polygen decided.
	if parent == "" {
		return nil
	}
	_, span := a.options.Tracer.Begin(tracing.Under(context.Background(), parent), "apply policies", time.Time{})
	for kind, n := range counts {
		span.Set(tracing.Int("sluice.policies."+kind, n))
	}
	return span
}

// errNotValid stands for what is wrong with limits.
var errNotValid = errors.New("the limits are not valid: see the log")

// traceLimits records that limits were read; without a set they were not valid.
func (a *Agent) traceLimits(ctx context.Context, began time.Time, version string, set *limits.Set) {
	if a.options.Tracer == nil {
		return
	}
	// The parser's error may name users: the log has it.
	if set == nil {
		a.options.Tracer.Record(ctx, "read limits", began, errNotValid, tracing.String("sluice.limits.version", version))
		return
	}
	a.options.Tracer.Record(ctx, "read limits", began, nil, tracing.String("sluice.limits.version", version), tracing.Int("sluice.limits.users", set.UserCount()))
}
