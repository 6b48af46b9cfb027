package overload

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/bench/load"
)

func TestWaits(t *testing.T) {
	var a, b Waits
	for i := range 100 {
		a.add(time.Duration(i) * time.Millisecond)
	}
	b.add(2500 * time.Microsecond)
	b.merge(a)
	for part, want := range map[float64]time.Duration{0.5: 50 * time.Millisecond, 1: 99 * time.Millisecond, 0: time.Millisecond} {
		if got := b.quantile(part); got != want {
			t.Errorf("quantile(%v) = %v, want %v", part, got, want)
		}
	}
	if b.N != 101 || b.Longest != 99*time.Millisecond || (&Waits{}).quantile(0.5) != 0 {
		t.Errorf("%d, %v", b.N, b.Longest)
	}
}

func TestExactness(t *testing.T) {
	at := func(first, last int64) load.Span { return load.Span{First: first, Last: last} }
	for _, tt := range []struct {
		name    string
		arrived map[string]map[load.Span]int
		want    Exactness
	}{
		{"nobody", nil, Exactness{}},
		{"within", map[string]map[load.Span]int{"user-1": {at(10, 10): 20, at(11, 11): 2}}, Exactness{User: "user-1", Worst: 1, Windows: 2}},
		{"late agents allow two", map[string]map[load.Span]int{"user-1": {at(10, 10): 22}}, Exactness{User: "user-1", Worst: 1.1, Windows: 1}},
		{"over", map[string]map[load.Span]int{"user-1": {at(10, 10): 30}}, Exactness{User: "user-1", Worst: 1.5, Over: 8, Windows: 1}},
		{"of either second", map[string]map[load.Span]int{"user-1": {at(10, 11): 30}}, Exactness{User: "user-1", Worst: 1.1, Windows: 2}},
		{"hot", map[string]map[load.Span]int{"hot-1": {at(5, 5): 1, at(10, 10): 5, at(11, 11): 100, at(12, 12): 50, at(13, 13): 5}}, Exactness{User: "hot-1", Worst: 1, Hot: 0.75 / few, Windows: 9}},
		{"of a minute", map[string]map[load.Span]int{"minute-1": {at(119, 121): 6000, at(60, 61): 7000}}, Exactness{User: "minute-1", Worst: 7000. / 6000, Over: 880, Windows: 2}},
	} {
		if diff := cmp.Diff(tt.want, exactness(tt.arrived, at(11, 12))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestRecovered(t *testing.T) {
	end := time.Unix(100, 0)
	visits := func(bad func(i int) bool) (all []visit) {
		for i := range 50 {
			v := visit{sent: end.Add(time.Duration(i) * 100 * time.Millisecond), took: time.Millisecond, status: 200}
			if bad(i) {
				v.took = time.Second
			}
			all = append(all, v)
		}
		return all
	}
	for _, tt := range []struct {
		name string
		bad  func(i int) bool
		want time.Duration
	}{
		{"at once", func(int) bool { return false }, 0},
		{"one in ten is late", func(i int) bool { return i%10 == 5 }, 0},
		{"after a second", func(i int) bool { return i < 10 }, 900 * time.Millisecond},
		{"never", func(i int) bool { return i%2 == 0 }, never},
	} {
		if got := recovered(visits(tt.bad), end, 50*time.Millisecond); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if recovered(nil, end, time.Second) != never {
		t.Error("nobody asked, and it has recovered")
	}
}

func TestTally(t *testing.T) {
	tally, other := &Tally{}, &Tally{}
	for _, r := range []load.Result{
		{Sent: 1, Answered: 2, Status: 200}, {Sent: 1, Answered: 2, Status: 429}, {Sent: 1, Answered: 2, Status: 503}, {Sent: 1, Failure: load.TimedOut},
		{Failure: load.Dropped}, {Failure: load.NoConnect}, {Sent: 1, Failure: load.Closed},
	} {
		other.settled("", "", r)
	}
	tally.merge(other)
	tally.merge(other)
	if tally.Sent != 10 || tally.Admitted != 2 || tally.Refused != 2 || tally.failed() != 2 || tally.Failed[503] != 2 || tally.GaveUp != 2 || tally.Unsent != 2 || tally.Unlinked != 2 || tally.Broken != 2 || tally.Answered.N != 6 {
		t.Errorf("%+v", tally)
	}
}

// good is the report of a run in which all was as it should be.
func good() *Report {
	r := &Report{Options: Options{Seed: 7, Connections: 100}, Open: 100, Memory: map[string][]Sample{"agent-0": {{MiB: 400}}}, After: Exactness{Hot: 1}}
	for _, p := range []*Phase{&r.Flood, &r.Storm} {
		c := Calm{User: "calm", Recovered: time.Second}
		c.During.add(3 * time.Second)
		p.Calm = []Calm{c}
	}
	return r
}

func TestVerdict(t *testing.T) {
	if line, passed := good().Verdict(); line != "PASS: 18 of 18 properties hold, seed 7" || !passed {
		t.Errorf("%s, %v", line, passed)
	}
	for broken, change := range map[string]func(*Report){
		"overload: requests over a limit":                func(r *Report) { r.Flood.Arrived.Limits.Over = 1 },
		"overload: requests over a limit after it":       func(r *Report) { r.After.Hot = 0.8 },
		"overload: longest wait of who does not give up": func(r *Report) { r.Flood.Calm[0].During.add(11 * time.Second) },
		"overload: failures of who connects anew": func(r *Report) {
			r.Flood.Calm[0].Alone = true
			r.Flood.Calm[0].Failed = []string{"reset"}
		},
		"overload: longest wait of who connects anew": func(r *Report) {
			r.Flood.Calm[0].Alone = true
			r.Flood.Calm[0].During.add(66 * time.Second)
		},
		"connections: longest time in HAProxy until a refusal": func(r *Report) { r.Storm.Calm[0].Verdict.add(3 * time.Second) },
		"connections: answers that are failures":               func(r *Report) { r.Storm.Failed = map[int]int{503: 1} },
		"connections: as before after":                         func(r *Report) { r.Storm.Calm[0].Recovered = never },
		"connections at a time":                                func(r *Report) { r.Open = 90 },
		"memory of agent-0":                                    func(r *Report) { r.Memory["agent-0"][0].MiB = 501 },
		"processes that ended":                                 func(r *Report) { r.Problems = []string{"agent-0 ended"} },
	} {
		r := good()
		change(r)
		var text strings.Builder
		if err := r.WriteMarkdown(&text); err != nil {
			t.Fatal(err)
		}
		line, passed := r.Verdict()
		if passed || !strings.HasPrefix(line, "FAIL: 17 of 18") {
			t.Errorf("%s: %s, %v", broken, line, passed)
		}
		for line := range strings.Lines(text.String()) {
			if says := strings.HasPrefix(line, "| "+broken+" |"); says != strings.Contains(line, "**broken**") {
				t.Errorf("%s: the report says %s", broken, line)
			}
		}
	}
}
