package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// namesLimits has every kind of limit, so that each name leaves what it can leave.
const namesLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: {second: 100, minute: 1000, hour: 10000}}, concurrent: 50, bandwidth: {down: 10MiB}}
  pro: {requests: {GET: 200}, concurrent: 100, bandwidth: {down: 100MiB}}
users: {alice: pro}
`

const (
	namesAlice   = 200             // requests per second of the user whom the file names; she asks for twice that
	namesBefore  = 3 * time.Second // she is a user before the random names come
	namesFor     = 5 * time.Minute
	namesPerSec  = 10_000
	namesSamples = 20 // rows of the table
)

// BenchmarkRandomNames sends requests with a new random name each, and shows that the
// memory of each part does not grow with them, and that a user whom the limit file
// names has exactly their limit meanwhile. SLUICE_NAMES_FOR (5m) and SLUICE_NAMES_RATE
// (10000 a second) change how long and how many.
func BenchmarkRandomNames(b *testing.B) {
	lasts, rate := namesFor, namesPerSec
	if text := os.Getenv("SLUICE_NAMES_FOR"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 10*time.Second {
			b.Fatalf("SLUICE_NAMES_FOR=%s: want a duration of 10s at least", text)
		}
		lasts = d
	}
	if text := os.Getenv("SLUICE_NAMES_RATE"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			b.Fatalf("SLUICE_NAMES_RATE=%s: want a number", text)
		}
		rate = n
	}
	for range b.N {
		randomNames(b, lasts, rate)
	}
}

func randomNames(b *testing.B, lasts time.Duration, rate int) {
	origin := testkit.FreeAddr(b)
	file := b.TempDir() + "/origin.cfg"
	if err := os.WriteFile(file, []byte(cheapOrigin), 0o644); err != nil {
		b.Fatal(err)
	}
	testkit.HAProxy(b, file, origin, "BIND="+origin)
	c := cluster.Start(b, cluster.Options{Limits: namesLimits, MaxWait: shippedWait, Origin: origin})
	defer c.Stop()
	in := c.Instances[0]

	var alice, random tally
	step := lasts / namesSamples
	t := newTable(fmt.Sprintf("Random names: %d requests a second, each of a new name, for %v; alice, whom the file names, has asked for %d a second before, and may have %d.\n"+
		"Resident memory of each part, and what there is of each name. 'Unasked' were admitted because the agent's answer came too late", rate, lasts, 2*namesAlice, namesAlice),
		"after", "HAProxy MiB", "spoa MiB", "polygen MiB", "Redis MiB", "counted one by one", "tracked by HAProxy", "taught", "known to polygen", "random admitted/s", "alice admitted/s", "unasked", "failed")
	began := time.Now()
	asked := 0.0 // requests that the agent has allowed, so far
	row := func() {
		taught := 0.0
		for _, table := range []string{"throttle", "block", "sluice_share"} {
			taught += in.Metric(b, `sluice_peers_entries{table="`+table+`"}`)
		}
		info, err := in.Tell("show table sluice/active")
		if err != nil {
			b.Fatal(err)
		}
		tracked := strings.Count(info, "key=")
		a, r := alice.take(), random.take()
		allowed := in.Metric(b, `sluice_requests_total{limit="",verdict="allowed"}`)
		unasked := max(0, float64(a.admitted+r.admitted)-(allowed-asked))
		asked = allowed
		t.row(time.Since(began).Round(time.Second).String(), resident(b, in.HAProxy), resident(b, in.Agent), resident(b, c.Polygens[0].Process), resident(b, c.Redis),
			fmt.Sprint(in.Metric(b, "sluice_unknown_users_counted")), fmt.Sprint(tracked), fmt.Sprint(taught),
			fmt.Sprint(cluster.Metric(b, c.Polygens[0].Admin, "sluice_seen_users")),
			fmt.Sprintf("%.0f", r.perSecond()), fmt.Sprintf("%.1f", a.perSecond()), fmt.Sprint(unasked), fmt.Sprint(a.failed+r.failed))
	}
	alice.add(b, namesBefore, in.Address, 2*namesAlice, load.Users("GET", "/", "alice"))
	began = time.Now()
	row()
	// One run after the other, since a run remembers each of its requests.
	for i := range namesSamples {
		var both sync.WaitGroup
		both.Go(func() {
			random.add(b, step, in.Address, rate, func(n int) load.Request {
				return load.Request{User: "random", Headers: fmt.Appendf(nil, "X-User: %d-%d\r\n", i, n)}
			})
		})
		both.Go(func() { alice.add(b, step, in.Address, 2*namesAlice, load.Users("GET", "/", "alice")) })
		both.Wait()
		row()
	}
	t = newTable("alice: admitted ÷ limit, of the whole seconds in which she asked for more. In some the machine may have stood still", "", "seconds", "min", "mean", "max", "within 1 %")
	t.row(append([]string{"all"}, spread(alice.ratios)...)...)
	t.row(append([]string{"in which all of her requests were answered"}, spread(alice.served)...)...)
}

// spread is how many ratios there are, and the cells of what they are.
func spread(ratios []float64) []string {
	if len(ratios) == 0 {
		return []string{"0", "", "", "", ""}
	}
	within, sum := 0, 0.0
	for _, r := range ratios {
		sum += r
		if r >= 0.99 && r <= 1.01 {
			within++
		}
	}
	n := float64(len(ratios))
	return []string{fmt.Sprint(len(ratios)), fmt.Sprintf("%.3f", slices.Min(ratios)), fmt.Sprintf("%.4f", sum/n), fmt.Sprintf("%.3f", slices.Max(ratios)),
		fmt.Sprintf("%.1f %%", 100*float64(within)/n)}
}

// tally adds up what became of requests.
type tally struct {
	admitted, failed int
	seconds          float64
	ratios           []float64 // of the limit, by whole second
	served           []float64 // of these, the seconds in which nearly all was sent and answered
}

func (t *tally) add(b *testing.B, d time.Duration, address string, rate int, requests func(int) load.Request) {
	r, err := load.Run(b.Context(), load.Spec{
		Targets: []load.Target{{Address: address}}, Rate: float64(rate), Duration: d, Align: true, Requests: requests, Tick: 2 * time.Millisecond,
	})
	if err != nil {
		b.Error(err)
		return
	}
	t.admitted += len(r.Admitted().Results)
	t.failed += len(r.Results) - len(r.Admitted().Results) - len(r.Refused().Results)
	t.seconds += d.Seconds()
	if rate == 2*namesAlice {
		for _, row := range r.Ratios(namesAlice, clockSlack).Rows {
			if !row.Whole || row.Offered <= namesAlice {
				continue
			}
			t.ratios = append(t.ratios, row.Ratio)
			if 100*min(row.Offered, row.Answered+row.Refused) >= 99*rate {
				t.served = append(t.served, row.Ratio)
			}
		}
	}
}

// take returns the counts since the last call.
func (t *tally) take() tally {
	was := *t
	t.admitted, t.failed, t.seconds = 0, 0, 0
	return was
}

func (t tally) perSecond() float64 {
	if t.seconds == 0 {
		return 0
	}
	return float64(t.admitted) / t.seconds
}

// resident is a process' memory that is not swapped out, in MiB.
func resident(b *testing.B, p *testkit.Process) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
			if err != nil {
				b.Fatal(err)
			}
			return fmt.Sprint(kib / 1024)
		}
	}
	return "?"
}
