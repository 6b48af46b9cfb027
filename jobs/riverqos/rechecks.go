package riverqos

import (
	"maps"
	"slices"
	"sync"

	"github.com/riverqueue/river/rivertype"
)

// maxRechecks bounds the flows that the gate looks at again, and the queues. In a program
// that does not call Run nobody takes them; elsewhere the sweep looks at all flows.
const maxRechecks = 10_000

// rechecks are what the gate looks at again soon after inserts: the flows in which it has
// held back jobs, and the queues that have got available ones.
type rechecks struct {
	mu     sync.Mutex
	sizes  map[flow]int
	queues map[string]bool
	work   chan struct{} // of capacity 1: there are some
}

func newRechecks() *rechecks {
	return &rechecks{sizes: map[flow]int{}, queues: map[string]bool{}, work: make(chan struct{}, 1)}
}

// add notes an insert that has ended, and the flows in which jobs were held back.
func (r *rechecks) add(held []sizedFlow, params []*rivertype.JobInsertParams) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sized := range held {
		// The last size counts, for the limits may have changed.
		if len(r.sizes) < maxRechecks {
			r.sizes[sized.flow] = sized.Size
		}
	}
	for _, param := range params {
		if param.State == rivertype.JobStateAvailable && len(r.queues) < maxRechecks {
			r.queues[param.Queue] = true
		}
	}
	if len(r.sizes)+len(r.queues) > 0 {
		signal(r.work)
	}
}

// takeAll removes and returns all.
func (r *rechecks) takeAll() (flows []sizedFlow, queues []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for flow, size := range r.sizes {
		flows = append(flows, sizedFlow{flow, size})
	}
	queues = slices.Collect(maps.Keys(r.queues))
	clear(r.sizes)
	clear(r.queues)
	return flows, queues
}
