package jobs_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

func TestMemory(t *testing.T) {
	t.Run("its own time", func(t *testing.T) {
		slotstest.Run(t, func(*testing.T) slotstest.Backend {
			return slotstest.Backend{Slots: jobs.NewMemory(nil)}
		})
	})
	t.Run("a test's time", func(t *testing.T) {
		slotstest.Run(t, func(*testing.T) slotstest.Backend {
			c := &clock{now: time.Unix(1760000000, 0)}
			return slotstest.Backend{Slots: jobs.NewMemory(c.time), Advance: c.advance}
		})
	})
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
