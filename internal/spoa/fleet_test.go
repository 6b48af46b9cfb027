package spoa

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/proctest"
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
	bus *bus.Bus

	mu   sync.Mutex // also orders what the agent is told
	rows map[string]*peers.Values
}

// startFleet starts n agents, and returns when all of them serve.
func startFleet(t *testing.T, n int, redis bus.Options) *fleet {
	dir, err := os.MkdirTemp("", "fleet") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	haproxy := filepath.Join(dir, "peers.sock")
	playPeers(t, haproxy)

	ctx, cancel := context.WithCancel(t.Context())
	f := &fleet{cancel: cancel}
	t.Cleanup(f.stop)
	for i := range n {
		name := fmt.Sprintf("edge-%04d#abcdefgh", i)
		e := newEdge(t, redis, Options{Instance: name, SPOE: fmt.Sprintf("unix:%s/%d.sock", dir, i), Peers: "unix:" + haproxy})
		f.edges = append(f.edges, e)
		f.running.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for _, e := range f.edges {
		proctest.Eventually(t, e.options.Instance, e.Ready)
	}
	return f
}

func newEdge(t *testing.T, redis bus.Options, o Options) *edge {
	e := &edge{rows: make(map[string]*peers.Values)}
	var err error
	if e.bus, err = bus.Open(redis); err != nil {
		t.Fatal(err)
	}
	o.Bus, o.MaxWait = e.bus, time.Second
	if e.Agent, err = New(o); err != nil {
		t.Fatal(err)
	}
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
func playPeers(t *testing.T, path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
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
		e.track(user, func(row *peers.Values) { row[peers.ConnCur]--; row[peers.BytesOutCnt] += 64 << 10 })
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
