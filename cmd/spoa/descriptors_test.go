package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// Connections to the admin API that do nothing take no file descriptor from HAProxy's:
// its questions and health checks are answered, and limits hold.
func TestIdleConnectionsTurnNoLimitOff(t *testing.T) {
	t.Parallel()
	const (
		descriptors = 256
		idle        = 1500
	)
	_, redis := testkit.Redis(t)
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{redis}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const limits = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: 1}}}}\n"
	if err := b.PublishLimits(t.Context(), redisbus.PublishedLimits{Version: "1", File: []byte(limits)}); err != nil {
		t.Fatal(err)
	}
	// As a shell starts it: the command itself is this test binary.
	p, admin, dir := startBy(t, []string{"sh", "-c", fmt.Sprintf("ulimit -n %d && exec spoa", descriptors)}, redis, "SLUICE_MAX_WAIT=1s")
	testkit.Eventually(t, "it warns of so few descriptors", func() error {
		if !strings.Contains(p.Output(), "few file descriptors") || !strings.Contains(p.Output(), fmt.Sprintf("connections=160 descriptors=%d", descriptors)) {
			return fmt.Errorf("it wrote %s", p.Output())
		}
		return nil
	})

	back := httpOrigin(t)
	front := testkit.FreeAddr(t)
	file, env, err := haproxy.Write(filepath.Join(dir, "haproxy"), haproxy.Config{
		Identify: "header:X-User",
		Env: []string{
			"SLUICE_BIND=" + front, "SLUICE_ORIGIN=" + back, "SLUICE_SPOE=unix@" + filepath.Join(dir, "spoa.sock"), "SLUICE_PEER=unix@" + filepath.Join(dir, "peers.sock"),
			"SLUICE_RUNTIME=" + filepath.Join(dir, "runtime.sock"), "SLUICE_THREADS=1", "SLUICE_VERDICT_TIMEOUT=1m", "SLUICE_CHECK_TIMEOUT=1m",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.HAProxy(t, file, front, env...)
	ready := func() error {
		status, body, err := get(admin, "/-/ready")
		if err == nil && status != 200 {
			err = fmt.Errorf("GET /-/ready = %d %q", status, body)
		}
		return err
	}
	testkit.Eventually(t, "all is ready", ready)

	attack(t, admin, idle)

	// HAProxy has checked the agent's health on connections of their own since.
	checks := func() (n int, err error) {
		status, body, err := get(admin, "/metrics")
		if err != nil || status != 200 {
			return 0, fmt.Errorf("GET /metrics = %d, %w", status, err)
		}
		_, rest, _ := strings.Cut(body, "\nsluice_spop_frames_total{type=\"healthcheck\"} ")
		_, err = fmt.Sscan(rest, &n)
		return n, err
	}
	before := -1
	testkit.Eventually(t, fmt.Sprintf("HAProxy checks the agent, beside %d idle connections", idle), func() error {
		now, err := checks()
		if before < 0 && err == nil {
			before = now
		}
		if err == nil && now < before+5 {
			err = fmt.Errorf("%d checks, want %d", now, before+5)
		}
		return err
	})
	testkit.Eventually(t, "it is still ready", ready)
	for i := range 20 { // each of whom HAProxy asks about
		user := fmt.Sprintf("user-%d", i)
		admitted := 0
		for range 5 {
			status, err := ask(front, user)
			if status != 200 && status != 429 || err != nil {
				t.Errorf("a request of %s = %d, %v, want 200 or 429", user, status, err)
			}
			if status == 200 {
				admitted++
			}
		}
		if admitted < 1 || admitted > 2 { // two if an hour ends meanwhile
			t.Errorf("%d requests of %s are admitted, want 1: the limit in an hour", admitted, user)
		}
	}
}

// attack keeps so many connections open, or tries to, until the test ends. They say nothing.
func attack(t *testing.T, address string, n int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var attackers, opened sync.WaitGroup
	t.Cleanup(func() { stop(); attackers.Wait() })
	for range n {
		opened.Add(1)
		once := sync.OnceFunc(opened.Done)
		attackers.Go(func() {
			defer once()
			for ctx.Err() == nil {
				if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
					once()
					end := context.AfterFunc(ctx, func() { c.Close() })
					_, _ = c.Read(make([]byte, 1)) // until it is closed
					end()
					c.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
				}
			}
		})
	}
	opened.Wait()
}

// ask asks HAProxy, as a user.
func ask(address, user string) (status int, err error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("X-User", user)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	res.Body.Close()
	return res.StatusCode, nil
}

func httpOrigin(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: origin.New()}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}
