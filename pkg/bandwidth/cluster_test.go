package bandwidth_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

const (
	down = bandwidth.Down
	up   = bandwidth.Up
)

// greedy are streams whose clients take what they get.
func greedy(n int, d bandwidth.Direction) (streams []*stream) {
	for range n {
		streams = append(streams, &stream{direction: d})
	}
	return streams
}

// TestCluster: from 1 s after each change, what all instances move together is the
// limit, within the band, in every second, for as long as anyone wants as much.
func TestCluster(t *testing.T) {
	ten := bandwidth.Limit{Bytes: [2]int64{10 * miB, 5 * miB}}
	tests := []struct {
		name      string
		instances int
		limit     bandwidth.Limit
		changes   []float64
		settled   float64 // from when on it is held to the band
		load      func(*cluster)
		in        []bandwidth.Direction
		low, high float64
		told      int // divisions at most in the last 10 s
	}{
		{name: "one instance of two", instances: 2, load: func(c *cluster) { c.join(0, greedy(3, down)...) }, told: 4},
		{name: "a small default", instances: 4, limit: bandwidth.Limit{Bytes: [2]int64{100 * miB, miB}, Default: [2]int64{miB, miB}},
			load: func(c *cluster) { c.join(0, greedy(1, down)...); c.join(1, greedy(1, down)...) }, told: 4},
		{name: "a second becomes busy, and idle", instances: 2, changes: []float64{5, 10}, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			c.at(5, func() { c.join(1, greedy(3, down)...) })
			c.at(10, func() { c.leave(1); c.leave(1); c.leave(1) })
		}, told: 4},
		{name: "streams join and leave four", instances: 4, changes: []float64{3, 6, 9, 12}, load: func(c *cluster) {
			for i := range 4 {
				c.join(i, greedy(i+1, down)...)
			}
			c.at(3, func() { c.leave(3); c.leave(3); c.leave(3) })
			c.at(6, func() { c.join(0, greedy(8, down)...); c.leave(1) })
			c.at(9, func() { c.leave(3); c.leave(2) })
			c.at(12, func() { c.leave(1) })
		}, told: 5},
		{name: "all move to the next instance", instances: 4, changes: []float64{3, 6, 9}, load: func(c *cluster) {
			c.join(0, greedy(2, down)...)
			for i := range 3 {
				c.at(float64(3*i+3), func() { c.leave(i); c.leave(i); c.join(i+1, greedy(2, down)...) })
			}
		}, told: 4},
		{name: "a client of 2.5 MiB/s", instances: 2, changes: []float64{0.2}, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			c.join(1, &stream{cap: 2.5 * miB})
		}, told: 8},
		{name: "three slow clients", instances: 4, changes: []float64{0.2}, low: 0.96, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			for i := range 3 {
				c.join(i+1, &stream{cap: 0.5 * miB})
			}
		}, told: 8},
		{name: "three slow clients of varying speed", instances: 4, changes: []float64{0.2}, low: 0.92, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			for i := range 3 {
				c.join(i+1, &stream{cap: 0.8 * miB, noise: 1})
			}
		}, told: 20},
		{name: "a stalled client, many times as many", instances: 2, changes: []float64{0.2}, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			for range 20 {
				c.join(1, &stream{cap: 1})
			}
		}, told: 6},
		{name: "a slow client becomes fast", instances: 2, changes: []float64{0.2, 8}, load: func(c *cluster) {
			slow := &stream{cap: miB / 2}
			c.join(0, greedy(1, down)...)
			c.join(1, slow)
			c.at(8, func() { slow.cap = 0 })
		}, told: 8},
		{name: "one uploads, all download", instances: 4, changes: []float64{5}, in: []bandwidth.Direction{down}, load: func(c *cluster) {
			for i := range 4 {
				c.join(i, greedy(2, down)...)
			}
			c.at(5, func() { c.join(2, greedy(1, up)...) })
		}, told: 8},
		{name: "1 KiB objects as fast as possible beside a large transfer", instances: 2, changes: []float64{0.2}, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			c.short(1, &loop{busy: 700 * time.Microsecond, think: 300 * time.Microsecond, bytes: 1 << 10})
		}, low: 0.96, told: 6},
		{name: "now and then a small object beside a large transfer", instances: 4, settled: 3, load: func(c *cluster) {
			c.join(0, greedy(1, down)...)
			for i := range 3 {
				c.at(0.3*float64(i), func() {
					c.short(i+1, &loop{busy: 10 * time.Millisecond, think: 990 * time.Millisecond, bytes: 1 << 10})
				})
			}
		}, low: 0.96, told: 130},
	}
	for _, tt := range tests {
		if tt.limit.Bytes[down] == 0 {
			tt.limit = ten
		}
		if tt.in == nil {
			tt.in = []bandwidth.Direction{down}
		}
		if tt.low == 0 {
			tt.low = 0.97
		}
		if tt.high == 0 {
			tt.high = 1.03
		}
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(3) {
				c := newCluster(seed, tt.instances, tt.limit)
				tt.load(c)
				const end = 25
				c.until(end + 0.1)
				changes := append([]float64{0}, tt.changes...)
				for i, from := range changes {
					until := float64(end)
					if i+1 < len(changes) {
						until = changes[i+1]
					}
					for _, d := range tt.in {
						for at := max(from+1, tt.settled); at+1 <= until; at += 0.25 {
							if got := c.ratio(d, at, at+1); got < tt.low || got > tt.high {
								t.Errorf("seed %d: from %.2f to %.2f s the cluster moved %.3f of the limit %v, want %v to %v", seed, at, at+1, got, d, tt.low, tt.high)
								break
							}
						}
					}
				}
				if got := c.told(end-10, end); got > tt.told {
					t.Errorf("seed %d: %d divisions in the last 10 s, want at most %d", seed, got, tt.told)
				}
				if len(c.problems) > 0 {
					t.Errorf("seed %d: %s", seed, fmt.Sprint(c.problems))
				}
			}
		})
	}
}
