package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/chaos"
	"github.com/sluice-qos/sluice/test/cluster"
)

// sampleEach measures everything, until ctx ends.
func (r *runner) sampleEach(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	ended := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for name, p := range r.cluster.Processes() {
			if !p.Running() && !ended[name] {
				ended[name] = true
				output := p.Output()
				r.problem("%s ended by itself:\n%s", name, output[max(0, len(output)-4000):])
			}
		}
		r.sample()
	}
}

func (r *runner) sample() {
	now := time.Now()
	for name, p := range r.cluster.Processes() {
		values := map[string]float64{"memory": cluster.MemoryOf(p.Pid()), "file descriptors": cluster.FilesOf(p.Pid())}
		if strings.HasPrefix(name, "haproxy") {
			values["processes"] = cluster.ProcessesOf(p.Pid())
		}
		if admin := r.admin(name); admin != "" {
			addMetrics(values, admin)
		}
		if name == "redis" {
			if err := chaos.Attempt(func() { r.addRedis(values) }); err != nil {
				r.problem("ask redis: %v", err)
			}
		}
		r.write(Sample{At: now, Part: name, Values: values})
	}
	clients := r.ofClients()
	r.write(Sample{At: now, Part: "clients", Values: clients})
	if r.samples++; r.samples%2 == 0 {
		fmt.Fprintf(r.Out, "%6.0fs  %.0f requests a second, answered in %.1f ms (median), %.1f ms (99 %%)\n", now.Sub(r.begun).Seconds(),
			clients["requests"]/every.Seconds(), 1e3*clients["median latency"], 1e3*clients["latency of 99 %"])
	}
}

// admin is the admin address of a process that has one.
func (r *runner) admin(name string) string {
	kind, number, _ := strings.Cut(name, "-")
	i, _ := strconv.Atoi(number)
	switch kind {
	case "agent":
		return r.cluster.Instances[i].Admin
	case "polygen":
		return r.cluster.Polygens[i].Admin
	}
	return ""
}

// addRedis adds what Redis says of itself, such as "used_memory:1234" and "db0:keys=12,expires=12,avg_ttl=3".
func (r *runner) addRedis(values map[string]float64) {
	for line := range strings.Lines(proctest.RedisCommand(r.scene, r.cluster.RedisAddr, "INFO")) {
		if text, yes := strings.CutPrefix(line, "used_memory:"); yes {
			values["heap"], _ = strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
		var keys, expire float64
		if n, _ := fmt.Sscanf(line, "db0:keys=%f,expires=%f", &keys, &expire); n == 2 {
			values["keys"], values[neverExpire] = keys, keys-expire
		}
	}
}

// ofClients is what clients saw since it was last asked.
func (r *runner) ofClients() map[string]float64 {
	r.mu.Lock()
	latency := r.latency
	values := r.counts
	r.counts, r.latency = map[string]float64{}, nil
	r.mu.Unlock()
	if len(latency) > 0 {
		slices.Sort(latency)
		values["median latency"] = latency[len(latency)/2].Seconds()
		values["latency of 99 %"] = latency[len(latency)*99/100].Seconds()
	}
	return values
}

// addMetrics adds what a daemon says of itself; nothing while it does not answer.
func addMetrics(values map[string]float64, admin string) {
	text, err := cluster.Get(admin, "/metrics")
	if err != nil {
		return
	}
	for metric, name := range map[string]string{"\ngo_goroutines ": "goroutines", "\ngo_memstats_next_gc_bytes ": "heap"} {
		if _, rest, found := strings.Cut(text, metric); found {
			number, _, _ := strings.Cut(rest, "\n")
			if v, err := strconv.ParseFloat(number, 64); err == nil {
				values[name] = v
			}
		}
	}
}
