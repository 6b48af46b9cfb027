package up

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Which part is not ready is told to everybody, and why to who started it.
func TestPartly(t *testing.T) {
	gone := errors.New("dial tcp 192.0.2.7:6379: connection refused")
	for _, tt := range []struct {
		name       string
		err        error
		text, told string
	}{
		{"with a cause", fmt.Errorf("redis cannot be reached: %w", gone),
			"polygen: redis cannot be reached: dial tcp 192.0.2.7:6379: connection refused", "polygen: redis cannot be reached (the log says why)"},
		{"without one", errors.New("not serving yet"), "polygen: not serving yet", "polygen: not serving yet"},
	} {
		err := partly("polygen", tt.err)
		if got := daemon.PublicText(err); err.Error() != tt.text || got != tt.told {
			t.Errorf("%s: partly() = %q, of which everybody is told %q, want %q and %q", tt.name, err, got, tt.text, tt.told)
		}
	}
}
