package chaos

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

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/chaos/schedule"
)

// Options of a run.
type Options struct {
	Seed     uint64
	Store    string // one of schedule.Stores
	Duration time.Duration
	MaxWait  time.Duration // of the agents
	Race     bool          // builds the commands with the race detector
	Only     []string      // see schedule.Plan.Only
	Users    []string      // who sends, by the beginnings of their names; none: all, and names that were never seen
	Dir      string        // that the run makes, and in which it leaves the history and what processes wrote
	Out      io.Writer     // of progress
}

// runner is a run.
type runner struct {
	Options
	ctx     context.Context
	world   *world
	load    *load
	history *history.Writer
	plan    schedule.Plan
	begun   time.Time

	mu       sync.Mutex
	active   map[string]bool // faults that are not over
	problems []string
	leaks    int
}

// HistoryFile is the name of the history in a run's folder.
const HistoryFile = "history.jsonl"

// Run runs a whole run, and returns what went wrong in ways that need no judge: processes that ended by themselves, and
// faults that could not be ended. An error is that there was no run, or not all of one.
func Run(ctx context.Context, o Options) (problems []string, err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(o.Dir, HistoryFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// Not o.Dir: its path may be too long for a unix socket.
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &runner{Options: o, ctx: ctx, history: history.NewWriter(file), plan: schedule.Make(o.Seed, o.Store, o.Duration).Only(o.Only), active: map[string]bool{}}
	t := NewScene(ctx, dir)
	defer t.Close()
	path := os.Getenv("PATH")
	defer os.Setenv("PATH", path)
	origin := &server{history: r.history}
	addr, err := origin.serve(t)
	if err != nil {
		return nil, err
	}
	if r.world, err = startWorld(t, o, addr); err != nil {
		return nil, err
	}
	err = r.run()
	r.keepOutput()
	return append(r.problems, t.Errors()...), errors.Join(err, r.history.Close())
}

func (r *runner) run() error {
	r.world.c.Settle() // else users have less than their limits for a moment
	r.begun = time.Now()
	history.Write(r.history, history.Run{Seed: r.Seed, Store: r.Store, Instances: schedule.Instances, Begin: r.begun})
	r.writeLimits(users, r.begun)
	r.writeLimits(others(), r.begun)
	r.load = newLoad(r.world.c.Addresses(), r.history, r.Seed, r.Users)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { r.watchMachine(ctx) })
	beside.Go(func() { r.watchParts(ctx) })
	beside.Go(func() { r.tell(ctx) })
	faults := r.plan.Faults
	for _, q := range r.plan.Quiets {
		loading, rest := context.WithCancel(ctx)
		var load, all sync.WaitGroup
		load.Go(func() { r.load.run(loading) })
		for ; len(faults) > 0 && faults[0].At < q.Begin; faults = faults[1:] {
			if !clock.Sleep(ctx, time.Until(r.begun.Add(faults[0].At))) {
				break
			}
			f := faults[0]
			all.Go(func() { r.fault(ctx, f) })
		}
		clock.Sleep(ctx, time.Until(r.begun.Add(q.Begin)))
		all.Wait()
		began := time.Now()
		clock.Sleep(ctx, q.Rest-q.Begin)
		ended := time.Now()
		rest()
		load.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		history.Write(r.history, history.Quiet{Begin: began, End: ended})
		clock.Sleep(ctx, q.End-q.Rest)
		r.checkLeaks()
		// What the end of faults took longer than planned comes on top.
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
	clock.Sleep(ctx, f.For)
	if err := end(); err != nil {
		h.Error = strings.TrimPrefix(h.Error+"; end: "+err.Error(), "; ")
		r.problem("%v did not end: %v", f, err)
	}
	h.End = time.Now()
	history.Write(r.history, h)
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

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.Out, "%7.1fs  %s\n", time.Since(r.begun).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (r *runner) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.problems = append(r.problems, text)
	r.mu.Unlock()
	r.say("PROBLEM: %s", text)
}

// checkLeaks gives what is held time to go before it counts: slots whose return was lost count for 30 s (docs/failures.md), of
// which the quiet time was more than ten.
func (r *runner) checkLeaks() {
	leaks := r.world.leaks()
	for again := 20; len(leaks) > 0 && again > 0; again-- {
		clock.Sleep(r.ctx, time.Second)
		leaks = r.world.leaks()
	}
	for _, l := range leaks {
		history.Write(r.history, l)
		r.say("LEAK: %s %s holds %d %s %s", l.Place, l.Holder, l.Count, l.What, l.User)
	}
	r.mu.Lock()
	r.leaks += len(leaks)
	r.mu.Unlock()
}

// watchParts tells of processes that end by themselves, and starts them again.
func (r *runner) watchParts(ctx context.Context) {
	for clock.Sleep(ctx, 200*time.Millisecond) {
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

// tell prints a line each 10 s.
func (r *runner) tell(ctx context.Context) {
	var before int64
	for clock.Sleep(ctx, 10*time.Second) {
		sent := r.load.sent.Load()
		r.mu.Lock()
		active := make([]string, 0, len(r.active))
		for f := range r.active {
			active = append(active, f)
		}
		r.mu.Unlock()
		r.say("%d requests/s; so far %d admitted, %d refused, %d failed, %d not sent; faults: %s", (sent-before)/10,
			r.load.admitted.Load(), r.load.refused.Load(), r.load.failed.Load(), r.load.skipped.Load(), strings.Join(active, ", "))
		before = sent
	}
}

// keepOutput leaves what the processes wrote last.
func (r *runner) keepOutput() {
	for name, p := range r.world.parts {
		r.keep(name, p.output())
	}
}

func (r *runner) keep(name, output string) {
	if err := os.WriteFile(filepath.Join(r.Dir, name+".log"), []byte(output), 0o600); err != nil {
		r.say("%v", err)
	}
}
