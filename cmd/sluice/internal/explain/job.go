package explain

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// WriteJob writes why a background job waits, as a worker told it.
func WriteJob(out io.Writer, why workerapi.Why) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "job %d, %s, in the queue %s: %s\n%s\n", why.ID, terminal.QuoteName(why.Kind), terminal.QuoteName(why.Queue), terminal.QuoteName(why.State), terminal.Printable(why.Reason))
	fmt.Fprintf(w, "  created\t%s\n", why.Created.UTC().Format(time.RFC3339))
	if !why.Since.IsZero() {
		fmt.Fprintf(w, "  could run since\t%s\n", why.Since.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(w, "  attempts\t%d\n", why.Attempt)
	if why.User == "" {
		return w.Flush()
	}
	fmt.Fprintf(w, "  user\t%s, of tier %s\n", terminal.QuoteName(why.User), terminal.QuoteName(why.Tier))
	fmt.Fprintf(w, "  may run\t%s at a time%s\n", number(why.Max), perService(why))
	fmt.Fprintf(w, "  running\t%s\n", namesOfJobs(why.Running))
	fmt.Fprintf(w, "  slots reserved\t%s\n", namesOfJobs(why.Reserved))
	fmt.Fprintf(w, "  in the user's line\t%d%s\n", why.Parked, runNumber(why.Place))
	if why.Behind > 0 {
		fmt.Fprintf(w, "  held back before it\t%d\n", why.Behind)
	}
	return w.Flush()
}

func perService(why workerapi.Why) string {
	var b strings.Builder
	other := ""
	for _, service := range slices.Sorted(maps.Keys(why.Queues)) {
		other = "other "
		fmt.Fprintf(&b, ", %s of %s", number(why.Queues[service]), terminal.QuoteName(service))
	}
	if why.Each > 0 {
		fmt.Fprintf(&b, ", %d of each %sservice", why.Each, other)
	}
	return b.String()
}

func number(n int) string {
	if n >= jobs.Unlimited {
		return "any number"
	}
	return strconv.Itoa(n)
}

func runNumber(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", this one is number %d", n)
}

// maxListed is how many jobs are named.
const maxListed = 10

func namesOfJobs(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	names := make([]string, 0, maxListed)
	for _, id := range ids[:min(len(ids), maxListed)] {
		names = append(names, terminal.QuoteName(id))
	}
	more := ""
	if len(ids) > maxListed {
		more = fmt.Sprintf(" and %d more", len(ids)-maxListed)
	}
	return fmt.Sprintf("%d: %s%s", len(ids), strings.Join(names, ", "), more)
}
