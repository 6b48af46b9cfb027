package bus

import (
	"strconv"
	"strings"
	"time"
)

const (
	// BeatEvery is how often an instance asks HeartbeatDue, and how often it registers in a
	// cluster of up to fullRhythm instances.
	BeatEvery = 250 * time.Millisecond

	// fullRhythm is how many instances register every BeatEvery. More of them do it the more
	// seldom, so that together they register a thousand times a second at most: that costs
	// Redis little more than one hundredth of a core.
	fullRhythm = 250

	// slowestPace bounds for how long an instance that is gone stays in the list, to 12 s. From
	// 2000 instances on, each of them costs Redis an eighth of what it costs in a small cluster.
	slowestPace pace = 8

	// missedBeats is after how many missed heartbeats an instance is gone.
	missedBeats = 6
)

// A pace is how many times BeatEvery lies between two heartbeats of an instance. The script
// that changes the membership decides it, and it is a part of the epoch: so nobody beats at
// the rhythm of one epoch and is judged by another one's. That an instance has not heard of
// the last epoch yet does no harm: its score tells at which pace it beats, and it is gone only
// when it was silent for too long by both.
type pace int

// paceAmong is the pace of so many instances; scripts/registry.lua says the same.
func paceAmong(instances int) pace {
	// Rounded up, or 499 instances would register twice as often as Redis has room for.
	return min(slowestPace, max(1, pace((instances+fullRhythm-1)/fullRhythm)))
}

// paceOf is the pace of an epoch. That of a small cluster names none.
func paceOf(epoch string) pace {
	// Whatever is behind the mark, nobody beats all the time for it, or is silent for longer than others wait.
	_, mark, _ := strings.Cut(epoch, "~")
	n, err := strconv.Atoi(mark)
	if err != nil || n < 1 {
		return 1
	}
	return min(slowestPace, pace(n))
}

func (p pace) every() time.Duration { return time.Duration(p) * BeatEvery }

// lapse is how long an instance may be silent.
func (p pace) lapse() time.Duration { return missedBeats * p.every() }

// fraction is what a score has behind the milliseconds: sixteenths, which a float64 of this
// size has exactly.
func (p pace) fraction() string {
	return strings.TrimPrefix(strconv.FormatFloat(float64(p)/16, 'f', 4, 64), "0")
}

// HeartbeatEvery is how often each of so many instances registers.
func HeartbeatEvery(instances int) time.Duration { return paceAmong(instances).every() }

// Lapse is for how long one of so many instances may be silent before it is gone.
func Lapse(instances int) time.Duration { return paceAmong(instances).lapse() }
