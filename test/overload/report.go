// Package overload offers a cluster of real processes several times what it can serve, opens very many connections at once, and says
// whether limits held by the second, no request waited for longer than it may, and all was as before soon after.
package overload

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is what became of a run.
type Report struct {
	Options
	Capacity float64 // requests a second
	Flood    Phase
	Storm    Phase
	After    Exactness           // of users who ask for twice what they may, after the flood
	Memory   map[string][]Sample // by process
	Open     int                 // connections of clients at a time, at most
	Problems []string

	Counted, CountedAfter map[string]float64 // by the agents in the flood, and of those who ask for twice what they may
}

// Phase is a time in which there was too much.
type Phase struct {
	Name       string
	Begin, End time.Time
	Tally
	Arrived Arrived
	Calm    []Calm
}

// Sample is what memory a process had.
type Sample struct {
	At  time.Time
	MiB float64
}

// Bounds of what may be.
const (
	recoverWithin = 2 * time.Second
	// verdictWithin is for how long a request may be in HAProxy before it is refused: "timeout processing", at which HAProxy looks when
	// it is the request's turn.
	verdictWithin = 2 * time.Second
	// answerWithin is for how long a client who does not give up may wait on a connection: "timeout http-request". Who connects anew
	// may wait for the kernel besides, if HAProxy's queue of connections is full: that gives a connection up after 63 s.
	answerWithin, newAnswerWithin = 10 * time.Second, 65 * time.Second
)

// memoryBound is what a process may have, in MiB: twice what docs/capacity.md says of as many users as agents count one by one
// (100 000 and those of the limit file), and of HAProxy the buffers of all connections and full tables besides.
var memoryBound = map[string]float64{"agent": 500, "haproxy": 512, "polygen": 256, "redis": 256}

// Property is something that is to hold.
type Property struct {
	Name, Worst, Bound string
	Holds              bool
}

// Properties are all that are judged.
func (r *Report) Properties() (all []Property) {
	add := func(name, worst, bound string, holds bool) { all = append(all, Property{name, worst, bound, holds}) }
	for i, p := range []*Phase{&r.Flood, &r.Storm} {
		l, phase := p.Arrived.Limits, []string{"overload: ", "connections: "}[i]
		add(phase+"requests over a limit", fmt.Sprintf("%d; most ÷ limit %.2f (%s)", l.Over, l.Worst, l.User), fmt.Sprintf("0, with %d a second besides while agents are late", lateAllowance), l.Over == 0)
		var longest, longestNew, verdict, recovered time.Duration
		broken, failedNew, visitsNew := p.Broken+p.failed(), 0, 0
		for _, c := range p.Calm {
			if c.Alone {
				longestNew, failedNew, visitsNew = max(longestNew, c.During.Longest), failedNew+len(c.Failed), visitsNew+c.During.N
			} else {
				longest, broken = max(longest, c.During.Longest), broken+len(c.Failed)
			}
			verdict, recovered = max(verdict, c.Verdict.Longest), max(recovered, c.Recovered)
		}
		add(phase+"longest wait of who does not give up", short(longest), short(answerWithin), longest <= answerWithin)
		add(phase+"longest wait of who connects anew", short(longestNew), short(newAnswerWithin), longestNew <= newAnswerWithin)
		add(phase+"failures of who connects anew", fmt.Sprintf("%d of %d", failedNew, visitsNew), "1 of 1000, the kernel's", failedNew*1000 <= visitsNew)
		add(phase+"longest time in HAProxy until a refusal", short(verdict), short(verdictWithin), verdict <= verdictWithin)
		add(phase+"answers that are failures", fmt.Sprint(broken), "0", broken == 0)
		add(phase+"as before after", short(recovered), short(recoverWithin), recovered <= recoverWithin)
	}
	add("overload: requests over a limit after it", fmt.Sprintf("%d; admitted ÷ limit %.2f on average", r.After.Over, r.After.Hot), "0; 0.9", r.After.Over == 0 && r.After.Hot >= 0.9)
	add("connections at a time", fmt.Sprint(r.Open), fmt.Sprint(r.Connections), r.Open >= r.Connections*99/100)
	for _, name := range slices.Sorted(maps.Keys(r.Memory)) {
		most := 0.0
		for _, s := range r.Memory[name] {
			most = max(most, s.MiB)
		}
		kind, _, _ := strings.Cut(name, "-")
		add("memory of "+name, fmt.Sprintf("%.0f MiB", most), fmt.Sprintf("%.0f MiB", memoryBound[kind]), most <= memoryBound[kind])
	}
	add("processes that ended", fmt.Sprint(len(r.Problems)), "0", len(r.Problems) == 0)
	return all
}

// Verdict is a line.
func (r *Report) Verdict() (line string, passed bool) {
	all := r.Properties()
	broken := 0
	for _, p := range all {
		if !p.Holds {
			broken++
		}
	}
	word := "PASS"
	if broken > 0 {
		word = "FAIL"
	}
	return fmt.Sprintf("%s: %d of %d properties hold, seed %d", word, len(all)-broken, len(all), r.Seed), broken == 0
}

// WriteMarkdown writes all that is known.
func (r *Report) WriteMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "The cluster serves %.0f requests a second.\n\n| | offered | sent | admitted | refused | gave up | no connection was free | answered after: median, 99 %%, longest |\n|---|---|---|---|---|---|---|---|\n", r.Capacity)
	for _, p := range []*Phase{&r.Flood, &r.Storm} {
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d | %s, %s, %s |\n", p.Name, p.Offered, p.Sent, p.Admitted, p.Refused, p.GaveUp, p.Unsent+p.Unlinked,
			short(p.Answered.quantile(.5)), short(p.Answered.quantile(.99)), short(p.Answered.Longest))
	}
	fmt.Fprint(w, "\n| | calm user | admitted | refused | failed | median before, during | 99 % before, during | longest | recovered after |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range []*Phase{&r.Flood, &r.Storm} {
		for _, c := range p.Calm {
			fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %s, %s | %s, %s | %s | %s |\n", p.Name, c.User, c.Admitted, c.Refused, len(c.Failed), short(c.Before.quantile(.5)), short(c.During.quantile(.5)),
				short(c.Before.quantile(.99)), short(c.During.quantile(.99)), short(c.During.Longest), short(c.Recovered))
		}
	}
	fmt.Fprintf(w, "\nOf the limits of those who ask for more %.2f was used in the flood, %.2f after it.\n\n| property | worst | bound | |\n|---|---|---|---|\n", r.Flood.Arrived.Limits.Hot, r.After.Hot)
	for _, p := range r.Properties() {
		holds := "holds"
		if !p.Holds {
			holds = "**broken**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", p.Name, p.Worst, p.Bound, holds)
	}
	fmt.Fprint(w, "\n| counted by the agents | in the flood | after it |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Counted)) {
		if n, after := r.Counted[name], r.CountedAfter[name]; n+after > 0 {
			fmt.Fprintf(w, "| `%s` | %.0f | %.0f |\n", name, n, after)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "\nProblem: %s\n", p)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func short(d time.Duration) string {
	if d == never {
		return "never"
	}
	return d.Round(time.Millisecond).String()
}
