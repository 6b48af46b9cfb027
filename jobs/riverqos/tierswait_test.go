package riverqos_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// timed are tiers that note how long the first question may take.
type timed struct {
	jobs.Tiers
	mu    sync.Mutex
	asked bool
	given time.Duration // 0 is for ever
}

func (m *timed) Tier(ctx context.Context, user string) (jobs.Tier, error) {
	m.mu.Lock()
	if end, ok := ctx.Deadline(); ok && !m.asked {
		m.given = time.Until(end)
	}
	m.asked = true
	m.mu.Unlock()
	return m.Tiers.Tier(ctx, user)
}

func TestTiersThatHangDoNotBlockAWorker(t *testing.T) {
	m := &timed{}
	r := start(t, func(c *riverqos.Config, rc *river.Config) {
		m.Tiers, c.Tiers = c.Tiers, m
		rc.FetchPollInterval = river.FetchCooldownDefault
	})
	var id int64 // of a job for which no insert has asked
	err := r.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue) VALUES ('{"user": "ann"}', 'task', 25, 'slow_default') RETURNING id`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	r.finished([]int64{id})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given <= 0 || m.given > 10*time.Second {
		t.Errorf("the tiers have %v to answer, want up to 10 s", m.given)
	}
}
