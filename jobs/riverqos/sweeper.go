package riverqos

import (
	"context"
	"time"
)

const (
	// depthInterval is the time between two counts of all jobs.
	depthInterval = 10 * time.Second
	// postponeFraction of Config.GateFor is the time between two times that gated jobs are put
	// off, which are those whose time has come to half of GateFor.
	postponeFraction = 20
	// usersPerPage is how many users are looked at together.
	usersPerPage = 1000
)

// sweeper repairs, with each sweep of the runner, what only River has. What it repairs is in
// repair.go.
type sweeper struct {
	*resources
	gate  *gate
	depth *depthGauge
	// When the chores were last done. One goroutine sweeps.
	lastDepth, lastPostpone time.Time
}

// sweepOnce is a part of a sweep.
func (s *sweeper) sweepOnce(ctx context.Context) error {
	if !s.cfg.Ungated {
		// Opened before it is closed: what is closed then does not come back in the same sweep.
		if err := s.openGate(ctx); err != nil {
			return err
		}
		if err := s.closeGate(ctx); err != nil {
			return err
		}
	}
	for _, chore := range []struct {
		interval time.Duration
		do       func(context.Context) error
		last     *time.Time
	}{
		{depthInterval, s.countDepth, &s.lastDepth},
		{s.cfg.GateFor / postponeFraction, s.postponeGated, &s.lastPostpone},
	} {
		now := time.Now()
		if now.Sub(*chore.last) < chore.interval {
			continue
		}
		if err := chore.do(ctx); err != nil {
			return err
		}
		*chore.last = now
	}
	return nil
}

// stopSweeps is when another process sweeps, or none. The one that does now has the series
// of the depth: two of them would be added up.
func (s *sweeper) stopSweeps() {
	s.depth.reset()
	s.lastDepth, s.lastPostpone = time.Time{}, time.Time{}
}
