package polygen

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
)

// Unblocking at an endpoint that does not exist is an error: the answer would otherwise
// tell of a success.
func TestUnblockAtAnEndpoint(t *testing.T) {
	for _, tt := range []struct{ name, file, endpoint, want string }{
		{"one of the file's", "endpoints: [api, up]\n", "up", api.ErrUnavailable.Error()}, // for Redis is away
		{"none", "endpoints: [api, up]\n", "", api.ErrUnavailable.Error()},
		{"one that is not there", "endpoints: [api, up]\n", "upp", `unknown endpoint "upp" (valid: api, up)`},
		{"a file without any", "", "upp", `unknown endpoint "upp": the limit file has none`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGenerator(t, "127.0.0.1:1", "one", nil)
			if tt.file != "" {
				g.write(t, strings.Replace(tenGets, "default_tier", tt.file+"default_tier", 1))
				if err := g.Reload(); err != nil {
					t.Fatal(err)
				}
				g.adoptFile(g.options.Limits.Set())
			}
			out, err := g.Unblock(t.Context(), api.OverrideRequest{Action: api.UnblockUser, User: "bob", Endpoint: tt.endpoint, Reason: "r"})
			if !strings.HasPrefix(fmt.Sprint(err), tt.want) || out.Sent {
				t.Errorf("Unblock = %+v, %v, want %s", out, err, tt.want)
			}
			result := "refused"
			if errors.Is(err, api.ErrUnavailable) {
				result = "failed"
			}
			if n := testutil.ToFloat64(g.overrides.metrics.writes.WithLabelValues("unblock", result)); n != 1 {
				t.Errorf("writes that were %s = %v, want 1", result, n)
			}
		})
	}
}
