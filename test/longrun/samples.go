package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/judge"
)

const sampleEvery = 5 * time.Second

// sample measures all processes and steady load, until ctx ends.
func (r *runner) sample(ctx context.Context) {
	for daemon.Sleep(ctx, sampleEvery) {
		now := time.Now()
		for name, p := range r.world.parts {
			pids := p.pids()
			values := map[string]float64{"memory": memoryOf(pids), "file descriptors": filesOf(pids)}
			if strings.HasPrefix(name, "haproxy") {
				values["processes"] = float64(len(pids)) // one more for a while after a reload
			}
			if admin := p.adminAddr(); admin != "" {
				addMetrics(values, admin)
			}
			if name == "redis" {
				r.addRedis(values)
			}
			r.history.Write(history.Sample{At: now, Part: name, Values: values})
		}
		if r.steadyRate > 0 {
			r.history.Write(history.Sample{At: now, Part: judge.Clients, Values: r.steady.take()})
		}
	}
}

func (s *steadyLoad) take() map[string]float64 {
	s.mu.Lock()
	latency, values := s.latency, s.counts
	s.latency, s.counts = nil, map[string]float64{}
	s.mu.Unlock()
	if len(latency) > 0 {
		slices.Sort(latency)
		values["median latency"], values["latency of 99 %"] = latency.Quantile(.5).Seconds(), latency.Quantile(.99).Seconds()
	}
	return values
}

// memoryOf is the resident memory of processes, in bytes.
func memoryOf(pids []int) (bytes float64) {
	for _, pid := range pids {
		statm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.ParseFloat(fields[1], 64)
			bytes += pages * float64(os.Getpagesize())
		}
	}
	return bytes
}

func filesOf(pids []int) (n float64) {
	for _, pid := range pids {
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		n += float64(len(files))
	}
	return n
}

// addRedis adds values of INFO, such as "used_memory:1234" and "db0:keys=12,expires=12,avg_ttl=3".
func (r *runner) addRedis(values map[string]float64) {
	info, _ := redisCall(r.world.store.nodes[0].Addr, "INFO") // nothing while a fault keeps it from answering
	for line := range strings.Lines(info) {
		if text, yes := strings.CutPrefix(line, "used_memory:"); yes {
			values["heap"], _ = strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
		var keys, expire float64
		if n, _ := fmt.Sscanf(line, "db0:keys=%f,expires=%f", &keys, &expire); n == 2 {
			values["keys"], values[judge.NeverExpire] = keys, keys-expire
		}
	}
}

// addMetrics adds what a daemon reports; nothing while it does not answer.
func addMetrics(values map[string]float64, admin string) {
	for metric, name := range map[string]string{"go_goroutines": "goroutines", "go_memstats_next_gc_bytes": "heap"} {
		if v, err := cluster.ReadMetric(admin, metric); err == nil && v > 0 {
			values[name] = v
		}
	}
}
