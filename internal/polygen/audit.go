package polygen

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Refuse notes a request that was refused before any method here was called for it.
func (p *Polygen) Refuse(a api.OverrideRequest, why error) {
	p.auditWrite(a, time.Time{}, a.Limits, why)
}

// maxAudited bounds a text of the audit, in bytes.
const maxAudited = 2000

// auditWrite counts and logs a request, whatever came of it. A zero until means that it has no
// end.
func (p *Polygen) auditWrite(a api.OverrideRequest, until time.Time, set []byte, err error) {
	result := "ok"
	switch {
	case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrNotLeading):
		result = "failed"
	case err != nil:
		result = "refused"
	}
	p.overrides.metrics.writes.WithLabelValues(string(a.Action), result).Inc()
	p.tellAudit(string(a.Action), result, limits.Override{User: a.User, By: a.By, Reason: a.Reason, Until: until, Limits: set}, err)
}

func (p *Polygen) tellAudit(action, result string, o limits.Override, err error) {
	attrs := []slog.Attr{
		slog.String("action", action), slog.String("result", result), slog.String("user", truncated(o.User)),
		slog.String("by", truncated(o.By)), slog.String("reason", truncated(o.Reason)),
	}
	if !o.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", o.Until))
	}
	if len(o.Limits) > 0 {
		attrs = append(attrs, slog.String("limits", truncated(string(o.Limits))))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", truncated(err.Error())))
	}
	// Past the level of the log: who turns it up to warnings must not lose the audit.
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	line.AddAttrs(attrs...)
	_ = p.options.Logger.Handler().Handle(context.Background(), line)
}

func truncated(s string) string {
	// What comes from outside may be as long as the body of a request.
	if len(s) > maxAudited {
		return s[:maxAudited] + "…"
	}
	return s
}
