package bandwidth

import "time"

func (a *Agent) report(u *user) {
	if !u.marked {
		u.marked = true
		a.reports = append(a.reports, u)
	}
}

// Collect appends the reports that are due. An agent that is alone reports, too:
// nobody divides anything then, but polygen shows what is in progress and moves.
func (a *Agent) Collect(at time.Time, reports []Report) []Report {
	now := at.UnixNano()
	for i, u := range a.reports {
		// Else a user who is forgotten stays reachable from the array.
		a.reports[i] = nil
		if a.users[u.name] != u {
			continue
		}
		a.changes.CatchUp(u) // while it is marked, lest it be appended
		u.marked = false
		u.lastReport, u.reported = a.makeReport(u, now), now
		a.schedule(u, now)
		reports = append(reports, u.lastReport)
	}
	a.reports = a.reports[:0]
	return reports
}

func (a *Agent) makeReport(u *user, now int64) Report {
	r := Report{Instance: a.config.Instance, User: u.name, Active: int(u.weight)}
	for _, d := range Directions {
		if u.limit.Bytes[d] > 0 {
			r.Moved[d], r.Most[d], r.Share[d] = u.meters[d].moved, u.meters[d].usableRate, u.polygenShare(d, now)
			u.addLent(&r, d, now)
		}
	}
	return r
}

// addLent adds what moves by credit to a report. Without transfers that is all that the
// instance could use, whatever it once moved.
func (u *user) addLent(r *Report, d Direction, now int64) {
	lent := u.lentNow(d, now)
	if lent == 0 {
		return
	}
	// With the headroom of a brief look: the rate is that of some past seconds.
	need := max(1, lent/100*briefHeadroomPercent)
	r.Moved[d] += lent
	switch {
	case u.count.Active == 0:
		// As of any demand: so that it can show that it needs more.
		r.Most[d] = need + u.limit.Bytes[d]/leastPart
	case r.Most[d] > 0:
		r.Most[d] += need
	}
	// A demand for all of the limit is one for any number.
	if r.Most[d] >= u.limit.Bytes[d] {
		r.Most[d] = 0
	}
}

// demandChanged reports whether the user's demand is another one than was said.
func (a *Agent) demandChanged(u *user, now int64) bool {
	r := a.makeReport(u, now)
	for _, d := range Directions {
		// By less than this polygen would not send other shares either.
		if differs(r.Most[d], u.lastReport.Most[d], u.limit.Bytes[d]/changePart) {
			return true
		}
	}
	return r.Active != u.lastReport.Active
}
