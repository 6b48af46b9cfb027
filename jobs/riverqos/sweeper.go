package riverqos

import (
	"context"
	"time"
)

const (
	// depthInterval is the time between two counts of all jobs, which take the longer the more
	// there are: after one nobody counts for depthRest times as long as it has taken.
	depthInterval = 10 * time.Second
	depthRest     = 100
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
	// When the chores are to be done next. One goroutine sweeps.
	nextDepth, nextPostpone time.Time
}

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
		rest     time.Duration // how many times as long as it took nobody does it again
		do       func(context.Context) error
		next     *time.Time
	}{
		{depthInterval, depthRest, s.countDepth, &s.nextDepth},
		{s.cfg.GateFor / postponeFraction, 0, s.postponeGated, &s.nextPostpone},
	} {
		began := time.Now()
		if began.Before(*chore.next) {
			continue
		}
		if err := chore.do(ctx); err != nil {
			return err
		}
		*chore.next = began.Add(max(chore.interval, chore.rest*time.Since(began)))
	}
	return nil
}

// stopSweeps is when another process sweeps, or none. The one that does now has the series
// of the depth: two of them would be added up.
func (s *sweeper) stopSweeps() {
	s.depth.reset()
	s.nextDepth, s.nextPostpone = time.Time{}, time.Time{}
}
