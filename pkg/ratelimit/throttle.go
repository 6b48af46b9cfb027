package ratelimit

import "github.com/sluice-qos/sluice/pkg/limits"

// throttleNow takes the word for it that there is no more: HAProxy refuses the key by
// itself until the window ends, or a probe finds tokens again.
func (a *Agent) throttleNow(b *bucket, now int64) {
	if !a.decidesAlone(b) {
		a.markSpent(b, now)
	}
	// Of a dry run HAProxy must hear nothing: its table has no word for requests to be let through.
	if b.rate.Mode == limits.Enforce {
		a.refuseInHAProxy(b, now)
	}
}

func (a *Agent) refuseInHAProxy(b *bucket, now int64) {
	b.refusing, b.refusingAt = true, now
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: b.key, End: b.ends, Limit: b.rate.Max})
}

func (a *Agent) liftRefusal(b *bucket) {
	b.refusing = false
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: b.key, End: b.ends, Limit: b.rate.Max, Lift: true})
}

func (a *Agent) markSpent(b *bucket, now int64) {
	// Several answers may say so before a probe is due: the gap grows once for each probe.
	if b.probeGap == 0 || b.probeAt <= now {
		slowest := int64(slowestGap)
		if b.longWindow() {
			slowest = int64(longGap)
		}
		b.probeGap = min(max(2*b.probeGap, int64(firstProbe)), slowest)
		b.probeAt = now + b.probeGap
	}
	b.spent = true
	// A key that was used up is likely to be so in the next window.
	b.hotUntil = max(b.hotUntil, b.end()+int64(hotSpan))
}

// relieve lets requests of a key through to the agent again that has tokens now.
func (a *Agent) relieve(b *bucket) {
	if a.available(b) {
		b.probeGap = int64(firstProbe)
		if b.refusing {
			a.liftRefusal(b)
		}
	}
}
