package bandwidth

import "time"

const (
	second = int64(time.Second)

	// settleSpan is how long a HAProxy may take to follow a new share: what it moves until
	// then may be of the one before.
	settleSpan = 150 * time.Millisecond
	// A share that was raised, or has only begun, is judged after brief, so that who
	// can use more has it soon. Else it takes steady: the push of a counter may be
	// 20 ms late, which is 2 % of it.
	briefLook  = 200 * time.Millisecond
	steadyLook = time.Second
	// pushTimeout without a push means that nothing was moved: of long transfers HAProxy
	// pushes the counters several times a second.
	pushTimeout = 500 * time.Millisecond
	// shortestLook is the least time that one judgement stands for: requests may be over
	// before their first push.
	shortestLook = 50 * time.Millisecond

	// A user who moves saturated per cent of the share could use more.
	saturatedPercent = 98
	// A user who moves nearly per cent of it, in a brief look, perhaps could.
	nearlyPercent = 90
	// A user who moves less may have headroom per cent of what they move, and at least the
	// least share. That is kept small, because the part of a share that is not used is
	// wasted, but it is more than saturated takes away. After a brief look, which is less
	// exact, it is room per cent.
	headroomPercent      = 105
	briefHeadroomPercent = 112
	// A user who moves less than dropped per cent of what they could use lately needs less
	// at once. Otherwise that falls by fade per cent a time, so that a demand that varies
	// keeps its peaks.
	droppedPercent = 85
	fadePercent    = 95
)

// A meter finds out what one instance could use of a user's limit in one
// direction, from the bytes that it moves.
type meter struct {
	share     int64 // in force; 0: not limited
	sharedAt  int64 // since when
	before    int64 // the smallest one that may still be followed instead
	begun     int64 // when measuring began; 0: it has not
	span      int64 // how long it lasts
	low       int64 // the smallest share meanwhile
	base      int64 // bytes moved before it
	first     int64 // when requests began, until the first judgement; 0: that was made
	firstBase int64 // bytes moved before them

	moved      int64 // bytes per second, as last measured
	usableRate int64 // bytes per second that can be used; 0: any number
	step       int64 // by which usableRate grew last
	rough      bool  // usableRate is from a brief look
}

// enforce says which share is in force from now on.
func (m *meter) enforce(now, share int64) {
	if share == m.share {
		return
	}
	// Small changes are followed without a new look, or a share that trembles would never be judged.
	if differs(share, m.share, 0) {
		// Of several changes within settleSpan HAProxy may still follow any: the smallest one is the safe judge.
		if passed(now, m.sharedAt, settleSpan) || m.before == 0 || m.share < m.before {
			m.before = m.share
		}
		m.sharedAt = now
		// Who got more should show soon that they use it.
		if share > m.share {
			m.span = int64(briefLook)
		}
	}
	// There was no share that the bytes could have been held to.
	if m.share == 0 {
		m.low = share
	}
	m.share, m.low = share, min(m.low, share)
}

func (m *meter) restartLook() { m.begun, m.span = 0, int64(briefLook) }

// restart says that there are no requests any more, and that nobody knows what they moved
// in the end.
func (m *meter) restart() {
	m.restartLook()
	m.first, m.moved = 0, 0
}

// startRequests says that there are requests, after there were none, and bytes moved
// before them.
func (m *meter) startRequests(now, bytes int64) {
	m.first, m.firstBase = now, bytes
	m.observe(now, bytes, 0)
}

// observe takes a count of bytes moved so far, and reports whether most may be
// another one now.
func (m *meter) observe(now, bytes, limit int64) (news bool) {
	switch {
	case m.begun == 0:
		m.begun, m.low, m.base = now, m.share, bytes
		// The look has begun while HAProxy may still follow the share of before.
		if !passed(now, m.sharedAt, settleSpan) && m.before > 0 {
			m.low = min(m.share, m.before)
		}
	case now < m.begun || bytes < m.base: // the clock was set back, the count began anew
		m.begun, m.base = now, bytes
	case now-m.begun >= m.span:
		switch m.judgeLook(now-m.begun, bytes-m.base, limit) {
		// Nearly all of the share was moved: a late push may hide the rest.
		case unsure:
			m.span += int64(briefLook)
			return false
		// The smaller share may have been what held it, so this look says nothing.
		case disturbed:
			m.span = int64(briefLook)
		case judged:
			// From now on the demand is known, and a longer look is more exact.
			m.span, m.first, news = int64(steadyLook), 0, true
		}
		m.begun = 0
		m.observe(now, bytes, limit)
	}
	return news
}

// endRequests says that there are no requests any more since an instant. Those that were
// too short to be measured are judged as a whole.
func (m *meter) endRequests(since, bytes, limit int64) {
	// Nothing was judged while they ran, so they count as one look.
	if m.first > 0 && since >= m.first && bytes >= m.firstBase {
		m.low = m.share
		m.judgeLook(max(since-m.first, int64(shortestLook)), bytes-m.firstBase, limit)
	}
	m.begun, m.first, m.moved = 0, 0, 0
}

type outcome int

const (
	judged    outcome = iota
	unsure            // a longer look will tell
	disturbed         // another one will tell: the share has changed meanwhile
)

func (m *meter) judgeLook(span, bytes, limit int64) outcome {
	m.moved = int64(float64(bytes) / float64(span) * float64(second))
	// A push may be 20 ms late: a tenth of a brief look, a fiftieth of a long one.
	rough := span < int64(steadyLook)/2
	need := max(1, m.moved/100*headroomPercent) + limit/leastPart
	if rough {
		need = max(1, m.moved/100*briefHeadroomPercent) + limit/leastPart
	}
	switch {
	case m.share == 0:
		m.usableRate, m.step = 0, 0
	case rough && 100*m.moved >= nearlyPercent*m.low && 100*m.moved < saturatedPercent*m.low:
		return unsure
	case 100*m.moved < saturatedPercent*m.low:
		if m.usableRate > 0 && !m.rough && 100*m.moved >= droppedPercent*m.usableRate {
			need = max(need, m.usableRate/100*fadePercent)
		}
		// A demand that was found to be below the share: growth begins anew from here.
		m.usableRate, m.step, m.rough = need, 0, rough
	// It moved all of the smaller share, and nobody knows what it would move of the larger.
	case m.low < m.share && differs(m.low, m.share, 0):
		return disturbed // it may have been the smaller share that held it
	case m.usableRate > 0 && m.share > m.usableRate+m.usableRate/10:
		m.usableRate = 0 // it had more than it wanted, and used it
	case m.usableRate > 0:
		// A little more may be enough; each time it is not, it takes twice as much.
		m.step, m.rough = max(2*m.step, limit/32+m.share/4), true
		m.usableRate = max(m.usableRate, m.share) + m.step
	}
	// All of the limit is any number: no instance is given more.
	if m.usableRate >= limit {
		m.usableRate = 0
	}
	return judged
}

// passed reports whether a span has passed since then. It has if then is yet to
// come: the clock was set back.
func passed(now, then int64, span time.Duration) bool {
	return now-then >= int64(span) || now < then
}
