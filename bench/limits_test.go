package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	readers = 50
	fleet   = 1000
	link    = 125_000_000 * readers / fleet // bytes per second
)

// randomUsers is a limit file of about 20 MB whose names say as much as they are long.
func randomUsers() string {
	var b strings.Builder
	b.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100000}}, pro: {requests: {GET: 200000}}}\nusers:\n")
	for range 1_000_000 {
		fmt.Fprintf(&b, "  u%012x: pro\n", rand.Uint64()>>16)
	}
	return b.String()
}

// reader is one agent's part of Redis, and how long its leases took.
type reader struct {
	bus      *redisbus.Bus
	registry *prometheus.Registry
	took     []time.Duration
	failed   int
}

// lease asks for a token twenty times a second until ctx ends.
func (r *reader) lease(ctx context.Context, name string) {
	r.took, r.failed = nil, 0
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for n := uint64(time.Now().Unix() * 100); ; n++ { // a number that Redis has heard before counts no more
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		_, err := r.bus.Take(ctx, name, []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: name}, Seq: n, WindowStart: began.Unix(), Limit: 1 << 30, Need: 1}})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.failed++
		}
		r.took = append(r.took, time.Since(began))
	}
}

func (r *reader) bytesRead(b *testing.B) float64 {
	families, err := r.registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_bus_limits_read_bytes_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	b.Fatal("no bytes are counted")
	return 0
}

// leasing runs do while all readers lease, and returns the median and the 99th percentile of their calls and how many failed.
func leasing(all []*reader, do func()) (p50, p99 time.Duration, failed int) {
	ctx, cancel := context.WithCancel(context.Background())
	var leases sync.WaitGroup
	for i, r := range all {
		leases.Go(func() { r.lease(ctx, fmt.Sprint("agent-", i)) })
	}
	do()
	cancel()
	leases.Wait()
	var took []time.Duration
	for _, r := range all {
		took, failed = append(took, r.took...), failed+r.failed
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], failed
}

// BenchmarkLimitsFleet lets 50 agents read a limit file of a million users over a link that they
// share, as 50 of 1000 agents would over 1 Gbit/s: they have their part of it.
func BenchmarkLimitsFleet(b *testing.B) {
	named, random := manyUsers(1_000_000, 1), randomUsers()
	began := time.Now()
	if _, err := limitfile.Parse("limits", []byte(named)); err != nil {
		b.Fatal(err)
	}
	parse := time.Since(began)
	t := newTable(fmt.Sprintf("Limits: %d of %d agents read a limit file of a million users over their part of 1 Gbit/s, and lease 20 times a second over it; parsing takes %.1f s more", readers, fleet, parse.Seconds()),
		"names", "agents", "file MiB", "read per agent MiB", "slowest agent s",
		"Take p50 µs without", "with", "p99 µs without", "with", "failed")
	for range b.N {
		for _, run := range []struct {
			names, source, what string
			before              string
			readers             int64
		}{
			{"user-0000000", named, "have another file", limitFile(1), fleet},
			{"random", random, "have another file", limitFile(1), fleet},
			{"user-0000000", named, "start", "", 1},
		} {
			t.row(append([]string{run.names, run.what}, readTogether(b, run.before, run.source, run.readers)...)...)
		}
	}
}

func readTogether(b *testing.B, before, source string, fleet int64) []string {
	server, addr := testkit.Redis(b)
	defer server.Stop()
	polygen, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}})
	if err != nil {
		b.Fatal(err)
	}
	defer polygen.Close()
	all := make([]*reader, readers)
	gate := testkit.NewLink(b, addr, link).Addr
	for i := range all {
		r := &reader{registry: prometheus.NewRegistry()}
		if r.bus, err = redisbus.Open(redisbus.Options{Addresses: []string{gate}, Registerer: r.registry}); err != nil {
			b.Fatal(err)
		}
		defer r.bus.Close()
		all[i] = r
	}
	if before != "" {
		publishTo(b, polygen, all, before, fleet)
	}
	p50Before, p99Before, _ := leasing(all, func() { time.Sleep(5 * time.Second) })
	readBefore := all[0].bytesRead(b)
	var took time.Duration
	p50, p99, failed := leasing(all, func() { took = publishTo(b, polygen, all, source, fleet) })
	read := all[0].bytesRead(b) - readBefore
	return []string{fmt.Sprintf("%.1f", float64(len(source))/(1<<20)), fmt.Sprintf("%.2f", read/(1<<20)), fmt.Sprintf("%.1f", took.Seconds()),
		micro(p50Before), micro(p50), micro(p99Before), micro(p99), fmt.Sprint(failed)}
}

// publishTo publishes limits and returns how long the slowest agent took to have them.
func publishTo(b *testing.B, polygen *redisbus.Bus, all []*reader, source string, fleet int64) time.Duration {
	b.Helper()
	if err := polygen.PublishLimits(b.Context(), redisbus.PublishedLimits{Version: fmt.Sprint(len(source)), File: []byte(source)}); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	var reading sync.WaitGroup
	for _, r := range all {
		reading.Go(func() {
			for {
				got, err := r.bus.Limits(b.Context(), fleet)
				if err == nil && len(got.File) == len(source) {
					return
				}
				b.Logf("%d bytes, %v", len(got.File), err)
				time.Sleep(time.Second)
			}
		})
	}
	reading.Wait()
	return time.Since(began)
}

// manyUsers is a limit file of so many users, far above what they use. The comment
// makes it another version.
func manyUsers(users, version int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# version %d\nversion: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100000}, concurrent: 10000}, pro: {requests: {GET: 200000}}}\nusers:\n", version)
	for i := range users {
		fmt.Fprintf(&b, "  user-%07d: pro\n", i)
	}
	return b.String()
}
