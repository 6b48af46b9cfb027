package judge

import (
	"container/heap"
	"time"
)

// instants is a heap of times, the earliest first.
type instants []time.Time

func (h instants) Len() int           { return len(h) }
func (h instants) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h instants) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *instants) Push(x any) { *h = append(*h, x.(time.Time)) }

// Pop is for container/heap.
func (h *instants) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (h *instants) push(at time.Time) { heap.Push(h, at) }

// popUntil removes those that are not after a time.
func (h *instants) popUntil(at time.Time) {
	for len(*h) > 0 && !(*h)[0].After(at) {
		heap.Pop(h)
	}
}
