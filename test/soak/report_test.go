package soak

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC)

// sampled is an hour of samples of an agent, whose memory grows by such a part in an hour, and its goroutines by so many hundreds, after ten minutes in which it grows anyway.
func sampled(perHour, leaks, failed float64) (all []Sample) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 720 {
		at := time.Duration(i) * 5 * time.Second
		memory := 40e6 * (1 + perHour*at.Hours() + 0.003*r.NormFloat64())
		goroutines := 31 + 100*leaks*at.Hours()
		if at < 10*time.Minute {
			memory *= at.Hours() * 6
		}
		all = append(all,
			Sample{begin.Add(at), "agent-0", map[string]float64{"memory": memory, "goroutines": goroutines}},
			Sample{begin.Add(at), "clients", map[string]float64{"requests": 10_000, "failed": failed, "refused": 2, "refused in vain": 1}})
	}
	return all
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name          string
		perHour       float64
		leaks, failed float64
		minutes       int
		problems      []string
		want          string
	}{
		{"flat", 0, 0, 0, 60, nil, "PASS: 59m55s, of which the first 10m0s do not count: 7200000 requests, 2160 refused, 720 of them in vain, 0 failed; 2 series flat within 1 % an hour, 0 fall, 0 grow, 0 unclear"},
		{"grows", 0.03, 0, 0, 60, nil, "FAIL: 59m55s, of which the first 10m0s do not count: 7200000 requests, 2160 refused, 720 of them in vain, 0 failed; 1 series flat within 1 % an hour, 0 fall, 1 grow, 0 unclear"},
		{"falls", -0.03, 0, 0, 60, nil, "PASS: 59m55s, of which the first 10m0s do not count: 7200000 requests, 2160 refused, 720 of them in vain, 0 failed; 1 series flat within 1 % an hour, 1 fall, 0 grow, 0 unclear"},
		{"fails", 0, 0, 1, 60, nil, "FAIL: 59m55s, of which the first 10m0s do not count: 7200000 requests, 2160 refused, 720 of them in vain, 720 failed; 2 series flat within 1 % an hour, 0 fall, 0 grow, 0 unclear"},
		{"a process ended", 0, 0, 0, 60, []string{"agent-0 ended"}, "FAIL: 59m55s, of which the first 10m0s do not count: 7200000 requests, 2160 refused, 720 of them in vain, 0 failed; 2 series flat within 1 % an hour, 0 fall, 0 grow, 0 unclear; 1 problems"},
		{"short", 0, 0, 0, 20, nil, "UNCLEAR: 19m55s, of which the first 10m0s do not count: 2400000 requests, 720 refused, 240 of them in vain, 0 failed; 1 series flat within 1 % an hour, 0 fall, 0 grow, 1 unclear; too short to say that nothing grows, for which it takes 30m0s more than 10m0s"},
		{"short, and memory has not settled", 1, 0, 0, 20, nil, "UNCLEAR: 19m55s, of which the first 10m0s do not count: 2400000 requests, 720 refused, 240 of them in vain, 0 failed; 1 series flat within 1 % an hour, 0 fall, 0 grow, 1 unclear; too short to say that nothing grows, for which it takes 30m0s more than 10m0s"},
		{"short and leaking", 0, 1, 0, 20, nil, "FAIL: 19m55s, of which the first 10m0s do not count: 2400000 requests, 720 refused, 240 of them in vain, 0 failed; 0 series flat within 1 % an hour, 0 fall, 1 grow, 1 unclear"},
	} {
		r := Judge(sampled(tt.perHour, tt.leaks, tt.failed)[:24*tt.minutes], 10*time.Minute, tt.problems)
		if got := r.Verdict(); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
	if word := Judge(nil, 0, nil).Word(); word != "UNCLEAR" {
		t.Errorf("no samples: %s, want UNCLEAR", word)
	}
}

// A key that never expires is a leak whatever the slope.
func TestKeysThatNeverExpire(t *testing.T) {
	samples := sampled(0, 0, 0)
	for i := range 720 {
		samples = append(samples, Sample{begin.Add(time.Duration(i) * 5 * time.Second), "redis", map[string]float64{"keys": 100, neverExpire: 1}})
	}
	if r := Judge(samples, 10*time.Minute, nil); r.Word() != "FAIL" || len(r.Problems) != 1 {
		t.Errorf("%s, problems %q", r.Verdict(), r.Problems)
	}
}

// Users come and go: each is away for as long as they are there, and all were there after ten minutes.
func TestUsersComeAndGo(t *testing.T) {
	seen := map[string]bool{}
	for minute := range 10 {
		present := map[string]bool{}
		for i := range 50_000 {
			present[userAt(minute, uint64(i)*0x9e3779b97f4a7c15)] = true
		}
		if len(present) != presentUsers {
			t.Fatalf("minute %d: %d users, want %d", minute, len(present), presentUsers)
		}
		for u := range present {
			seen[u] = true
		}
	}
	if len(seen) != allUsers {
		t.Errorf("%d users in ten minutes, want %d", len(seen), allUsers)
	}
}

func FuzzReadSamples(f *testing.F) {
	f.Add(`{"At":"2026-11-23T21:00:00Z","Part":"agent-0","Values":{"memory":1e6}}` + "\n")
	f.Fuzz(func(t *testing.T, file string) {
		samples, err := ReadSamples(strings.NewReader(file))
		if err != nil {
			return
		}
		var text strings.Builder
		if err := Judge(samples, time.Minute, nil).WriteText(&text); err != nil || !strings.Contains(text.String(), " unclear") {
			t.Errorf("WriteText = %v: %s", err, text.String())
		}
	})
}
