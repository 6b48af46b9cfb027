// Package demo shows what limits change: two users share one server, and one of them asks
// for more than it can do, first without limits and then with them.
//
// HAProxy is a real one, and so is everything that sluice up runs. Only the server's capacity
// is made up: what it does takes a fixed time, and it does a fixed number of things at once.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/daemon"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/up"
)

// Options say how long, on what, and where to it is drawn.
type Options struct {
	Listen   string        // where the first HAProxy listens; the second at the next port
	Admin    string        // where the admin API listens
	HAProxy  string        // path or name of the program
	Duration time.Duration // of both halves together
	Command  string        // what people call sluice by
	Stdout   io.Writer
}

const (
	workers   = 4                     // requests that the server does at a time
	work      = 20 * time.Millisecond // that each takes; so it does 200 a second
	queue     = 100                   // requests that wait for it; those beyond are answered 503
	instances = 2

	// For one quiet request there are so many noisy ones, of twice as many a second as the server can do.
	quietRate, noisyPerQuiet = 20, 20
	noisyRate                = quietRate * noisyPerQuiet
	timeout                  = 5 * time.Second // of a request

	// How long limits may take to refuse something. They take about a second, as polygen looks at the file so
	// often, and longer on a machine that is busy with something else.
	limitsWithin = 30 * time.Second
)

const (
	noLimits   = "version: 1\ndefault_tier: everybody\ntiers: {everybody: {}}\n"
	theLimits  = "{requests: {GET: 100}, concurrent: 3}"
	withLimits = "version: 1\ndefault_tier: everybody\ntiers: {everybody: " + theLimits + "}\n"
)

// Run starts a cluster, sends it requests, and draws what becomes of them until both halves
// are over or ctx ends. Then it says in words what has changed.
func Run(ctx context.Context, o Options) error {
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(file, []byte(noLimits), 0o600); err != nil {
		return err
	}
	origin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer origin.Close()
	addresses, err := up.ListenAddresses(o.Listen, instances)
	if err != nil {
		return err
	}
	// All of it ends when the halves are over, or when the first part fails.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ready := &line{written: make(chan struct{})}
	s := &show{Options: o, file: file, record: &record{}}
	err = daemon.Run(ctx,
		func(ctx context.Context) error { return serve(ctx, origin) },
		func(ctx context.Context) error {
			return up.Run(ctx, up.Options{
				Limits: file, Origin: origin.Addr().String(), Listen: o.Listen, Instances: instances, Identify: "header:X-User",
				Admin: o.Admin, HAProxy: o.HAProxy, Refuse: 429, Unreadable: "share", MaxWait: 20 * time.Millisecond, OnLoss: "hold",
				// It would be written into the picture. Why HAProxy ended is in the error.
				Stdout: ready, Stderr: io.Discard, Logger: slog.New(slog.DiscardHandler),
			})
		},
		func(ctx context.Context) error {
			defer stop()
			select {
			case <-ready.written:
			case <-ctx.Done():
				return nil
			}
			return s.run(ctx, addresses)
		})
	if err == nil && s.began() {
		s.tell(nextCommand(o.Command))
	}
	return err
}

type show struct {
	Options
	file   string
	record *record
}

func (s *show) began() bool { return !s.record.began.IsZero() }

// run sends the requests and draws until both halves are over.
func (s *show) run(ctx context.Context, addresses []string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.record.began = time.Now()
	return daemon.Run(ctx,
		func(ctx context.Context) error { return s.send(ctx, addresses) },
		func(ctx context.Context) error {
			defer stop()
			return s.changeLimits(ctx)
		},
		func(ctx context.Context) error { return s.draw(ctx) })
}

// send sends both users' requests whether or not those before have been answered, as users do.
func (s *show) send(ctx context.Context, addresses []string) error {
	requests := map[bool]load.Request{}
	for quiet, name := range names {
		requests[quiet] = load.Request{Path: "/", User: name, Headers: []byte("X-User: " + name + "\r\n")}
	}
	targets, err := load.Spread("even", addresses...)
	if err != nil {
		return err
	}
	_, err = load.Run(ctx, load.Spec{
		Targets: targets, Rate: noisyRate + quietRate, Duration: s.Duration + limitsWithin, Timeout: timeout, Conns: 1000,
		Requests: func(i int) load.Request { return requests[i%(noisyPerQuiet+1) == 0] },
		Settled: func(user, _ string, r load.Result) {
			s.record.add(event{quiet: user == names[true], at: time.Unix(0, r.Received), took: time.Duration(r.Received - r.Scheduled), kind: kindOf(r)})
		},
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// changeLimits writes the limits into the file when the first half is over, and returns when
// they have been in force for the second.
func (s *show) changeLimits(ctx context.Context) error {
	defer func() { s.record.end(time.Now()) }()
	if !daemon.Sleep(ctx, s.Duration/2) {
		return nil
	}
	// As an editor does that leaves no half of a file to be read.
	next := s.file + ".new"
	if err := os.WriteFile(next, []byte(withLimits), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, s.file); err != nil {
		return err
	}
	s.record.write(time.Now())
	refusing, stop := context.WithTimeout(ctx, limitsWithin)
	defer stop()
	for s.record.limited().IsZero() {
		if !daemon.Sleep(refusing, 10*time.Millisecond) {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("nothing is refused %v after the limits were written", limitsWithin)
		}
	}
	daemon.Sleep(ctx, s.Duration/2)
	return nil
}

type line struct{ written chan struct{} }

func (l *line) Write(b []byte) (int, error) {
	close(l.written) // it prints one line, once
	return len(b), nil
}
