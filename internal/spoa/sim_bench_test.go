//go:build !race

package spoa

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"
)

// BenchmarkSimulatedFleet counts the messages and bytes of a fleet that is too large for one machine: a
// thousand instances, ten million requests a second, a million users (Zipf), in simulated time.
//
// Real are the agents' decisions, their lanes and what they batch (Agent, without its sockets), how they
// apply policies, withdraw credit and report starts; the pools and the watches of polygen, which are those
// of pkg; and the bytes, to which TestSimulatedBytes holds internal/bus, and of policies internal/policy.
// Modelled are the rest of the scripts, of polygen (whom it tells, and rounds of a millisecond) and of HAProxy:
// its tables, its credit, and the shares of bandwidth. Redis answers after half a millisecond, no message is
// lost, nobody joins or leaves, and no clock is wrong. All
// others have had credit for long, so their requests are drawn as one number for each user, second and instance.
//
// The load grows with the fleet: 10 000 requests a second and a thousand users for each instance. One of ten
// users, down to a tenth of all, asks for once or twice what one of their limits allows: GET, "*", in progress or
// bandwidth, in turns. All others may have 16 times what they ask for, or 2000 requests a second if that is more.
//
// First a load balancer spreads each user's requests over all instances, and then over three of them.
// SLUICE_SIM_AGENTS (10,100,1000), SLUICE_SIM_RATE (10000 for each instance), SLUICE_SIM_USERS (1000), SLUICE_SIM_BUSY (10)
// and SLUICE_SIM_SERVED_BY (0,3; 0 is all) change that. A hundred instances take a minute or two of one core, a
// thousand more than ten for each of the two, and 8 GiB with GOGC=60 and GOMEMLIMIT=7GiB.
func BenchmarkSimulatedFleet(b *testing.B) {
	rate, users := scaleNumber(b, "SLUICE_SIM_RATE", 10_000), scaleNumber(b, "SLUICE_SIM_USERS", 1000)
	busy := scaleNumber(b, "SLUICE_SIM_BUSY", 10)
	for range b.N {
		for _, servedBy := range simSizes(b, "SLUICE_SIM_SERVED_BY", "0,3") {
			var results []simResult
			for _, n := range simSizes(b, "SLUICE_SIM_AGENTS", "10,100,1000") {
				load := newSimLoad(float64(n)*float64(rate), n*int(users), n*int(busy), servedBy)
				results = append(results, simulate(b, n, load))
				printSim(load, results)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

// simulate runs a fleet in a bubble, which only a test can have.
func simulate(b *testing.B, instances int, l *simLoad) (r simResult) {
	every := func(string, string) (bool, error) { return true, nil }
	ok := testing.RunTests(every, []testing.InternalTest{{Name: fmt.Sprint("instances=", instances), F: func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { r = runSim(t, instances, l, time.Second) })
	}}})
	if !ok {
		b.Fatal("the simulation failed")
	}
	return r
}

func simSizes(b *testing.B, variable, byDefault string) (sizes []int) {
	text := os.Getenv(variable)
	if text == "" {
		text = byDefault
	}
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 0 || n > 9999 {
			b.Fatalf("%s=%s: want numbers up to 9999, with commas between them", variable, text)
		}
		sizes = append(sizes, n)
	}
	return sizes
}

// simFigure is one row of the table.
type simFigure struct {
	name   string
	digits int
	of     func(r *simResult) float64
}

var simFigures = []simFigure{
	{"requests/s, millions", 1, func(r *simResult) float64 { return r.requests / 1e6 }},
	{"admitted by credit, %", 2, func(r *simResult) float64 { return 100 * r.byCredit / r.requests }},
	{"refused by HAProxy, %", 2, func(r *simResult) float64 { return 100 * r.refusedByHAProxy / r.requests }},
	{"questions/s, thousands", 0, func(r *simResult) float64 { return r.questions / 1e3 }},
	{"of these refused, %", 1, func(r *simResult) float64 { return 100 * r.refusedByAgents / r.questions }},
	{"calls of Redis/s, thousands", 1, func(r *simResult) float64 { return r.sum(callsOf) / 1e3 }},
	{"scripts/s of the busiest shard, thousands", 1, func(r *simResult) float64 { return r.shardCalls / 1e3 }},
	{"asks in these, thousands", 1, func(r *simResult) float64 { return r.shardItems / 1e3 }},
	{"fields/s that slots.lua reads, millions", 1, func(r *simResult) float64 { return r.slotFields / 1e6 }},
	{"messages published/s, thousands", 1, func(r *simResult) float64 { return r.published / 1e3 }},
	{"MB/s into Redis", 1, func(r *simResult) float64 { return r.sum(toRedis) / 1e6 }},
	{"MB/s out of Redis to agents", 1, func(r *simResult) float64 { return r.sum(toAgents) / 1e6 }},
	{"MB/s to polygen", 1, func(r *simResult) float64 { return r.sum(toPolygen) / 1e6 }},
	{"kB/s out of each agent", 1, func(r *simResult) float64 { return r.sum(fromAgents) / 1e3 / float64(r.agents) }},
	{"kB/s into each agent", 1, func(r *simResult) float64 { return r.sum(toAgents) / 1e3 / float64(r.agents) }},
	{"worst second ÷ limit", 3, func(r *simResult) float64 { return r.worst }},
	{"most in progress ÷ limit", 3, func(r *simResult) float64 { return r.worstInProgress }},
}

func callsOf(kind int, k *simCounts) float64 {
	if kind < simUsage {
		return k.calls
	}
	return 0
}

func toRedis(_ int, k *simCounts) float64   { return k.toRedis }
func toAgents(_ int, k *simCounts) float64  { return k.toAgents }
func toPolygen(_ int, k *simCounts) float64 { return k.toPolygen }

// fromAgents leaves out what polygen sends.
func fromAgents(kind int, k *simCounts) float64 {
	if kind < simUsage {
		return k.toRedis
	}
	return 0
}

// sum adds up all kinds of messages.
func (r *simResult) sum(of func(kind int, k *simCounts) float64) (sum float64) {
	for kind := range r.kinds {
		sum += of(kind, &r.kinds[kind])
	}
	return sum
}

func printSim(l *simLoad, results []simResult) {
	seen := "all instances"
	if l.servedBy > 0 {
		seen = fmt.Sprintf("%d instances each", l.servedBy)
	}
	fmt.Printf("\nA simulated fleet: %d users (Zipf %v), of whom %d are at a limit or over it, seen by %s; Redis has %d shards.\n"+
		"× is the growth per doubling of the number of instances.\n", len(l.demand), scaleExponent, l.busy, seen, simShards)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprint(w, "instances\t")
	for i := range results {
		fmt.Fprintf(w, "%d\t", results[i].agents)
		if i > 0 {
			fmt.Fprint(w, "×\t")
		}
	}
	fmt.Fprintln(w)
	for _, f := range simFigures {
		fmt.Fprint(w, f.name, "\t")
		for i := range results {
			fmt.Fprintf(w, "%.*f\t", f.digits, f.of(&results[i]))
			if i > 0 {
				small, large := &results[i-1], &results[i]
				fmt.Fprintf(w, "%.2f\t", math.Pow(f.of(large)/f.of(small), 1/math.Log2(float64(large.agents)/float64(small.agents))))
			}
		}
		fmt.Fprintln(w)
	}
	printKinds(w, &results[len(results)-1])
}

// printKinds prints what each kind of messages costs.
func printKinds(w io.Writer, last *simResult) {
	agents := float64(last.agents)
	fmt.Fprintf(w, "of %d instances, by kind\tcalls/s\tasks, reports, pools, policies/s\tkB/s out of each agent\tinto each agent\tinto each shard\tto polygen\t\n", last.agents)
	for kind, name := range simNames {
		k := &last.kinds[kind]
		out := 0.0
		if kind < simUsage {
			out = k.toRedis
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t\n", name, k.calls, k.items, out/1e3/agents, k.toAgents/1e3/agents, k.toRedis/1e3/simShards, k.toPolygen/1e3)
	}
}
