package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/test/longrun/history"
)

// stall is for how long a thread waits for a processor, of a tenth of a second, before that is a fault of the machine. A question to
// Redis and its answer wait for four processes in turn, and the agents give up after --max-wait.
const stall = 30 * time.Millisecond

// watched is how often it is looked at how long processes have waited.
const watched = 100 * time.Millisecond

// machine knows when the machine did not run what was ready to run, so that the judge can excuse Sluice.
type machine struct {
	mu     sync.Mutex
	fault  history.Fault // begins and ends with zero times if there is none
	worst  time.Duration
	waited map[string]time.Duration // of each thread until now
}

// watchMachine tells of times in which this process, or a thread of any part, was ready to run and did not.
func (r *runner) watchMachine(ctx context.Context) {
	m := &machine{}
	m.threads(r.world) // what threads have waited before does not count
	var naps sync.WaitGroup
	defer naps.Wait()
	naps.Go(func() {
		testkit.WatchNaps(ctx, func(began time.Time, late time.Duration) { m.note(began, time.Now(), late) })
	})
	for daemon.Sleep(ctx, watched) {
		now := time.Now()
		if late := m.threads(r.world); late > 0 {
			m.note(now.Add(-watched-late), now, late)
		}
		if r.flooded() {
			m.forget()
		} else if f, over := m.over(now.Add(-2 * watched)); over {
			r.history.Write(f)
		}
	}
	if f, over := m.over(time.Now().Add(time.Second)); over { // at the run's end
		r.history.Write(f)
	}
}

// note extends the present fault, or begins one.
func (m *machine) note(begin, end time.Time, late time.Duration) {
	if late < stall {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault.Begin.IsZero() || begin.Before(m.fault.Begin) {
		m.fault.Begin = begin
	}
	m.fault.Name, m.fault.End, m.worst = history.Machine, end, max(m.worst, late)
	m.fault.Parameter = fmt.Sprintf("%v at most", m.worst.Round(time.Millisecond))
}

func (m *machine) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault, m.worst = history.Fault{}, 0
}

// over returns the present fault if it has ended before a time.
func (m *machine) over(before time.Time) (f history.Fault, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault.Begin.IsZero() || m.fault.End.After(before) {
		return f, false
	}
	f, m.fault, m.worst = m.fault, history.Fault{}, 0
	return f, true
}

// threads is for how long a thread of a part has waited since the last time, the longest of all. It is 0 where the kernel
// does not count.
func (m *machine) threads(w *world) (longest time.Duration) {
	waited := map[string]time.Duration{}
	for _, p := range w.parts {
		for _, pid := range p.pids() {
			files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, file := range files {
				text, _ := os.ReadFile(file)
				var ran, ready time.Duration // nanoseconds, as in the kernel's documentation of schedstats
				if n, _ := fmt.Fscan(strings.NewReader(string(text)), (*int64)(&ran), (*int64)(&ready)); n < 2 {
					continue
				}
				if before, known := m.waited[file]; known {
					longest = max(longest, ready-before)
				}
				waited[file] = ready
			}
		}
	}
	m.waited = waited
	return longest
}
