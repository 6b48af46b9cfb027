package polygen

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
)

// Without Redis nobody was told, and the answer says so.
func TestUnblockWithoutRedis(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "one", nil)
	out, err := g.Unblock(t.Context(), api.OverrideRequest{Action: api.UnblockUser, User: "bob", Reason: "r"})
	if !errors.Is(err, api.ErrUnavailable) || out.Sent {
		t.Errorf("Unblock = %+v, %v, want %v", out, err, api.ErrUnavailable)
	}
	if n := testutil.ToFloat64(g.overrides.metrics.writes.WithLabelValues("unblock", "failed")); n != 1 {
		t.Errorf("writes that failed = %v, want 1", n)
	}
}
