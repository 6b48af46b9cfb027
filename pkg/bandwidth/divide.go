package bandwidth

import "slices"

const (
	// leastPart of the limit is the smallest share of an instance with requests in
	// progress: 1/leastPart of it, so that it can show that it needs more.
	leastPart = 200
	// changePercent is by how much a share must change, and changePart by which part
	// of the limit, to be sent before it is due for repetition.
	changePercent = 3
	changePart    = 200
)

// divide computes the user's shares, and has them sent if they changed.
func (w *Watch) divide(u *watched, now int64) {
	u.divided, u.changed = now, false
	for _, d := range Directions {
		if u.limit[d] == 0 {
			u.sent[d] = nil
			continue
		}
		demands := make([]Demand, 0, len(u.Reports))
		for _, i := range u.Reports {
			demands = append(demands, Demand{Instance: i.Instance, Weight: i.Active, Most: i.Most[d]})
		}
		shares := divide(u.limit[d], u.limit[d]/leastPart, demands)
		// Unchanged shares are repeated before agents forget them, for a policy may have been lost.
		if len(shares) == 0 || !differ(u.sent[d], shares, u.limit[d]/changePart) && !passed(now, u.sentAt[d], repeatEvery) {
			continue
		}
		w.send(u, d, shares)
		u.sent[d], u.sentAt[d] = shares, now
	}
}

// send has a division fetched. One before it that was not fetched yet is replaced, and who had a share
// before that one has heard of neither.
func (w *Watch) send(u *watched, d Direction, shares []Share) {
	at := u.out[d]
	if at >= len(w.out) || w.out[at].User != u.name || w.out[at].Direction != d {
		at = len(w.out)
		u.out[d], w.out = at, append(w.out, Sharing{User: u.name, Direction: d})
		for _, s := range u.sent[d] {
			w.out[at].Before = append(w.out[at].Before, s.Instance)
		}
	}
	w.out[at].Shares = shares
}

func differ(a, b []Share, little int64) bool {
	return !slices.EqualFunc(a, b, func(a, b Share) bool {
		return a.Instance == b.Instance && !differs(a.Bytes, b.Bytes, little)
	})
}

// differs reports whether numbers differ by more than a few per cent, and by more
// than a little. 0 is different from all others.
func differs(a, b, little int64) bool {
	return (a == 0) != (b == 0) || abs(a-b) > little && 100*abs(a-b) > changePercent*max(a, b)
}

func abs(n int64) int64 { return max(n, -n) }
