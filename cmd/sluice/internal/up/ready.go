package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/agent"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/polygen"
)

// pollEvery is how often is looked whether something serves.
const pollEvery = 20 * time.Millisecond

func lastPort(addresses []string) string {
	if len(addresses) == 1 {
		return ""
	}
	// The line names the first address and the last port; those between are in a row.
	_, port, _ := net.SplitHostPort(addresses[len(addresses)-1])
	return " to :" + port
}

// readiness is why not everything serves yet, or nil.
func readiness(p *polygen.Polygen, agents []*agent.Agent, addresses []string) error {
	// Polygen first: agents without limits of its wait for it, and it knows why.
	if err := p.Ready(); err != nil {
		return partly("polygen", err)
	}
	for i, a := range agents {
		name := fmt.Sprintf("instance %d", i+1)
		if err := a.Ready(); err != nil {
			return partly(name, err)
		}
		// The agent knows that HAProxy speaks to it, and not whether clients reach HAProxy.
		conn, err := net.DialTimeout("tcp", addresses[i], time.Second)
		if err != nil {
			return fmt.Errorf("%s: HAProxy cannot be reached: %w", name, err)
		}
		conn.Close()
	}
	return nil
}

// partly names the part that is not ready: in front of what its error wraps, so that
// daemon.PublicText has both.
func partly(name string, err error) error {
	cause := errors.Unwrap(err)
	if cause == nil {
		return errors.New(name + ": " + err.Error())
	}
	// Put in front of the whole text it would be cut off together with the cause, which only the log may tell.
	said, _, _ := strings.Cut(err.Error(), ": "+cause.Error())
	return fmt.Errorf("%s: %s: %w", name, said, cause)
}

// awaitReady polls until ready returns nil or ctx ends, for so long at most.
func awaitReady(ctx context.Context, limit time.Duration, ready func() error) error {
	// A start that hangs must end by itself: nobody may be there to see that the line does not come.
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready within %v: %w", limit, err)
		}
		if !daemon.Sleep(ctx, pollEvery) {
			return nil
		}
	}
}
