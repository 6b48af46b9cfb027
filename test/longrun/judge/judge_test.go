package judge

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-qos/sluice/test/longrun/history"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Each property of a history that is good, and of one that violates it.
func TestJudge(t *testing.T) {
	tests := []struct {
		name  string
		scene *scene
		want  []string
	}{
		{"the whole limit in a second", newScene().limit("hot", 5, 0, 0).admits("hot", 5, 100), nil},
		{"one more", newScene().limit("hot", 5, 0, 0).admits("hot", 6, 100),
			[]string{
				"user hot was admitted 6 of 5 GET requests in a second from 21:00:00.000 on, while nothing was broken (bound 1.00)",
			}},
		{"one more, that may have been decided in the second before", newScene().limit("hot", 5, 0, 0).admits("hot", 6, 1005), nil},
		{"two seconds that cannot both be explained", newScene().limit("hot", 2, 0, 0).admits("hot", 2, 500).admits("hot", 3, 1005).admits("hot", 2, 2500),
			[]string{"user hot was admitted 3 of 2 GET requests in a second from 21:00:01.000 on, while nothing was broken (bound 1.00)"}},
		{"the limit of a user without a line of their own", newScene().limit("", 5, 0, 0).admits("cold", 6, 100),
			[]string{
				"user cold was admitted 6 of 5 GET requests in a second from 21:00:00.000 on, while nothing was broken (bound 1.00)",
			}},
		{"while an agent is away, an even part more", newScene().limit("hot", 30, 0, 0).admits("hot", 40, 100).fault(history.Kill, "agent-1", 0, 900), nil},
		{"while an agent is away, one beyond that", newScene().limit("hot", 30, 0, 0).limit("", 20, 0, 0).admits("hot", 41, 100).fault(history.Kill, "agent-1", 0, 900),
			[]string{"user hot was admitted 41 of 30 GET requests in a second from 21:00:00.000 on, while agent-1 was killed, from 21:00:00.000 for 900ms (bound 1.33)"}},
		{"two faults allow what both do", newScene().limit("hot", 30, 0, 0).admits("hot", 100, 100).fault(history.Kill, "agent-1", 0, 900).fault(history.Stop, "redis", 500, 900), nil},
		{"two faults, one beyond that", newScene().limit("hot", 30, 0, 0).limit("", 20, 0, 0).admits("hot", 101, 100).fault(history.Kill, "agent-1", 0, 900).fault(history.Stop, "redis", 500, 900),
			[]string{"user hot was admitted 101 of 30 GET requests in a second from 21:00:00.000 on, while redis was stopped, from 21:00:00.500 for 400ms (bound 3.33)"}},
		{"the same fault twice", newScene().limit("hot", 30, 0, 0).limit("", 20, 0, 0).admits("hot", 41, 100).fault(history.Kill, "agent-1", 0, 200).fault(history.Kill, "agent-1", 300, 900),
			[]string{"user hot was admitted 41 of 30 GET requests in a second from 21:00:00.000 on, while agent-1 was killed, from 21:00:00.000 for 200ms (bound 1.33)"}},
		{"Redis that is away twice", newScene().limit("hot", 30, 0, 0).admits("hot", 91, 100).fault(history.Stop, "redis-0", 0, 900).fault(history.Partition, "all→redis-1", 0, 900),
			[]string{"user hot was admitted 91 of 30 GET requests in a second from 21:00:00.000 on, while redis-0 was stopped, from 21:00:00.000 for 900ms (bound 3.00)"}},
		{"HAProxy restarted while its agent is away", newScene().limit("hot", 30, 0, 1000).admits("hot", 50, 100).transfer("hot", 100, 500).fault(history.Kill, "agent-1", 0, 3900).fault(history.Restart, "haproxy-1", 0, 2500), nil},
		{"HAProxy restarted while another's agent is away", newScene().limit("hot", 30, 0, 0).limit("", 20, 0, 0).admits("hot", 41, 100).fault(history.Kill, "agent-1", 0, 900).fault(history.Restart, "haproxy-0", 0, 100),
			[]string{"user hot was admitted 41 of 30 GET requests in a second from 21:00:00.000 on, while agent-1 was killed, from 21:00:00.000 for 900ms (bound 1.33)"}},
		{"refused before anybody knows that the agent is away", newScene().limit("hot", 30, 0, 0).refuse("hot", 900, "request-rate").fault(history.Stop, "agent-0", 0, 5000), nil},
		{"refused when everybody knows", newScene().limit("hot", 30, 0, 0).refuse("hot", 1900, "request-rate").fault(history.Stop, "agent-0", 0, 5000),
			[]string{"user hot was refused through instance 0 with 0 of 30 GET requests in a second at 21:00:01.900, while agent-0 was stopped, from 21:00:00.000 for 5s (bound 0.08)"}},
		{"refused while a reloaded HAProxy goes on", newScene().limit("wide", 0, 2, 0).refuse("wide", 9000, "concurrent-requests").fault(history.Reload, "haproxy-0", 0, 100), nil},
		{"a rate refused then", newScene().limit("hot", 30, 0, 0).refuse("hot", 9000, "request-rate").fault(history.Reload, "haproxy-0", 0, 100),
			[]string{"user hot was refused through instance 0 with 0 of 30 GET requests in a second at 21:00:09.000, 8.9 s after the end of: haproxy-0 was reloaded, from 21:00:00.000 for 100ms (bound 0.60)"}},
		{"decided while more was allowed, and held by a link since", newScene().limit("hot", 5, 0, 0).admits("hot", 10, 100).fault(history.Flush, "redis", 50, 60).late(10, 9500).admits("hot", 5, 9600), nil},
		{"one more than ever was allowed, and held by a link since", newScene().limit("hot", 5, 0, 0).admits("hot", 61, 100).fault(history.Flush, "redis", 50, 60).late(61, 9500).admits("hot", 5, 9600),
			[]string{
				"something was not exact yet 8.9 s after the end at 21:00:00.060 of: redis was emptied, from 21:00:00.050 for 10ms (bound 2.0 s)",
				"user hot was admitted 6 of 5 GET requests in a second from 21:00:09.000 on, 8.9 s after the end of: redis was emptied, from 21:00:00.050 for 10ms (bound 1.00)",
			}},
		{"within the time to recover", newScene().limit("hot", 5, 0, 0).admits("hot", 10, 2100).fault(history.Flush, "redis", 1100, 1100), nil},
		{"after the time to recover", newScene().limit("hot", 5, 0, 0).admits("hot", 10, 9100).fault(history.Flush, "redis", 1100, 1100),
			[]string{
				"something was not exact yet 7.9 s after the end at 21:00:01.100 of: redis was emptied, from 21:00:01.100 for 0s (bound 2.0 s)",
				"user hot was admitted 10 of 5 GET requests in a second from 21:00:09.000 on, 7.9 s after the end of: redis was emptied, from 21:00:01.100 for 0s (bound 1.00)",
			}},
		{"a fault that nobody has thought about", newScene().admits("hot", 1, 100).fault("rain", "agent-1", 0, 900), []string{"unbounded: rain agent"}},
		{"as many in progress as the limit", newScene().limit("wide", 0, 2, 0).admit("wide", 100, 900).admit("wide", 200, 900).admit("wide", 900, 950), nil},
		{"one too many in progress", newScene().limit("wide", 0, 2, 0).admit("wide", 100, 900).admit("wide", 200, 900).admit("wide", 899, 950),
			[]string{
				"user wide had 3 of 2 requests in progress at 21:00:00.899, while nothing was broken (bound 1.00)",
			}},
		{"in progress under a limit that was lowered since", lowered(), nil},
		{"a new one under a limit that was lowered", lowered().admit("wide", 9000, 9100),
			[]string{
				"user wide had 3 of 1 requests in progress at 21:00:09.000, while nothing was broken (bound 1.00)",
			}},
		{"while an agent is away, what the default tier may have there", newScene().limit("hot", 30, 0, 0).limit("", 60, 0, 0).admits("hot", 50, 100).fault(history.Kill, "agent-1", 0, 900), nil},
		{"refused at the limit", newScene().limit("hot", 5, 0, 0).admits("hot", 5, 100).refuse("hot", 200, "request-rate"), nil},
		{"refused at once", newScene().limit("hot", 5, 0, 0).refuse("hot", 50, "request-rate").admits("hot", 5, 100),
			[]string{
				"user hot was refused through instance 0 with 0 of 5 GET requests in a second at 21:00:00.050, while nothing was broken (bound 0.60)",
			}},
		{"refused in the next second", newScene().limit("hot", 5, 0, 0).admits("hot", 5, 100).refuse("hot", 1200, "request-rate"),
			[]string{
				"user hot was refused through instance 0 with 0 of 5 GET requests in a second at 21:00:01.200, while nothing was broken (bound 0.60)",
			}},
		{"refused without a limit", newScene().refuse("free", 50, "request-rate"),
			[]string{"user free was refused through instance 0 without a limit at 21:00:00.050, while nothing was broken (bound 0.60)"}},
		{"refused without a limit while no agent answers", newScene().refuse("free", 50, "request-rate").refuse("free", 60, "concurrent-requests").fault(history.Stop, "agent-0", 0, 900), nil},
		{"refused with all places taken", newScene().limit("wide", 0, 1, 0).admit("wide", 100, 900).refuse("wide", 200, "concurrent-requests"), nil},
		{"refused with few places taken", newScene().limit("wide", 0, 5, 0).admit("wide", 100, 900).refuse("wide", 200, "concurrent-requests"),
			[]string{"user wide was refused through instance 0 with 1 of 5 requests in progress at 21:00:00.200, while nothing was broken (bound 0.60)"}},
		{"refused soon after all places were taken", newScene().limit("wide", 0, 1, 0).admit("wide", 100, 200).refuse("wide", 1100, "concurrent-requests"), nil},
		{"refused long after", newScene().limit("wide", 0, 2, 0).admit("wide", 100, 200).refuse("wide", 1300, "concurrent-requests"),
			[]string{"user wide was refused through instance 0 with 0 of 2 requests in progress at 21:00:01.300, while nothing was broken (bound 0.60)"}},
		{"no answer", newScene().request("cold", 50, func(r *history.Request) { r.Error = "reset" }),
			[]string{"user cold got no answer through instance 0, or half of one, or an error, from 21:00:00.050 to 21:00:00.052, while nothing was broken (bound 0)"}},
		{"no answer that anybody waited for", newScene().request("cold", 50, func(r *history.Request) { r.GivenUp = true }), nil},
		{"no answer through the HAProxy that was killed", newScene().request("cold", 50, func(r *history.Request) { r.Instance = 2 }).fault(history.Kill, "haproxy-2", 0, 900), nil},
		{"no answer through another one", newScene().request("cold", 50, func(r *history.Request) { r.Instance = 1 }).fault(history.Kill, "haproxy-2", 0, 900),
			[]string{"user cold got no answer through instance 1, or half of one, or an error, from 21:00:00.050 to 21:00:00.052, while haproxy-2 was killed, from 21:00:00.000 for 900ms (bound 0)"}},
		{"a leak", newScene().admits("hot", 1, 100).leak("hot"),
			[]string{"user hot: 2 slots in redis of pool at 21:00:05.000, while nothing was broken (bound 0)"}},
		{"what could not be asked", newScene().admits("hot", 1, 100).leakOf(-1),
			[]string{"1 slots in redis of pool at 21:00:05.000, while nothing was broken (bound 0)"}},
		{"a burst", newScene().burst("hot", 5, 3).admits("hot", 8, 100).admits("hot", 5, 1100).admits("hot", 2, 2100).admits("hot", 8, 3100), nil},
		{"a burst of nothing", newScene().burst("hot", 5, 3).admits("hot", 8, 100).admits("hot", 6, 1100).admits("hot", 5, 2100),
			[]string{
				"user hot was admitted 14 of 13 GET requests in seconds with a burst from 21:00:00.000 on, while nothing was broken (bound 1.00)",
				"user hot was admitted 19 of 18 GET requests in seconds with a burst from 21:00:00.000 on, while nothing was broken (bound 1.00)",
			}},
		{"more than a burst", newScene().burst("hot", 5, 3).admits("hot", 9, 100),
			[]string{
				"user hot was admitted 9 of 8 GET requests in a second from 21:00:00.000 on, while nothing was broken (bound 1.00)",
				"user hot was admitted 9 of 8 GET requests in seconds with a burst from 21:00:00.000 on, while nothing was broken (bound 1.00)",
			}},
		{"as many bytes as the limit", newScene().limit("fat", 0, 0, 1000).transfer("fat", 100, 100), nil},
		{"too many bytes", newScene().limit("fat", 0, 0, 1000).transfer("fat", 100, 120),
			[]string{
				"user fat moved 1200 of 1000 bytes down in a second from 21:00:00.100 on, while nothing was broken (bound 1.15)",
				"user fat moved 1200 of 1000 bytes down in a second from 21:00:00.200 on, while nothing was broken (bound 1.15)",
			}},
		{"a limit of costs", newScene().costs("rich", 40, 0, false).spends("rich", 20, 100, 4, 2), nil},
		{"more than a limit of costs", newScene().costs("rich", 40, 0, false).spends("rich", 20, 100, 4, 2).spends("rich", 1, 500, 4, 1),
			[]string{"user rich was answered what cost 41 of 40 in a second from 21:00:00.000 on, while nothing was broken (bound 1.00)"}},
		{"costs that may be of the second before", newScene().costs("rich", 40, 0, false).spends("rich", 20, 100, 4, 2).spends("rich", 20, 995, 4, 2), nil},
		{"more than a limit of costs in a minute", newScene().costs("rich", 0, 40, false).spends("rich", 20, 100, 4, 2).spends("rich", 1, 30_000, 4, 2),
			[]string{"user rich was answered what cost 42 of 40 in a minute from 21:00:00.000 on, while nothing was broken (bound 1.00)"}},
		{"costs while Redis is away", newScene().costs("rich", 40, 0, false).spends("rich", 60, 100, 4, 2).fault(history.Stop, "redis", 0, 900), nil},
		{"more than that", newScene().costs("rich", 40, 0, false).spends("rich", 61, 100, 4, 2).fault(history.Stop, "redis", 0, 900),
			[]string{"user rich was answered what cost 122 of 40 in a second from 21:00:00.000 on, while redis was stopped, from 21:00:00.000 for 900ms (bound 3.00)"}},
		{"costs without an agent", newScene().costs("rich", 40, 0, false).spends("rich", 300, 100, 4, 2).fault(history.Stop, "agent-0", 0, 900), nil},
		{"a debt that is paid", newScene().costs("poor", 40, 0, true).spends("poor", 20, 100, 2, 4).spends("poor", 20, 2100, 2, 4), nil},
		{"more than a limit and a debt", newScene().costs("poor", 40, 0, true).spends("poor", 21, 100, 2, 4),
			[]string{
				"user poor was answered what cost 84 of 80 in a second from 21:00:00.000 on, while nothing was broken (bound 1.00)",
				"user poor was answered what cost 84 of 80 in windows of a second in a row from 21:00:00.000 on, while nothing was broken (bound 1.00)",
			}},
		{"a debt that is not paid", newScene().costs("poor", 40, 0, true).spends("poor", 20, 100, 2, 4).spends("poor", 11, 1100, 2, 4),
			[]string{"user poor was answered what cost 124 of 120 in windows of a second in a row from 21:00:00.000 on, while nothing was broken (bound 1.00)"}},
		{"refused with all charged", newScene().costs("rich", 40, 0, false).spends("rich", 20, 100, 4, 2).overspend("rich", 600, 4), nil},
		{"refused with what may still be charged", newScene().costs("rich", 40, 0, false).spends("rich", 10, 100, 4, 2).overspend("rich", 300, 4), nil},
		{"refused with half of it given back", newScene().costs("rich", 40, 0, false).spends("rich", 10, 100, 4, 2).overspend("rich", 600, 4),
			[]string{"user rich was refused through instance 0 with 24 of 40 charged in the second after the one at 20:59:59.000, while nothing was broken (bound 0.80)"}},
		{"refused with answers that said nothing", newScene().costs("rich", 40, 0, false).spends("rich", 10, 100, 4, 0).overspend("rich", 600, 4), nil},
		{"refused after a fault of the same minute", newScene().costs("rich", 0, 40, false).spends("rich", 10, 100, 4, 2).overspend("rich", 30_000, 4).fault(history.Kill, "agent-1", 50, 900), nil},
		{"refused for what passed uncharged in the minute before", newScene().costs("rich", 0, 40, false).spends("rich", 10, 100, 4, 2).overspend("rich", 70_000, 4).fault(history.Kill, "agent-1", 50, 900), nil},
		{"refused a minute later", newScene().costs("rich", 0, 40, false).spends("rich", 10, 100, 4, 2).overspend("rich", 130_000, 4).fault(history.Kill, "agent-1", 50, 900),
			[]string{"user rich was refused through instance 0 with 4 of 40 charged in the minute after the one at 21:01:00.000, while nothing was broken (bound 0.80)"}},
		{"a flood", newScene().limit("hot", 5, 0, 0).admits("hot", 1, 100).crowd("hot", 0, 0, 4).crowd("hot", 0, 1, 5), nil},
		{"one more of a flood", newScene().limit("hot", 5, 0, 0).admits("hot", 1, 100).crowd("hot", 0, 0, 4).crowd("hot", 0, 1, 6),
			[]string{"user hot was admitted 6 of 5 GET requests in a second from 21:00:01.000 on, while nothing was broken (bound 1.00)"}},
		{"an answer in time", newScene().limit("cold", 5, 0, 0).within("cold", 900), nil},
		{"a late answer", newScene().limit("cold", 5, 0, 0).within("cold", 1100),
			[]string{"user cold waited for 1.1 s of 1.0 s through instance 0 from 21:00:00.050 on, while nothing was broken (bound 1.00)"}},
		{"a late answer in a flood", newScene().limit("cold", 5, 0, 0).within("cold", 9900).fault(history.Overload, "all", 0, 9000), nil},
		{"too late for a flood", newScene().limit("cold", 5, 0, 0).within("cold", 10_100).fault(history.Overload, "all", 0, 9000),
			[]string{"user cold waited for 10.1 s of 1.0 s through instance 0 from 21:00:00.050 on, while all had more requests than can be served, from 21:00:00.000 for 9s (bound 10.00)"}},
		{"memory", newScene().admits("hot", 1, 100).memory("agent", 1).memory("polygen-0", 500), nil},
		{"too much memory", newScene().admits("hot", 1, 100).memory("agent-1", 501),
			[]string{"agent-1 had 501 MiB of 500 at 21:00:00.000, while nothing was broken (bound 1.00)"}},
		{"a problem", newScene().admits("hot", 1, 100).problem("redis ended by itself"), []string{"problem: redis ended by itself"}},
		{"nothing", newScene(), []string{}},
		{"no run", &scene{}, []string{"error: the history does not say when the run began"}},
		{"a time of another day", newScene().admits("hot", 1, 100_000_000), []string{"error: request 1: 2026-11-25 00:46:39.999 +0000 UTC is not within the 5h0m0s after the run's begin, 2026-11-23 21:00:00 +0000 UTC"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(strings.Join(tt.want, "\n"), tt.scene.judged()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// lowered has three requests in progress of three, and then a limit of one.
func lowered() *scene {
	s := newScene().limit("wide", 0, 3, 0).admit("wide", 100, 9900).admit("wide", 200, 9900)
	s.Limits = append(s.Limits, history.Limit{User: "wide", Class: "GET", Concurrent: 1, From: ms(4000)})
	return s
}

func (s *scene) burst(user string, get, burst int) *scene {
	s.limit(user, get, 0, 0)
	s.Limits[len(s.Limits)-1].Burst = burst
	return s
}

func (s *scene) leakOf(count int64) *scene {
	s.leak("").Leaks[0].Count = count
	return s
}

func (s *scene) leak(user string) *scene {
	s.Leaks = append(s.Leaks, history.Leak{At: ms(5000), Place: "redis", Holder: "pool", User: user, What: "slots", Count: 2})
	return s
}

// transfer moves a number of bytes in each tenth of two seconds.
func (s *scene) transfer(user string, at int, bytes int64) *scene {
	s.admit(user, at, at+2000)
	for i := range 20 {
		s.Transfers = append(s.Transfers, history.Transfer{User: user, ID: s.Requests[len(s.Requests)-1].ID, At: ms(at + 100*(i+1)), Down: bytes})
	}
	return s
}

// The report reads as it did.
func TestReport(t *testing.T) {
	s := newScene().limit("hot", 100, 10, 0).limit("wide", 0, 2, 0).
		admits("hot", 100, 100).refuse("hot", 500, "request-rate").
		admits("hot", 140, 2100).refuse("hot", 2050, "request-rate").fault(history.Stop, "polygen-0", 2000, 2900).
		admits("hot", 300, 20100).fault(history.Stop, "redis", 20050, 21000).
		admit("wide", 100, 900).admit("wide", 200, 900).
		request("cold", 20100, func(r *history.Request) { r.Status = 502 })
	r, err := Judge(&s.History)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := r.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/report.txt"
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// Limits that are about to change are those of before or after, whichever says more.
func TestInForce(t *testing.T) {
	all := versionsOf([]history.Limit{
		{Class: "GET", Requests: map[string]int{"second": 5}, From: ms(10_000)},
		{Class: "GET", Requests: map[string]int{"second": 3}, Concurrent: 2, From: ms(0)},
		{Class: "PUT", Requests: map[string]int{"minute": 7}, Concurrent: 2, From: ms(0)},
	})
	get := requestsOf(rate{"GET", "second"})
	for _, tt := range []struct{ from, to, versions, most, least int }{
		{0, 1000, 1, 3, 3}, {9000, 10_000, 2, 5, 3}, {12_000, 12_500, 2, 5, 3}, {13_000, 13_500, 1, 5, 5},
	} {
		got := inForce(all, ms(tt.from), ms(tt.to))
		if len(got) != tt.versions || most(got, get) != float64(tt.most) || least(got, get) != float64(tt.least) {
			t.Errorf("inForce(%d, %d) = %v, most %v, least %v; want %d versions, %d, %d", tt.from, tt.to, got, most(got, get), least(got, get), tt.versions, tt.most, tt.least)
		}
	}
	if n := len(inForce(all, ms(-5000), ms(-4000))); n != 0 {
		t.Errorf("before the first: %d versions, want none", n)
	}
}
