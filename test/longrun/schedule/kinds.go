package schedule

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

type kind struct {
	name        string
	weight      int
	targets     func(store string) []string
	shapes      []shape
	least, most time.Duration // for how long
}

// shape is a way in which a fault can be, with an amount unless least and most are the same.
type shape struct {
	variant     string
	least, most int64
}

var plain = []shape{{}}

// kinds are all, in an order that belongs to what a seed means.
var kinds = []kind{
	{history.Kill, 12, processes, plain, 100 * time.Millisecond, 8 * time.Second},
	{history.Stop, 12, processes, plain, time.Second, 30 * time.Second},
	{history.Restart, 6, processes, plain, 0, time.Second},
	{history.Reload, 6, haproxies, plain, 0, time.Second},
	{history.Slow, 8, links, []shape{
		{"delay %d ms, jitter as much", 2, 100},
		{"rate %d kB/s", 5, 200},
	}, time.Second, 12 * time.Second},
	{history.Partition, 8, links, plain, 500 * time.Millisecond, 10 * time.Second},
	{history.Reset, 6, links, plain, 0, 0},
	{history.FullDisk, 3, nodes, plain, 2 * time.Second, 8 * time.Second},
	{history.NoFiles, 4, limitedByFiles, []shape{{"%d more files", 0, 8}}, time.Second, 8 * time.Second},
	{history.ClockStep, 5, clocked, []shape{{"%+ds", 1, 5}, {"%+ds", -5, -1}}, 2 * time.Second, 10 * time.Second},
	{history.Replace, 3, limitFile, plain, 2 * time.Second, 8 * time.Second},
	{history.Break, 2, limitFile, plain, 2 * time.Second, 8 * time.Second},
	{history.Empty, 2, limitFile, []shape{{"empty", 0, 0}, {"gone", 0, 0}}, 2 * time.Second, 8 * time.Second},
	{history.Flush, 4, masters, plain, 0, 0},
	{history.Failover, 5, failing, plain, 5 * time.Second, 5 * time.Second},
	{history.NoMemory, 4, masters, plain, time.Second, 8 * time.Second},
	{history.NeverReads, 3, polygens, []shape{{"%d connections", 1, 200}}, 3 * time.Second, 10 * time.Second},
	{history.Storm, 2, haproxies, []shape{{"%d connections", 200, 4000}}, time.Second, 5 * time.Second},
	{history.Overload, 2, everything, []shape{{"%d connections", 5, 40}}, time.Second, 4 * time.Second},
}

func numbered(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", name, i))
	}
	return all
}

func haproxies(string) []string  { return numbered("haproxy", Instances) }
func polygens(string) []string   { return numbered("polygen", Polygens) }
func limitFile(string) []string  { return []string{"limits"} }
func everything(string) []string { return []string{"all"} }

func nodes(store string) []string {
	if store == "single" {
		return []string{"redis"}
	}
	return numbered("redis", Nodes(store))
}

// masters are the nodes that were masters at first. A fault happens to the master at its time.
func masters(store string) []string {
	if store == "cluster" {
		return nodes(store)[:3]
	}
	return []string{"redis"}
}

func failing(store string) []string {
	if store == "single" {
		return nil
	}
	return masters(store)
}

func processes(store string) []string {
	agents := numbered("agent", Instances)
	// Each kind of process as often as the others.
	return slices.Concat(agents, haproxies(store), numbered("polygen", Polygens), nodes(store), numbered("sentinel", Sentinels(store)))
}

// clocked are programs in C: see clock.go of the runner.
func clocked(store string) []string { return slices.Concat(haproxies(store), nodes(store)) }

func limitedByFiles(store string) []string {
	return slices.Concat(numbered("agent", Instances), haproxies(store), polygens(store), nodes(store)[:1])
}

func links(store string) (all []string) {
	for i := range Instances {
		agent, haproxy := fmt.Sprintf("agent-%d", i), fmt.Sprintf("haproxy-%d", i)
		all = append(all, haproxy+"→"+agent, haproxy+"→"+agent+" costs", agent+"→"+haproxy+" peers", agent+"→"+haproxy+" runtime", haproxy+"→origin")
		if store == "single" {
			all = append(all, agent+"→redis")
		}
	}
	switch store {
	case "single":
		for i := range Polygens {
			all = append(all, fmt.Sprintf("polygen-%d→redis", i))
		}
	default:
		for _, node := range nodes(store) {
			all = append(all, "all→"+node)
		}
	}
	if store == "cluster" {
		for _, node := range nodes(store) {
			all = append(all, "nodes→"+node)
		}
	}
	if store == "sentinel" {
		all = append(all, "replica→master")
		all = append(all, numbered("all→sentinel", Sentinels(store))...)
	}
	return all
}
