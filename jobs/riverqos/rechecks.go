package riverqos

import (
	"sync"
)

// maxRechecks bounds the flows that the gate looks at again. The sweep looks at all.
const maxRechecks = 10_000

// rechecks are the flows that the gate looks at again, because it has held back jobs there.
type rechecks struct {
	mu    sync.Mutex
	sizes map[flow]int
	work  chan struct{} // of capacity 1: there are some
}

func (r *rechecks) addFlows(flows []sizedFlow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sizes == nil {
		r.sizes = map[flow]int{}
	}
	for _, sized := range flows {
		if len(r.sizes) < maxRechecks {
			r.sizes[sized.flow] = sized.size
		}
	}
	signal(r.work)
}

// takeFlows removes and returns all.
func (r *rechecks) takeFlows() (flows []sizedFlow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for flow, size := range r.sizes {
		flows = append(flows, sizedFlow{flow, size})
	}
	clear(r.sizes)
	return flows
}
