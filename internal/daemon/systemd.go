package daemon

import (
	"context"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	// lookEvery is how often the daemon is looked at. systemd starts HAProxy after the agent, so
	// each wait is a part of a machine's start.
	lookEvery = 100 * time.Millisecond
	// startedWithin is when a daemon counts as started, ready or not. It goes on waiting for what it
	// lacks, which the unit's status names; if systemd waited with it, no HAProxy would start on a
	// machine that cannot reach Redis, and systemd would end the daemon again and again.
	startedWithin = 10 * time.Second
)

// Service is a daemon as systemd sees it.
type Service struct {
	Started func() error // why it cannot do its work yet, or nil: what is ordered behind it waits
	Ready   func() error // what it lacks, or nil, for the unit's status
	Probe   func()       // returns while the daemon works: it takes the lock that the daemon's work takes
}

// Run tells systemd of the service until ctx ends.
func (s Service) Run(ctx context.Context) error {
	within, err := daemon.SdWatchdogEnabled(false)
	// One that cannot be read would have systemd wait for signs of life that never come, and end the daemon later.
	if err != nil {
		return err
	}
	return s.report(ctx, within, func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	})
}

// report tells of the service by tell. If within is not 0, systemd ends a daemon from which it has heard
// nothing for so long.
func (s Service) report(ctx context.Context, within time.Duration, tell func(state string) error) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	began, probed := time.Now(), time.Now()
	started, status := false, ""
	// Looked at rather than told by those who know: a status that is 100 ms old serves, and no part of the daemon can forget one.
	for {
		now := "ready"
		if err := s.Ready(); err != nil {
			// A line end would end the status, and what follows it would be another message: errors that are joined have some.
			now = "not ready: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		if now != status {
			status = now
			// systemd that is gone for a moment, as while it is upgraded, hears the next message.
			_ = tell("STATUS=" + status)
		}
		// Told again until systemd has taken it, for without it all that is ordered behind the service waits.
		if !started && (s.Started() == nil || time.Since(began) >= startedWithin) {
			started = tell(daemon.SdNotifyReady) == nil
		}
		// Three times in the time, so that one that is late, or lost, ends nothing.
		if within > 0 && time.Since(probed) >= within/3 {
			probed = time.Now()
			s.Probe()
			_ = tell(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			_ = tell(daemon.SdNotifyStopping)
			return nil
		case <-look.C:
		}
	}
}
