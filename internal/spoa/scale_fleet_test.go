package spoa

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/proctest"
)

const (
	requestTakes = 50 * time.Millisecond // each admitted request is in progress for so long,
	requestBytes = 64 << 10              // and so large is its answer
	joinAtOnce   = 50                    // agents that start together
)

// fleet is a number of agents in this process, each with its own connections to Redis. It plays
// their HAProxies: it asks the questions and tells what is in progress.
type fleet struct {
	edges   []*edge
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// edge is one agent and what its HAProxy's table would say.
type edge struct {
	*Agent
	bus      *bus.Bus
	registry *prometheus.Registry // of the bus, and of what the agent's own metrics are needed for

	mu   sync.Mutex // also orders what the agent is told
	rows map[string]*peers.Values
}

// startFleet starts n agents, and returns when all of them serve.
func startFleet(b testing.TB, n int, redis bus.Options) *fleet {
	dir, err := os.MkdirTemp("", "scale") // not b.TempDir: its path may be too long for a unix socket
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	haproxy := filepath.Join(dir, "peers.sock")
	playPeers(b, haproxy)

	ctx, cancel := context.WithCancel(b.Context())
	f := &fleet{cancel: cancel}
	b.Cleanup(f.stop)
	for len(f.edges) < n {
		first := len(f.edges)
		for i := first; i < min(n, first+joinAtOnce); i++ {
			name := fmt.Sprintf("edge-%04d#abcdefgh", i)
			e := newEdge(b, redis, Options{Instance: name, SPOE: fmt.Sprintf("unix:%s/%d.sock", dir, i), Peers: "unix:" + haproxy})
			f.edges = append(f.edges, e)
			f.running.Go(func() {
				if err := e.Run(ctx); err != nil {
					b.Error(err)
				}
			})
		}
		for _, e := range f.edges[first:] {
			proctest.Eventually(b, e.options.Instance, e.Ready)
		}
	}
	return f
}

func newEdge(b testing.TB, redis bus.Options, o Options) *edge {
	e := &edge{registry: prometheus.NewRegistry(), rows: make(map[string]*peers.Values)}
	var err error
	redis.Registerer = e.registry
	if e.bus, err = bus.Open(redis); err != nil {
		b.Fatal(err)
	}
	o.Bus, o.MaxWait = e.bus, time.Second
	if e.Agent, err = New(o); err != nil {
		b.Fatal(err)
	}
	e.registry.MustRegister(e.metrics.policyDelay)
	return e
}

func (f *fleet) stop() {
	f.cancel()
	f.running.Wait()
	for _, e := range f.edges {
		e.bus.Close()
	}
}

// playPeers plays the peers sockets of all HAProxies: it takes what it is taught and says that
// it is there. It acknowledges nothing.
func playPeers(b testing.TB, path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go playPeer(conn)
		}
	}()
}

func playPeer(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for range 3 { // protocol, HAProxy's name, the agent's
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
	}
	const accepted, finished, heartbeat = "200\n", "\x00\x01", "\x00\x04"
	over := make(chan struct{})
	defer close(over)
	go func() {
		for _, err := io.WriteString(conn, accepted+finished); err == nil; _, err = io.WriteString(conn, heartbeat) {
			select {
			case <-over:
				return
			case <-time.After(time.Second):
			}
		}
	}()
	_, _ = io.Copy(io.Discard, in) // until the agent ends
}

// scaleLoad is what a fleet is asked.
type scaleLoad struct {
	limits string  // the file
	limit  int     // requests per second of each user in it
	rate   float64 // questions a second in all
	// next is whom the next question is about, and which of the agents is asked.
	next func(random *rand.Rand) func(agents int) (user int32, agent int)
}

// zipfLoad asks random agents about users of whom a few send most.
func zipfLoad(rate, users uint64) scaleLoad {
	return scaleLoad{scaleLimits, scaleLimit, float64(rate), func(random *rand.Rand) func(int) (int32, int) {
		zipf := rand.NewZipf(random, scaleExponent, 1, users-1)
		return func(agents int) (int32, int) { return int32(zipf.Uint64()), random.IntN(agents) }
	}}
}

// offer asks the questions of a load, and returns when all requests have ended.
func (f *fleet) offer(l scaleLoad, d time.Duration) *load.Report {
	random := rand.New(rand.NewPCG(1, 0))
	next := l.next(random)
	start := time.Now()
	report := &load.Report{Start: start, Duration: d}
	var mu sync.Mutex
	var all sync.WaitGroup
	for due := start; due.Before(start.Add(d)); due = due.Add(time.Duration(random.ExpFloat64() / l.rate * 1e9)) {
		time.Sleep(time.Until(due))
		user, agent := next(len(f.edges))
		e := f.edges[agent]
		all.Go(func() {
			r := load.Result{User: user, Scheduled: due.UnixNano(), Sent: time.Now().UnixNano(), Status: 429}
			ends, admitted := e.ask(fmt.Sprintf("user-%06d", user))
			if admitted {
				r.Status = 200
			}
			r.Answered = time.Now().UnixNano()
			r.Received = r.Answered
			mu.Lock()
			report.Results = append(report.Results, r)
			mu.Unlock()
			if admitted {
				time.Sleep(requestTakes)
				ends()
			}
		})
	}
	all.Wait()
	return report
}

// ask asks about one request. If it is admitted, ends ends it.
func (e *edge) ask(user string) (ends func(), admitted bool) {
	q := question{user: user, verb: "GET"}
	e.mu.Lock()
	if row, ok := e.rows[user]; ok {
		q.seen.Tracked, q.seen.Active = int64(row[peers.HTTPReqCnt]), int64(row[peers.ConnCur])
	}
	e.mu.Unlock()
	v := e.verdict(q)
	if !v.allowed {
		return nil, false
	}
	if v.others != "" {
		user = v.others
	}
	e.track(user, func(row *peers.Values) { row[peers.HTTPReqCnt]++; row[peers.ConnCur]++ })
	return func() {
		e.track(user, func(row *peers.Values) { row[peers.ConnCur]--; row[peers.BytesOutCnt] += requestBytes })
	}, true
}

// track changes the user's row of table active, and tells the agent, as HAProxy does.
func (e *edge) track(user string, change func(row *peers.Values)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	row := e.rows[user]
	if row == nil {
		row = &peers.Values{}
		e.rows[user] = row
	}
	change(row)
	e.learnProgress(peers.Update{Table: activeTable, Key: user, Values: *row})
}
