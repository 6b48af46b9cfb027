package judge

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// rows are the names of the matrix' rows: first what holds where nothing is broken.
func (r *Report) rows() []string {
	return slices.SortedFunc(maps.Keys(r.Cells), func(a, b string) int {
		return cmp.Or(-cmp.Compare(btoi(a == Calm), btoi(b == Calm)), cmp.Compare(a, b))
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Word is PASS, FAIL, or UNCLEAR of a run that was too short to judge growth.
func (r *Report) Word() string {
	switch {
	case r.Bad > 0 || r.Requests == 0 || len(r.Unbounded) > 0 || len(r.Problems) > 0 || r.count(Grows) > 0:
		return "FAIL"
	case r.short():
		return "UNCLEAR"
	}
	return "PASS"
}

// Verdict is the line that says whether the run passed.
func (r *Report) Verdict() string {
	line := fmt.Sprintf("%s: seed %d, %s: %d requests, %d admitted, %d beyond their bounds; the machine stalled for %.0f %% of the time", r.Word(), r.Run.Seed, cmp.Or(r.Run.Store, "no store"), r.Requests, r.Admitted, r.Bad, 100*r.Stalled)
	if len(r.Unbounded) > 0 {
		line += "; no bound for: " + strings.Join(r.Unbounded, ", ")
	}
	if len(r.Problems) > 0 {
		line += fmt.Sprintf("; %d problems", len(r.Problems))
	}
	if len(r.Growth) > 0 {
		line += fmt.Sprintf("; of %d series %d grow, %d are flat within %.0f %% an hour, %d unclear", len(r.Growth), r.count(Grows), r.count(Flat), 100*tolerance, r.count(Unclear))
	}
	if r.short() {
		line += fmt.Sprintf("; too short to judge memory and latency, which takes %v more than %v", enough, r.Run.Settle.Round(time.Second))
	}
	return line
}

// WriteText writes the report for a terminal. The verdict is its last line.
func (r *Report) WriteText(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	columns := r.columns()
	fmt.Fprint(tab, "worst (bound)")
	for _, p := range columns {
		fmt.Fprint(tab, "\t", p)
	}
	for _, row := range r.rows() {
		fmt.Fprint(tab, "\n", row)
		for _, p := range columns {
			fmt.Fprint(tab, "\t", r.Cells[row][p].text(p))
		}
	}
	fmt.Fprintln(tab)
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nWhere the worst values were seen:")
	for _, place := range r.places() {
		fmt.Fprintln(w, "  "+place)
	}
	if r.Bad > 0 {
		fmt.Fprintf(w, "\nBeyond their bounds, the first %d of %d:\n\n", len(r.Violations), r.Bad)
		for _, v := range r.Violations {
			fmt.Fprintln(w, "  "+v.String())
		}
	}
	fmt.Fprintln(w)
	r.writeGrowth(w)
	for _, p := range r.Problems {
		fmt.Fprintln(w, "PROBLEM:", p)
	}
	_, err := fmt.Fprintln(w, r.Verdict())
	return err
}

func (r *Report) columns() (all []Property) {
	for p := range properties {
		for _, cells := range r.Cells {
			if cells[p].Seen > 0 {
				all = append(all, p)
				break
			}
		}
	}
	return all
}

func (c *Cell) text(p Property) string {
	if c.Seen == 0 {
		return "–"
	}
	value := c.Worst.Value()
	if p.counted() {
		value = c.Sum
	}
	mark := ""
	if c.Bad > 0 {
		mark = fmt.Sprintf(" ✗%d", c.Bad)
	}
	return fmt.Sprintf("%s (%s)%s", p.format(value), p.format(c.Bound), mark)
}

// places says of each cell where its worst value was, unless it is that nothing happened.
func (r *Report) places() (all []string) {
	for _, row := range r.rows() {
		for p, c := range r.Cells[row] {
			if c.Seen == 0 || c.Worst.Count == 0 && !Property(p).lowerIsWorse() {
				continue
			}
			all = append(all, fmt.Sprintf("%s, %s: %s", row, Property(p), c.Worst.String()))
		}
	}
	return all
}

// String describes an observation: user, value and time.
func (o *Observation) String() string {
	at := o.Begin.UTC().Format("15:04:05.000")
	user := "user " + o.User
	switch o.Property {
	case Requests:
		return fmt.Sprintf("%s was admitted %.0f of %.0f %s from %s on", user, o.Count, o.Limit, o.What, at)
	case InProgress:
		return fmt.Sprintf("%s had %.0f of %.0f %s at %s", user, o.Count, o.Limit, o.What, at)
	case Bytes:
		return fmt.Sprintf("%s moved %.0f of %.0f %s from %s on", user, o.Count, o.Limit, o.What, at)
	case Failed:
		return fmt.Sprintf("%s got no answer through instance %d, or half of one, or an error, from %s to %s", user, o.Instance, at, o.End.UTC().Format("15:04:05.000"))
	case Costs:
		return fmt.Sprintf("%s was answered what cost %.0f of %.0f %s from %s on", user, o.Count, o.Limit, o.What, at)
	case RefusedRate, RefusedInProgress, RefusedCost: // a cost's Begin is that of the window before
		if math.IsInf(o.Limit, 1) {
			return fmt.Sprintf("%s was refused through instance %d without a limit at %s", user, o.Instance, at)
		}
		return fmt.Sprintf("%s was refused through instance %d with %.0f of %.0f %s at %s", user, o.Instance, o.Count, o.Limit, o.What, at)
	case Waited:
		return fmt.Sprintf("%s waited for %.1f s of %.1f s through instance %d from %s on", user, o.Count, o.Limit, o.Instance, at)
	case Memory:
		return fmt.Sprintf("%s had %.0f MiB of %.0f at %s", o.What, o.Count, o.Limit, at)
	case Leaked:
		return strings.TrimPrefix(fmt.Sprintf("%s: %.0f %s at %s", user, o.Count, o.What, at), "user : ")
	}
	return fmt.Sprintf("something was not exact yet %.1f s after the end at %s", o.Count, at)
}

// String is a sentence: what was seen, during which fault, and what is allowed.
func (v *Violation) String() string {
	bound := fmt.Sprintf("bound %s", v.Property.format(v.Bound))
	if v.Fault == nil {
		return fmt.Sprintf("%s, while nothing was broken (%s)", &v.Observation, bound)
	}
	if v.Property != Exact && v.Begin.After(v.Fault.End) {
		return fmt.Sprintf("%s, %.1f s after the end of: %s (%s)", &v.Observation, v.Begin.Sub(v.Fault.End).Seconds(), told(v.Fault), bound)
	}
	if v.Property == Exact {
		return fmt.Sprintf("%s of: %s (%s)", &v.Observation, told(v.Fault), bound)
	}
	return fmt.Sprintf("%s, while %s (%s)", &v.Observation, told(v.Fault), bound)
}

// participles say what was done to a fault's target.
var participles = map[string]string{
	history.Kill: "was killed", history.Stop: "was stopped", history.Restart: "was restarted", history.Reload: "was reloaded",
	history.Slow: "was slow", history.Partition: "was cut", history.Reset: "was reset", history.FullDisk: "had a full disk",
	history.NoFiles: "had no file descriptors left", history.ClockStep: "had its clock set", history.Replace: "were replaced",
	history.Break: "were broken", history.Empty: "were emptied", history.Flush: "was emptied", history.Failover: "failed over",
	history.NoMemory: "had no memory left", history.NeverReads: "had a client that never reads",
	history.Overload: "had more requests than can be served", history.Storm: "had many new connections", history.Machine: "stood still",
}

// told is a fault as a clause: "redis was stopped".
func told(f *history.Fault) string {
	what := cmp.Or(participles[f.Name], f.Name)
	target := cmp.Or(f.Target, f.Name)
	if f.Parameter != "" {
		what += " (" + f.Parameter + ")"
	}
	return fmt.Sprintf("%s %s, from %s for %s", target, what, f.Begin.UTC().Format("15:04:05.000"), f.End.Sub(f.Begin).Round(time.Millisecond))
}
