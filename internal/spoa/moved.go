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
	counted [2]prometheus.Counter // by direction

	// HAProxy's counts, by user. Those of whom nothing has been heard since the last
	// turn are in old, which the next one drops as a whole: to look at each of 100 000
	// users would hold up the requests.
	young, old map[string][2]int64
	turned     time.Time
}

func newMovedBytes(counted [2]prometheus.Counter) movedBytes {
	return movedBytes{counted: counted, young: make(map[string][2]int64)}
}

// move takes HAProxy's count of a user's bytes. The first one that is heard of a user
// may be old and counts nothing; one that is lower than before was begun anew.
func (m *movedBytes) move(user string, bytes [2]int64) {
	before, known := m.young[user]
	if !known {
		if before, known = m.old[user]; known {
			delete(m.old, user)
		} else if len(m.young)+len(m.old) >= maxMoved {
			return
		}
	}
	m.young[user] = bytes
	if !known {
		return
	}
	for _, d := range bandwidth.Directions {
		more := bytes[d] - before[d]
		if more < 0 {
			more = bytes[d]
		}
		if more > 0 {
			m.counted[d].Add(float64(more))
		}
	}
}

// forget drops those of whom nothing was heard for a while.
func (m *movedBytes) forget(now time.Time) {
	if since := now.Sub(m.turned); since < 0 || since >= movedFor {
		m.old, m.young, m.turned = m.young, make(map[string][2]int64), now
	}
}
