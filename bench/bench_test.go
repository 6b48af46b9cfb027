// Package bench measures what Sluice promises: how exact it is, how fast it
// reacts, and what it costs. `make bench` runs it and prints tables. Each table
// compares within one run, for machines differ and are shared.
package bench

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

const (
	shippedWait = 20 * time.Millisecond // spoa's --max-wait and haproxy.cfg's timeout, 10 ms more
	runFor      = 5 * time.Second
	clockSlack  = 2 * time.Millisecond
)

// table prints rows of columns, aligned, below a title.
type table struct {
	w *tabwriter.Writer
}

func newTable(title string, columns ...string) *table {
	fmt.Printf("\n%s\n", title)
	t := &table{tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)}
	t.row(columns...)
	return t
}

func (t *table) row(columns ...string) {
	fmt.Fprintln(t.w, strings.Join(columns, "\t")+"\t")
	t.w.Flush()
}

// printTable prints a table whose rows are all there, the columns' names first.
func printTable(title string, rows [][]string) {
	fmt.Printf("\n%s\n", title)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, columns := range rows {
		fmt.Fprintln(w, strings.Join(columns, "\t")+"\t")
	}
	w.Flush()
}

func limitFile(get int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: %d}}}\n", get)
}

// micro writes a duration in whole microseconds.
func micro(d time.Duration) string { return fmt.Sprint(d.Microseconds()) }

// admittedLate is how many of the requests that HAProxy has admitted since the cluster started it admitted neither by
// credit nor because the agent said so. What it admits by credit it tells some seconds later.
func admittedLate(b *testing.B, c *cluster.Cluster, admitted int) int {
	late := admitted
	_ = testkit.Poll(10*time.Second, func() error {
		known := 0.0
		for _, in := range c.Instances {
			known += in.Metric(b, `sluice_requests_total{limit="",verdict="allowed"}`)
			known += in.Metric(b, `sluice_requests_total{limit="",verdict="credit"}`)
		}
		if late = admitted - int(known); late > 0 {
			return errors.New("not all are counted")
		}
		return nil
	})
	return max(0, late)
}

// timedOut is how many verdicts waited for Redis for longer than they may. They are decided without it: see docs/failures.md.
func timedOut(b *testing.B, c *cluster.Cluster) (n int) {
	b.Helper()
	for _, in := range c.Instances {
		n += int(in.Metric(b, "sluice_verdict_timeouts_total"))
	}
	return n
}

// BenchmarkLoadAccuracy offers far more than a limit, and less, and compares
// what is admitted in each cluster second with the limit.
func BenchmarkLoadAccuracy(b *testing.B) {
	type run struct {
		instances int
		pattern   string
		limit     int
		offered   float64
	}
	var runs []run
	for _, limit := range []int{10, 100, 1000} {
		for _, offered := range []float64{200, 2000, 10000} {
			runs = append(runs, run{1, "even", limit, offered})
		}
	}
	for _, instances := range []int{2, 4} {
		for _, pattern := range []string{"even", "90/10", "jump"} {
			for _, offered := range []float64{90, 1000, 10000} {
				runs = append(runs, run{instances, pattern, 100, offered})
			}
		}
		runs = append(runs, run{instances, "even", 1000, 450}, run{instances, "even", 1000, 10000})
	}
	t := newTable("Accuracy: admitted ÷ limit per cluster second (max), admitted ÷ the smaller of limit and offered (mean, and of\n"+
		"the first second, of a user who was never seen before).\n"+
		"Shipped time-outs; 'late' were admitted because the agent's answer came too late, 'timed out' were decided without Redis",
		"instances", "load", "limit/s", "offered/s", "max", "mean", "first", "over", "refused in error", "waited", "wait p99 ms", "late", "timed out", "failed")
	for range b.N {
		for _, r := range runs {
			c := cluster.Start(b, cluster.Options{Instances: r.instances, Limits: limitFile(r.limit), MaxWait: shippedWait})
			c.Settle()
			targets, err := load.Spread(r.pattern, c.Addresses()...)
			if err != nil {
				b.Fatal(err)
			}
			report, err := load.Run(b.Context(), load.Spec{
				Targets: targets, Rate: r.offered, Duration: runFor, Arrivals: load.Poisson, Seed: 1, Align: true,
				Requests: load.Users("GET", "/", "alice"),
			})
			if err != nil {
				b.Fatal(err)
			}
			ratios := report.Ratios(r.limit, clockSlack)
			late := admittedLate(b, c, len(report.Admitted().Results))
			waited := 0.0
			slow := 0.0 // waits longer than 5 ms
			for _, in := range c.Instances {
				waited += in.Metric(b, "sluice_verdict_wait_seconds_count")
				slow += in.Metric(b, "sluice_verdict_wait_seconds_count") - in.Metric(b, `sluice_verdict_wait_seconds_bucket{le="0.005"}`)
			}
			admitted, possible, first := 0, 0, 0.0
			for _, row := range ratios.Rows {
				if row.Whole {
					possible += min(r.limit, row.Offered)
					admitted += row.Answered
					if first == 0 {
						first = float64(admitted) / float64(possible)
					}
				}
			}
			p99 := "≤ 5"
			if slow > 0.01*waited {
				p99 = fmt.Sprintf("> 5 (%.1f %%)", 100*slow/waited)
			}
			t.row(fmt.Sprint(r.instances), r.pattern, fmt.Sprint(r.limit), fmt.Sprint(r.offered),
				fmt.Sprintf("%.3f", ratios.Max), fmt.Sprintf("%.3f", float64(admitted)/float64(possible)), fmt.Sprintf("%.2f", first),
				fmt.Sprint(ratios.Excess), fmt.Sprint(ratios.FalseRefusals), fmt.Sprint(waited), p99,
				fmt.Sprint(late), fmt.Sprint(timedOut(b, c)), fmt.Sprint(len(report.Results)-len(report.Admitted().Results)-len(report.Refused().Results)))
			c.Stop()
		}
	}
}
