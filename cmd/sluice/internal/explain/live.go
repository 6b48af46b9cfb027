package explain

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// writeLive prints what a polygen knows of the user. The version is that of the file that the
// user's limits were read from.
func (q Question) writeLive(out io.Writer, u api.User, version string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\npolygen %s at %s, %s, limits version %s\n", terminal.QuoteName(u.Polygen), q.Admin, client.DescribeRole(u.From), terminal.QuoteName(u.Version))
	if u.Version != version {
		fmt.Fprintf(w, "  these are not those of %s, which has version %s: the use below is against polygen's\n", q.File, version)
	}
	if u.Seen == nil {
		fmt.Fprintln(w, "state: ok; nothing was heard of the user")
	} else {
		fmt.Fprintf(w, "state: %s; last heard of at %s\n", terminal.QuoteName(string(u.State)), formatTime(*u.Seen))
	}
	if u.Entry != nil && u.Entry.Override != nil {
		h := u.Entry.Override
		fmt.Fprintf(w, "override until %s, by %s: %s\n", h.Until.UTC().Format(time.RFC3339), terminal.Printable(h.By), terminal.QuoteName(h.Reason))
	}
	writeReasons(w, u.Why)
	writeUse(w, u)
	writeInstances(w, u)
	writeRefusals(w, u.Decisions)
	return w.Flush()
}

func writeReasons(w io.Writer, reasons []api.Why) {
	for _, y := range reasons {
		if y.Reason == api.LimitZero {
			fmt.Fprintf(w, "  %s\t%s\tby a limit of 0%s\n", terminal.QuoteName(y.Limit), terminal.QuoteName(string(y.Reason)), dryRun(y.Mode))
			continue
		}
		until := "until less is in progress"
		if y.Until != nil {
			until = "until " + formatTime(*y.Until)
		}
		fmt.Fprintf(w, "  %s\t%s\tsince %s\t%s%s\n", terminal.QuoteName(y.Limit), terminal.QuoteName(string(y.Reason)), formatTime(y.Since), until, dryRun(y.Mode))
	}
}

func writeUse(w io.Writer, u api.User) {
	fmt.Fprintln(w, "use:")
	for _, l := range u.Limits {
		fmt.Fprintf(w, "  %s\t%s%s\n", terminal.QuoteName(l.Name), describeUse(l), dryRun(l.Mode))
	}
	if len(u.Limits) == 0 {
		fmt.Fprintln(w, "  no limit")
	}
	fmt.Fprintln(w, "requests started:")
	for _, class := range slices.Sorted(maps.Keys(u.Started)) {
		fmt.Fprintf(w, "  %s\t%.1f/s%s\n", terminal.QuoteName(class), u.Started[class], unlimitedClass(u.Limits, class))
	}
	if len(u.Started) == 0 {
		fmt.Fprintln(w, "  none in the last seconds")
	}
	if u.InProgress > 0 {
		fmt.Fprintf(w, "  in progress\t%d\n", u.InProgress)
	}
}

func writeInstances(w io.Writer, u api.User) {
	if len(u.Instances) > 0 {
		fmt.Fprintln(w, "instances:")
		fmt.Fprintln(w, "  \tin progress\tslots\tdown\tshare\tup\tshare")
		for _, i := range u.Instances {
			fmt.Fprintf(w, "  %s\t%d\t%d\t%s\t%s\t%s\t%s\n", terminal.QuoteName(i.Instance), i.InProgress, i.Slots,
				terms.PerSecond(i.Down), terms.FormatShare(i.DownShare), terms.PerSecond(i.Up), terms.FormatShare(i.UpShare))
		}
	}
}

func writeRefusals(w io.Writer, decisions []api.Decision) {
	fmt.Fprintln(w, "last refusals:")
	for _, d := range decisions {
		what := terminal.QuoteName(string(d.Kind))
		if d.Count > 0 {
			what += fmt.Sprintf(" %d", d.Count)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s%s\n", d.Time.UTC().Format(time.RFC3339), what, terminal.QuoteName(d.Limit), terminal.QuoteName(string(d.Reason)), dryRun(d.Mode))
	}
	if len(decisions) == 0 {
		fmt.Fprintln(w, "  none known")
	}
}

func unlimitedClass(all []api.Limit, class string) string {
	for _, l := range all {
		if of, _ := limits.ParseRateName(l.Name); l.Window > 0 && l.Unit == "" && of == class {
			return ""
		}
	}
	return "\tno limit of its own"
}

// describeUse is the use of a limit, such as "7 of 10 this second, 10 in the last".
func describeUse(l api.Limit) string {
	switch {
	case l.Window > 0:
		_, window := limits.ParseCostName(l.Name)
		s := fmt.Sprintf("%d of %d this %s", l.Used, l.Max, window)
		if l.Burst > 0 {
			s = fmt.Sprintf("%d of %d and a burst of %d this %s", l.Used, l.Max, l.Burst, window)
		}
		if l.Last != nil {
			s += fmt.Sprintf(", %d in the last", *l.Last)
		}
		if l.Left != nil && l.Resets != nil {
			s += fmt.Sprintf("; %d left until %s", *l.Left, l.Resets.UTC().Format(time.RFC3339))
		}
		return s
	case strings.HasPrefix(l.Name, "bandwidth."):
		return fmt.Sprintf("%s of %s/s", terms.PerSecond(l.Used), terms.FormatBytes(l.Max))
	default:
		s := fmt.Sprintf("%d of %d in progress", l.Used, l.Max)
		if len(l.Except) > 0 {
			s += ", without " + terminal.QuoteNames(l.Except)
		}
		return s
	}
}

func dryRun(mode string) string {
	if mode == "dry-run" {
		return "\tdry-run: nobody is refused"
	}
	return ""
}

func formatTime(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// WriteDecision prints one event of the stream of decisions as a line.
func WriteDecision(w io.Writer, e api.Event) error {
	line := e.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00") + " " + terminal.QuoteName(string(e.Kind))
	if e.Limit != "" {
		line += fmt.Sprintf(" %s (%s)", terminal.QuoteName(e.Limit), terminal.QuoteName(string(e.Reason)))
	}
	if e.Until != nil {
		line += " until " + formatTime(*e.Until)
	}
	if e.Mode == "dry-run" {
		line += ", dry-run: nobody is refused"
	}
	if e.Note != "" {
		line += ": " + terminal.Printable(e.Note)
	}
	if e.Count > 0 {
		line += fmt.Sprintf(" %d decisions: they came too fast", e.Count)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
