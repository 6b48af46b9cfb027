package simulation_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first history to try")
	histories = flag.Int("histories", 100, "how many")
	noShrink  = flag.Bool("noshrink", false, "show failing histories as they are")
	show      = flag.Bool("show", false, "show what happens in the first history")
)

// TestHistories plays histories drawn from seeds. One that fails is shown as short as it could be
// made; -seed and -histories 1 repeat it.
func TestHistories(t *testing.T) {
	began, steps, requests, passed := time.Now(), 0, 0, 0
	for i := range *histories {
		h := draw(*firstSeed + uint64(i))
		if *show {
			fmt.Print(h)
		}
		w := h.run()
		steps, requests, passed = steps+w.steps, requests+w.judge.requests, passed+w.judge.passed
		if len(w.judge.problems) == 0 {
			continue
		}
		tries := 0
		if !*noShrink {
			h, tries = shrink(h)
		}
		t.Errorf("seed %d, %d tries:\n%s=>\n%s", h.seed, tries, h, strings.Join(h.run().judge.problems, "\n"))
		if !*noShrink {
			return
		}
	}
	took := time.Since(began)
	t.Logf("%d histories, %d steps, %.0f a second; %d of %d requests were admitted", *histories, steps, float64(steps)/took.Seconds(), passed, requests)
}

// TestHistoriesRepeat plays histories twice: nothing but the history decides what happens.
func TestHistoriesRepeat(t *testing.T) {
	for seed := range uint64(20) {
		var told [2][]string
		for i := range told {
			h := draw(seed)
			w := h.begin()
			w.trace = func(format string, args ...any) { told[i] = append(told[i], fmt.Sprintf(format, args...)) }
			w.probe()
			told[i] = append(told[i], fmt.Sprint(w.steps, w.judge.requests, w.judge.passed))
		}
		if diff := cmp.Diff(told[0], told[1]); diff != "" {
			t.Errorf("seed %d played twice (-first +second):\n%s", seed, diff)
		}
	}
}

// TestSlowRedis has a Redis that answers while requests wait, but two round trips take longer than they may wait: an
// ask behind another one is answered too late. No agent takes that for silence, in which it admits without slots
// and tokens: among twenty instances one request each is above most limits.
func TestSlowRedis(t *testing.T) {
	for _, h := range []history{busyFleet(6, 12*time.Millisecond), busyFleet(20, 12*time.Millisecond)} {
		if w := h.run(); len(w.judge.problems) > 0 {
			t.Errorf("%s=>\n%s", h, strings.Join(w.judge.problems, "\n"))
		}
	}
}

// busyFleet has each user ask all instances for twice their limits.
func busyFleet(instances int, roundTrip time.Duration) history {
	h := history{seed: 1, instances: instances, polygens: 1, roundTrip: roundTrip, skews: make([]time.Duration, instances+2)}
	for user, second := range []int{2, 5, 20, 100, 100} {
		h.users = append(h.users, userLimits{rates: []limits.Rate{{Class: "GET", Max: second}}, concurrent: []int{1, 3, 8, 30, 100}[user]})
		for instance := range instances {
			h.events = append(h.events, event{
				kind: load, user: user, who: instance, at: 2*time.Second + time.Duration(instance)*3*time.Millisecond, span: 3 * time.Second,
				n: max(2, 6*second/instances), work: 300 * time.Millisecond,
			})
		}
	}
	return h
}
