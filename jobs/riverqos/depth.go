package riverqos

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

type depth struct {
	Queue, State string
	Jobs         int
}

// depthGauge is the series of the depth, of the process that sweeps.
type depthGauge struct {
	series *prometheus.GaugeVec
	mu     sync.Mutex
	queues map[string]bool // those that have series
}

// set shows the depths of all queues. Each queue comes with all of its states.
func (g *depthGauge) set(depths []depth) {
	g.mu.Lock()
	defer g.mu.Unlock()
	queues := map[string]bool{}
	for _, depth := range depths {
		queues[depth.Queue] = true
		g.series.WithLabelValues(depth.Queue, depth.State).Set(float64(depth.Jobs))
	}
	// Those alone that are gone, and not all of them first: a scrape in between would miss them.
	for queue := range g.queues {
		if !queues[queue] {
			g.series.DeletePartialMatch(prometheus.Labels{"queue": queue})
		}
	}
	g.queues = queues
}

func (g *depthGauge) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.series.Reset()
	g.queues = nil
}

func (s *sweeper) countDepth(ctx context.Context) error {
	depths, err := readAll[depth](ctx, s.store, scanFactor*s.store.answerTimeout, "depth")
	if err != nil {
		return fmt.Errorf("count jobs: %w", err)
	}
	s.depth.set(depths)
	return nil
}
