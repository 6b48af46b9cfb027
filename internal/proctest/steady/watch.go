package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// stallLimit is how late this process may be before the machine does not keep up. It is half of
// the time after which an agent takes a Redis that does not answer for lost.
const stallLimit = 50 * time.Millisecond

// stolenLimit is the part of a second that the host may take from the machine.
const stolenLimit = 0.25

// stall is a time in which the machine did not keep up. The zero stall says that it did.
type stall struct {
	began  time.Time
	length time.Duration
	stolen float64 // the part that the host took, if that is how it was noticed
}

func (s stall) String() string {
	at := s.began.Format(time.TimeOnly)
	if s.stolen > 0 {
		return fmt.Sprintf("the host took %.0f %% of the machine at %s", 100*s.stolen, at)
	}
	return fmt.Sprintf("the machine stood still for %v at %s", s.length.Round(time.Millisecond), at)
}

// watcher notices stalls. It remembers the last maxStalls of them.
type watcher struct {
	mu     sync.Mutex
	stalls []stall
}

const maxStalls = 10_000

// startWatch watches the machine until the process ends.
func startWatch() *watcher {
	w := &watcher{}
	go proctest.WatchNaps(context.Background(), w.noteNap)
	go w.watchHost()
	return w
}

// noteNap notices that this process wakes up late.
func (w *watcher) noteNap(began time.Time, late time.Duration) {
	if late > stallLimit {
		w.add(stall{began: began, length: late})
	}
}

// watchHost notices that the host gives processors to other machines. One of two may be
// taken away without a nap of this process being late.
func (w *watcher) watchHost() {
	const interval = time.Second
	before := readProcessorTimes()
	for {
		began := time.Now()
		time.Sleep(interval)
		now := readProcessorTimes()
		if total := now.total - before.total; total > 0 {
			if stolen := (now.stolen - before.stolen) / total; stolen > stolenLimit {
				w.add(stall{began: began, length: time.Since(began), stolen: stolen})
			}
		}
		before = now
	}
}

func (w *watcher) add(s stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.stalls) == maxStalls {
		w.stalls = w.stalls[1:]
	}
	w.stalls = append(w.stalls, s)
}

func (w *watcher) worstStall(from, to time.Time) (worst stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.stalls {
		if s.began.Before(to) && s.began.Add(s.length).After(from) && s.length > worst.length {
			worst = s
		}
	}
	return worst
}

// waitForCalm returns when there was no stall for calmDuration, and after maxWaitForCalm
// in any case: a test may pass on a machine that is busy all the time.
func (w *watcher) waitForCalm() {
	for end := time.Now().Add(maxWaitForCalm); time.Now().Before(end); {
		began := time.Now()
		time.Sleep(calmDuration)
		if w.worstStall(began, time.Now()).length == 0 {
			return
		}
	}
}

// processorTimes are the times of all processors since the machine started, in ticks.
type processorTimes struct{ total, stolen float64 }

// readProcessorTimes is zero where there is no /proc/stat.
func readProcessorTimes() (times processorTimes) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return times
	}
	return parseProcessorTimes(string(text))
}

// parseProcessorTimes reads the first line: "cpu user nice system idle iowait irq softirq
// steal guest guest_nice". Guests' times are part of user and nice.
func parseProcessorTimes(text string) (times processorTimes) {
	const stealColumn = 7
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) <= stealColumn+1 || fields[0] != "cpu" {
		return times
	}
	for column, field := range fields[1 : stealColumn+2] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return processorTimes{}
		}
		times.total += ticks
		if column == stealColumn {
			times.stolen = ticks
		}
	}
	return times
}
