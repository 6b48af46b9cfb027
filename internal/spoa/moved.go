package spoa

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

const (
	// movedFor is how long a user's count of bytes is remembered at least after the last
	// news of him: as long as HAProxy may tell how it goes on.
	movedFor = time.Minute
	// maxMoved bounds the users whose bytes are counted.
	maxMoved = 100_000
)

// movedBytes adds up what HAProxy tells of its users' bytes. The limiter's lock guards
// it. The zero one is not usable.
type movedBytes struct {
	counted          [2]prometheus.Counter // by direction
	recent[[2]int64]                       // HAProxy's counts, by user
}

func newMovedBytes(counted [2]prometheus.Counter) movedBytes {
	return movedBytes{counted, newRecent[[2]int64](movedFor, maxMoved)}
}

// move takes HAProxy's count of a user's bytes, and returns how many have moved since
// the last one. The first one that is heard of a user may be old and counts nothing;
// one that is lower than before was begun anew.
func (m *movedBytes) move(user string, bytes [2]int64) (more [2]int64) {
	before, known := m.get(user)
	m.put(user, bytes)
	if !known {
		return more
	}
	for _, d := range bandwidth.Directions {
		if more[d] = bytes[d] - before[d]; more[d] < 0 {
			more[d] = bytes[d]
		}
		if more[d] > 0 {
			m.counted[d].Add(float64(more[d]))
		}
	}
	return more
}
