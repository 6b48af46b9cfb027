package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

type runner struct {
	*scenario
	ctx     context.Context
	dir     string    // for the history and the output of processes
	out     io.Writer // of progress
	world   *world
	clients *clients
	steady  steadyLoad
	origin  *server
	history *history.Writer
	begun   time.Time

	mu     sync.Mutex
	active map[string]bool // faults that are not over
}

// historyFile is the name of the history in a run's folder.
const historyFile = "history.jsonl"

// carryOut carries out a scenario, and leaves its history in a folder. An error is that there was no run, or only a part.
func carryOut(ctx context.Context, s *scenario, dir string, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, historyFile))
	if err != nil {
		return err
	}
	defer file.Close()
	scratch, err := os.MkdirTemp("", s.kind) // dir's path may be too long for a unix socket
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	r := &runner{scenario: s, ctx: ctx, dir: dir, out: out, history: history.NewWriter(file), active: map[string]bool{}, steady: steadyLoad{counts: map[string]float64{}}}
	t := &Scene{ctx: ctx, dir: scratch}
	defer t.Close()
	path := os.Getenv("PATH")
	defer os.Setenv("PATH", path)
	r.origin = &server{history: r.history}
	addr, err := r.origin.serve(t)
	if err != nil {
		return err
	}
	if r.world, err = startWorld(t, s, addr); err != nil {
		return err
	}
	err = r.run()
	for name, p := range r.world.parts {
		r.keep(name, p.output())
	}
	for _, problem := range t.errors {
		r.problem("%s", problem)
	}
	return errors.Join(err, r.history.Close())
}

func (r *runner) run() error {
	r.world.c.Settle() // before, users have less than their limits
	r.begun = time.Now()
	r.history.Write(history.Run{Kind: r.kind, Seed: r.seed, Store: r.store, Instances: r.instances, Begin: r.begun, Settle: r.settle, Memory: r.memory})
	r.writeLimits(r.users)
	r.writeLimits(r.silent)
	r.clients = &clients{scenario: r.scenario, addresses: r.world.c.Addresses(), history: r.history}
	ctx, cancel := context.WithCancel(r.ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	for _, f := range []func(context.Context){r.watchMachine, r.watchParts, r.report, r.sample} {
		background.Go(func() { f(ctx) })
	}
	faults := r.plan.Faults
	for _, q := range r.plan.Quiets {
		daemon.Sleep(ctx, watched) // until the machine is watched
		loading, rest := context.WithCancel(ctx)
		var load, all sync.WaitGroup
		load.Go(func() { r.clients.run(loading) })
		if r.steadyRate > 0 {
			load.Go(func() {
				if err := r.sendSteadily(loading); err != nil {
					r.problem("steady load: %v", err)
				}
			})
		}
		for ; len(faults) > 0 && faults[0].At < q.Begin; faults = faults[1:] {
			if !daemon.Sleep(ctx, time.Until(r.begun.Add(faults[0].At))) {
				break
			}
			f := faults[0]
			all.Go(func() { r.fault(ctx, f) })
		}
		daemon.Sleep(ctx, time.Until(r.begun.Add(q.Begin)))
		all.Wait()
		began := time.Now()
		daemon.Sleep(ctx, q.Rest-q.Begin)
		ended := time.Now()
		rest()
		load.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.history.Write(history.Quiet{Begin: began, End: ended})
		daemon.Sleep(ctx, q.End-q.Rest)
		r.checkLeaks()
		// Faults that ended late delay the rest of the plan.
		if late := time.Since(r.begun) - q.End; late > time.Second {
			r.begun = r.begun.Add(late)
		}
	}
	return ctx.Err()
}

// fault begins a fault, lets it last, and ends it.
func (r *runner) fault(ctx context.Context, f schedule.Fault) {
	h := history.Fault{Name: f.Name, Target: f.Target, Parameter: f.Parameter(), Begin: time.Now()}
	key := f.Name + " " + f.Target
	r.mark(key, true)
	defer r.mark(key, false)
	end, err := r.begin(f)
	if err != nil {
		h.Error = "begin: " + err.Error()
	}
	daemon.Sleep(ctx, f.For)
	if err := end(); err != nil {
		h.Error = strings.TrimPrefix(h.Error+"; end: "+err.Error(), "; ")
		r.problem("%v did not end as planned: %v", f, err)
	}
	h.End = time.Now()
	r.history.Write(h)
	r.say("%v: over after %.1fs %s", f, h.End.Sub(h.Begin).Seconds(), h.Error)
}

func (r *runner) mark(fault string, active bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if active {
		r.active[fault] = true
	} else {
		delete(r.active, fault)
	}
}

// flooded reports whether a flood keeps threads waiting, which is no excuse for an overloaded cluster.
func (r *runner) flooded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kind == "overload" && len(r.active) > 0
}

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%7.1fs  %s\n", time.Since(r.begun).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (r *runner) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.history.Write(history.Problem{At: time.Now(), What: text})
	r.say("PROBLEM: %s", text)
}

// checkLeaks gives held things time to go before they count: slots whose return was lost count for 30 s (docs/failures.md), more
// than ten of them in the quiet time.
func (r *runner) checkLeaks() {
	leaks := r.world.leaks()
	for again := 20; len(leaks) > 0 && again > 0; again-- {
		daemon.Sleep(r.ctx, time.Second)
		leaks = r.world.leaks()
	}
	for _, l := range leaks {
		r.history.Write(l)
		r.say("LEAK: %s %s holds %d %s %s", l.Place, l.Holder, l.Count, l.What, l.User)
	}
}

// watchParts reports processes that end by themselves, and starts them again.
func (r *runner) watchParts(ctx context.Context) {
	for daemon.Sleep(ctx, 200*time.Millisecond) {
		for name, p := range r.world.parts {
			if !p.crashed() || ctx.Err() != nil {
				continue
			}
			output := p.output()
			r.problem("%s ended by itself:\n%s", name, output[max(0, len(output)-4000):])
			r.keep(name+".ended", output)
			if err := p.again(); err != nil {
				r.problem("%s does not start again: %v", name, err)
			}
		}
	}
}

// report prints a line each 10 s.
func (r *runner) report(ctx context.Context) {
	var before int64
	for daemon.Sleep(ctx, 10*time.Second) {
		sent := r.clients.sent.Load()
		r.mu.Lock()
		active := make([]string, 0, len(r.active))
		for f := range r.active {
			active = append(active, f)
		}
		r.mu.Unlock()
		r.say("%d requests/s; so far %d admitted, %d refused, %d failed, %d not sent; faults: %s", (sent-before)/10,
			r.clients.admitted.Load(), r.clients.refused.Load(), r.clients.failed.Load(), r.clients.skipped.Load(), strings.Join(active, ", "))
		before = sent
	}
}

func (r *runner) keep(name, output string) {
	if err := os.WriteFile(filepath.Join(r.dir, name+".log"), []byte(output), 0o600); err != nil {
		r.say("%v", err)
	}
}
