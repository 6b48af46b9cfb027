package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

const (
	// movedFor is how long a user's count of bytes is remembered at least after the last
	// news of them: as long as HAProxy may tell how it goes on.
	movedFor = time.Minute
	// maxMoved bounds the users whose bytes are counted.
	maxMoved = 100_000
)

// movedBytes adds up what HAProxy tells of its users' bytes. The limiter's lock guards
// it. The zero one is not usable.
type movedBytes struct {
	counted           [2]prometheus.Counter // by direction
	recent[movedUser]                       // by user
}

// movedUser is what HAProxy has told of a user's bytes, by direction. Its tables of
// requests in progress, by source, tell at once. The one of credit, which is read now and
// then, counts the same bytes, and besides those of requests that are in neither.
type movedUser struct {
	tables [2]tableBytes
	moved  [2]int64 // in both tables, since the user is remembered
	credit tableBytes
	base   [2]int64  // what credit would be if nothing had moved
	lent   [2]int64  // counted in credit alone
	at     time.Time // when credit was read
}

// tableBytes is a count of HAProxy's, if there is one.
type tableBytes struct {
	known bool
	bytes [2]int64
}

func newMovedBytes(counted [2]prometheus.Counter) movedBytes {
	return movedBytes{counted, newRecent[movedUser](movedFor, maxMoved)}
}

// countTable takes what one of the tables counts of a user's bytes. The first count of a user may
// be old and counts nothing; one that is lower than before was begun anew.
func (m *movedBytes) countTable(user string, from bandwidth.Source, bytes [2]int64) {
	u, _ := m.get(user)
	before := u.tables[from]
	u.tables[from] = tableBytes{true, bytes}
	// The first count of a user may be of long ago.
	if before.known {
		for _, d := range bandwidth.Directions {
			// HAProxy has begun the entry anew, from 0.
			more := bytes[d] - before.bytes[d]
			if more < 0 {
				more = bytes[d]
			}
			u.moved[d] += more
			m.addMoved(d, more)
		}
	}
	m.put(user, u)
}

// countCredit takes what the table of credit counts, and returns how many bytes per second have
// moved since the last time that no other table counts. Both are told at different times:
// so this is never less than nothing, and what was counted once too soon is not counted
// again.
func (m *movedBytes) countCredit(now time.Time, user string, bytes [2]int64) (rate [2]int64) {
	u, _ := m.get(user)
	took := now.Sub(u.at).Seconds()
	anew := !u.credit.known || took <= 0
	for _, d := range bandwidth.Directions {
		// Either direction tells, and both begin anew then.
		anew = anew || bytes[d] < u.credit.bytes[d]
	}
	u.credit, u.at = tableBytes{true, bytes}, now
	for _, d := range bandwidth.Directions {
		// All of it counts as moved before: it is better to count too little once than to invent a rate.
		if anew {
			u.base[d], u.lent[d] = bytes[d]-u.moved[d], 0
			continue
		}
		// What the other tables have told already is not told again; if they are ahead, this waits for the rest.
		if more := bytes[d] - u.base[d] - u.moved[d] - u.lent[d]; more > 0 {
			u.lent[d] += more
			m.addMoved(d, more)
			rate[d] = int64(float64(more) / took)
		}
	}
	m.put(user, u)
	return rate
}

func (m *movedBytes) addMoved(d bandwidth.Direction, more int64) {
	// A counter must not go back.
	if more > 0 {
		m.counted[d].Add(float64(more))
	}
}
