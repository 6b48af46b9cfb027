package load

import "time"

// Ratios compare what was admitted with a limit per second.
type Ratios struct {
	Limit  int
	Rows   []Row   // one for each second from the first that saw a request to the last
	Max    float64 // the largest Ratio among the whole seconds; 0 if there are none
	Mean   float64 // their mean
	Excess int     // requests over the limit, in all seconds, that no attribution explains

	// FalseRefusals are the requests that were refused although in every
	// second to which they may belong no more requests than the limit can
	// have reached a decision.
	FalseRefusals int
}

// A Row is one second of the wall clock.
type Row struct {
	Second   int64   // since 1970
	Whole    bool    // the schedule covers all of it
	Offered  int     // requests sent in it
	Admitted int     // attributed to it; see Report.Attribute
	Answered int     // admitted requests answered in it
	Refused  int     // refusals answered in it
	Ratio    float64 // Admitted ÷ Limit
}

// Ratios compares the requests of the report, which should be those that share
// a limit, with that limit, which must be positive. Slack is that of Attribute.
func (r *Report) Ratios(limit int, slack time.Duration) Ratios {
	var offered, refused Seconds
	for _, res := range r.Results {
		if res.Sent != 0 {
			offered.add(second(res.Sent), 1)
		}
		if res.Refused() {
			refused.add(second(res.Answered), 1)
		}
	}
	admitted, answered := r.Attribute(limit, slack), r.AdmittedBySecond()

	t := Ratios{Limit: limit, Excess: admitted.Excess(limit), FalseRefusals: r.falseRefusals(limit, slack)}
	first, last, any := bounds(offered, admitted, answered, refused)
	if !any {
		return t
	}
	whole := 0
	for s := first; s <= last; s++ {
		row := Row{
			Second:   s,
			Whole:    s*1e9 >= r.Start.UnixNano() && (s+1)*1e9 <= r.Start.Add(r.Duration).UnixNano(),
			Offered:  offered.At(s),
			Admitted: admitted.At(s),
			Answered: answered.At(s),
			Refused:  refused.At(s),
			Ratio:    float64(admitted.At(s)) / float64(limit),
		}
		t.Rows = append(t.Rows, row)
		if row.Whole {
			whole++
			t.Max = max(t.Max, row.Ratio)
			t.Mean += row.Ratio
		}
	}
	t.Mean /= float64(max(whole, 1))
	return t
}

// falseRefusals counts the refusals that nothing justifies. Like Attribute it
// errs towards the server: a request counts in every second to which it may
// belong, and one whose answer was not waited for in all that follow.
func (r *Report) falseRefusals(limit int, slack time.Duration) int {
	var begin, end Seconds // spans that begin in a second, that end before it
	for _, res := range r.Results {
		if res.Sent == 0 {
			continue
		}
		sp := res.span(slack)
		begin.add(sp.First, 1)
		if res.Failure != TimedOut && res.Failure != Unfinished || res.Status != 0 {
			end.add(sp.Last+1, 1)
		}
	}
	var possible Seconds
	if first, last, any := bounds(begin, end); any {
		n := 0
		for s := first; s <= last; s++ {
			n += begin.At(s) - end.At(s)
			possible.add(s, n)
		}
	}
	count := 0
	for _, res := range r.Results {
		if !res.Refused() {
			continue
		}
		sp, justified := res.span(slack), false
		for s := sp.First; s <= sp.Last; s++ {
			justified = justified || possible.At(s) > limit
		}
		if !justified {
			count++
		}
	}
	return count
}

// span is the seconds in which a request that was sent may have been decided.
func (r Result) span(slack time.Duration) Span {
	to := r.Answered
	if to == 0 {
		to = max(r.Received, r.Sent)
	}
	return spanOf(r.Sent, to, slack)
}

// bounds returns the first and the last second of several counts, if any.
func bounds(all ...Seconds) (first, last int64, any bool) {
	for _, s := range all {
		if len(s.Counts) == 0 {
			continue
		}
		end := s.First + int64(len(s.Counts)) - 1
		if !any {
			first, last, any = s.First, end, true
		}
		first, last = min(first, s.First), max(last, end)
	}
	return first, last, any
}
