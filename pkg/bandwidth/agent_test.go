package bandwidth_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// An agentStep is one thing that an agent hears, some time after the beginning, and
// what it says then. Only the direction down is written: "share 500" is what
// HAProxy is told, "active 1 moved 0 most 0 share 500" what polygen is.
type agentStep struct {
	at   time.Duration
	do   string
	want string
}

type agentHistory struct {
	*bandwidth.Agent
	limit bandwidth.Limit
}

func (h *agentHistory) step(t *testing.T, at time.Time, do string) string {
	t.Helper()
	var word string
	var n, m int64
	_, _ = fmt.Sscan(do, &word, &n, &m)
	said := ""
	switch word {
	case "start":
		said = fmt.Sprintf("begins with %d, ", h.Start(at, "alice", h.limit)[bandwidth.Down])
	case "count": // active, bytes
		h.Progress(at, "alice", h.limit, bandwidth.Asked, bandwidth.Count{Active: n, Moved: [2]int64{m, 0}})
	case "held": // active, bytes
		h.Progress(at, "alice", h.limit, bandwidth.Held, bandwidth.Count{Active: n, Moved: [2]int64{m, 0}})
	case "lent":
		h.Lent(at, "alice", h.limit, [2]int64{n, 0})
	case "share":
		h.Share(at, bandwidth.Sharing{User: "alice", Shares: []bandwidth.Share{{Instance: "other", Bytes: 7}, {Instance: "me", Bytes: n}}})
	case "unnamed":
		h.Share(at, bandwidth.Sharing{User: "alice", Shares: []bandwidth.Share{{Instance: "other", Bytes: 7}}})
	case "instances":
		h.Cluster(at, int(n))
	case "limit":
		h.limit.Bytes[bandwidth.Down] = n
		h.Limits(at, func(string) bandwidth.Limit { return h.limit })
	case "edited": // the file has another limit, and the agent is not told yet
		h.limit.Bytes[bandwidth.Down] = n
	case "restarted":
		h.Restarted(at)
	case "tick":
		for range 600 { // whatever is due meanwhile
			h.Tick(at)
		}
	default:
		t.Fatalf("no step %q", do)
	}
	out := h.TakeOutput()
	for _, e := range out.TableEntries {
		said += fmt.Sprintf("share %d, ", e.Share[bandwidth.Down])
	}
	for _, r := range h.Collect(at, nil) {
		said += fmt.Sprintf("active %d moved %d most %d share %d, ", r.Active, r.Moved[0], r.Most[0], r.Share[0])
	}
	if out.Urgent {
		said += "now"
	}
	return strings.TrimSuffix(said, ", ")
}

func TestAgent(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		share int64 // default
		steps []agentStep
	}{
		{"alone it has the limit, and reports without haste", 100, []agentStep{
			{0, "instances 1", "now"},
			{0, "start", "begins with 100000, share 100000, active 1 moved 0 most 0 share 0"},
			{10 * ms, "count 1 0", ""},
			{500 * ms, "tick", "active 1 moved 0 most 0 share 0"},
			{510 * ms, "count 0 0", ""},
			{720 * ms, "tick", "active 0 moved 0 most 501 share 0"},
		}},
		{"a small default until polygen says more", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "start", "begins with 1000"},
			{10 * ms, "share 60000", "share 60000"},
			{11 * ms, "start", "begins with 60000"},
		}},
		{"an even part without a default", 0, []agentStep{
			{0, "start", "begins with 50000, share 50000, active 1 moved 0 most 0 share 0, now"},
		}},
		{"never more than the limit", 200000, []agentStep{
			{0, "start", "begins with 100000, share 100000, active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "share 60000", "share 60000"},
			{2 * ms, "share 300000", "share 100000"},
		}},
		{"not named, not given any more", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "share 60000", "share 60000"},
			{2 * ms, "unnamed", "share 1000"},
		}},
		{"requests that end count on for a moment", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{10 * ms, "count 1 0", ""},
			{20 * ms, "count 0 10", ""},
			{100 * ms, "tick", ""},
			{150 * ms, "start", "begins with 1000"},
			{160 * ms, "count 0 20", ""},
			{340 * ms, "tick", ""},
			{455 * ms, "tick", "active 0 moved 0 most 0 share 0, now"},
			{460 * ms, "count 0 20", ""},
			{1000 * ms, "tick", ""},
		}},
		{"what short requests could use is known the next time", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{10 * ms, "count 0 0", ""},
			{215 * ms, "tick", "active 0 moved 0 most 0 share 0, now"},
			{1000 * ms, "start", "begins with 1000, active 1 moved 0 most 0 share 0, now"},
			{1020 * ms, "count 0 10", ""},
			{1230 * ms, "tick", "active 0 moved 0 most 724 share 0, now"},
			{2000 * ms, "start", "begins with 1000, active 1 moved 0 most 724 share 0, now"},
		}},
		{"a user is confirmed every 500 ms", 1000, []agentStep{
			{0, "count 1 0", "active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "share 60000", "share 60000"},
			{255 * ms, "tick", ""},
			{510 * ms, "tick", "active 1 moved 0 most 501 share 60000"},
			{765 * ms, "tick", ""},
		}},
		{"more requests are said after 100 ms", 1000, []agentStep{
			{0, "count 1 0", "active 1 moved 0 most 0 share 0, now"},
			{5 * ms, "count 3 0", ""},
			{90 * ms, "tick", "share 1000"},
			{110 * ms, "tick", "active 3 moved 0 most 0 share 0"},
		}},
		{"when requests become fewer, the most of a moment count", 1000, []agentStep{
			{0, "count 5 0", "active 5 moved 0 most 0 share 0, now"},
			{10 * ms, "count 4 0", ""},
			{20 * ms, "count 2 0", ""},
			{215 * ms, "tick", "share 1000, active 4 moved 0 most 0 share 0"},
			{430 * ms, "tick", "active 2 moved 0 most 0 share 0"},
		}},
		{"a share falls back 60 s after its last repetition, and is taught every 20 s", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{0, "count 1 0", ""},
			{0, "share 60000", "share 60000"},
			{19 * time.Second, "tick", "active 1 moved 0 most 501 share 60000"},
			{22 * time.Second, "tick", "share 60000, active 1 moved 0 most 501 share 60000"},
			{59 * time.Second, "tick", "share 60000, active 1 moved 0 most 501 share 60000"},
			{62 * time.Second, "tick", "share 1000, active 1 moved 0 most 501 share 0"},
		}},
		{"alone no more, it keeps what it had until polygen divides", 1000, []agentStep{
			{0, "instances 1", "now"},
			{0, "start", "begins with 100000, share 100000, active 1 moved 0 most 0 share 0"},
			{10 * ms, "instances 2", "active 1 moved 0 most 0 share 100000, now"},
			{20 * ms, "share 50000", "share 50000"},
			{30 * ms, "instances 3", ""},
			{40 * ms, "instances 1", "share 100000, active 1 moved 0 most 0 share 50000, now"},
		}},
		{"a smaller limit shrinks a share at once, a larger one does not grow it", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "share 60000", "share 60000"},
			{2 * ms, "limit 50000", "share 30000, active 1 moved 0 most 0 share 30000, now"},
			{3 * ms, "limit 50000", ""},
			{4 * ms, "limit 200000", "active 1 moved 0 most 0 share 30000, now"},
			{5 * ms, "limit 0", "share 0, active 1 moved 0 most 0 share 0, now"},
		}},
		{"HAProxy restarts", 1000, []agentStep{
			{0, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{1 * ms, "count 5 0", ""},
			{2 * ms, "share 60000", "share 60000"},
			{3 * ms, "restarted", "active 0 moved 0 most 0 share 60000, now"},
			{4 * ms, "start", "begins with 60000, share 60000, active 1 moved 0 most 0 share 60000, now"},
		}},
		{"what moves by credit is forgotten with HAProxy", 1000, []agentStep{
			{0, "lent 50000", "active 1 moved 50000 most 56500 share 0, now"},
			{1 * ms, "restarted", "active 0 moved 0 most 0 share 0, now"},
		}},
		{"a count brings the limit in force", 0, []agentStep{
			{0, "start", "begins with 50000, share 50000, active 1 moved 0 most 0 share 0, now"},
			{0, "edited 60000", ""},
			{0, "count 1 0", ""},
			{500 * ms, "tick", "share 30000, active 1 moved 0 most 301 share 0"},
		}},
		{"and so does what is lent", 0, []agentStep{
			{0, "start", "begins with 50000, share 50000, active 1 moved 0 most 0 share 0, now"},
			{0, "edited 60000", ""},
			{0, "lent 40000", ""},
			{500 * ms, "tick", "share 30000, active 1 moved 40000 most 45100 share 0"},
		}},
		{"what moves by credit is demand, until it moves no more", 1000, []agentStep{
			{0, "lent 1000", "active 1 moved 1000 most 1620 share 0, now"},
			{100 * ms, "tick", "share 1000"},
			{600 * ms, "tick", "active 1 moved 1000 most 1620 share 0"},
			{1000 * ms, "lent 20000", ""},
			{1110 * ms, "tick", "active 1 moved 20000 most 22900 share 0"},
			{1200 * ms, "lent 99000", ""},
			{1700 * ms, "tick", "active 1 moved 99000 most 0 share 0"},
			{2000 * ms, "lent 0", "active 0 moved 0 most 0 share 0, now"},
			{2300 * ms, "tick", ""},
			{2400 * ms, "lent 0", ""},
			{2500 * ms, "lent 250", ""}, // of which polygen need not know
			{2600 * ms, "lent 251", "active 1 moved 251 most 724 share 0, now"},
		}},
		{"what moves by credit is not remembered for longer than a minute", 1000, []agentStep{
			{0, "lent 1000", "active 1 moved 1000 most 1620 share 0, now"},
			{59 * time.Second, "tick", "share 1000, active 1 moved 1000 most 1620 share 0"},
			{61 * time.Second, "tick", "active 0 moved 0 most 0 share 0, now"},
		}},
		{"a body that is held is a transfer, beside those asked about", 1000, []agentStep{
			{0, "held 1 500", "share 1000, active 1 moved 0 most 0 share 0, now"},
			{10 * ms, "share 60000", "share 60000"},
			{20 * ms, "count 1 900000", ""}, // moved before this agent heard of it
			{300 * ms, "tick", "active 2 moved 0 most 0 share 60000"},
			{310 * ms, "held 1 10500", ""},
			{320 * ms, "count 1 902000", ""},
			{450 * ms, "held 0 10500", ""},
			{700 * ms, "tick", "active 1 moved 34482 most 0 share 60000"},
			{710 * ms, "count 0 902000", ""},
			{1000 * ms, "tick", "active 0 moved 0 most 6100 share 60000, now"},
		}},
		{"the clock is set back", 1000, []agentStep{
			{time.Hour, "start", "begins with 1000, share 1000, active 1 moved 0 most 0 share 0, now"},
			{time.Hour + 1*ms, "count 2 0", ""},
			{5 * ms, "tick", "share 1000, active 2 moved 0 most 0 share 0"},
			{30 * ms, "share 60000", "share 60000"},
			{40 * ms, "count 0 0", ""},
			{300 * ms, "tick", "active 0 moved 0 most 0 share 60000, now"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &agentHistory{bandwidth.NewAgent(bandwidth.Config{Instance: "me"}),
				bandwidth.Limit{Bytes: [2]int64{100_000, 0}, Default: [2]int64{tt.share, 0}}}
			h.Cluster(t0, 2)
			h.Tick(t0)
			h.TakeOutput()
			for _, s := range tt.steps {
				if got := h.step(t, t0.Add(s.at), s.do); got != s.want {
					t.Errorf("at %v: %s = %q, want %q", s.at, s.do, got, s.want)
				}
			}
		})
	}
}

// What an instance could use, from what it moves.
func TestAgentDemand(t *testing.T) {
	const limit, share = 10_000_000, 1_000_000
	tests := []struct {
		name  string
		rates []float64 // bytes per second moved, in each second; 0.2 s brief ones first
		want  []int64   // most: 0 is any number
	}{
		{"all of its share: any number", []float64{share, share}, []int64{0, 0}},
		{"half of it: a little more than that", []float64{share / 2, share / 2}, []int64{575_000, 575_000}},
		{"then all of it: more, and still more", []float64{share / 2, share, share}, []int64{575_000, 0, 0}},
		{"nothing", []float64{0, 0}, []int64{50_001, 50_001}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := bandwidth.NewAgent(bandwidth.Config{Instance: "me"})
			a.Cluster(t0, 2)
			l := bandwidth.Limit{Bytes: [2]int64{limit, 0}}
			a.Start(t0, "alice", l)
			a.Share(t0, bandwidth.Sharing{User: "alice", Shares: []bandwidth.Share{{Instance: "me", Bytes: share}}})
			at, moved := t0, 0.0
			var got []int64
			for _, rate := range tt.rates {
				for range 20 {
					a.Progress(at, "alice", l, bandwidth.Asked, bandwidth.Count{Active: 1, Moved: [2]int64{int64(moved), 0}})
					at, moved = at.Add(100*time.Millisecond), moved+rate/10
					a.Tick(at)
				}
				a.Restate()
				for _, r := range a.Collect(at, nil) {
					got = append(got, r.Most[bandwidth.Down])
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("most = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAgentForgets(t *testing.T) {
	a := bandwidth.NewAgent(bandwidth.Config{Instance: "me", MaxUsers: 10})
	a.Cluster(t0, 2)
	l := bandwidth.Limit{Bytes: [2]int64{100_000, 0}, Default: [2]int64{1000, 0}}
	for i := range 20 {
		if got := a.Start(t0, fmt.Sprint(i), l); got != [2]int64{1000, 0} {
			t.Errorf("Start(user %d) = %v, want the default share", i, got)
		}
	}
	a.Progress(t0, "nobody", l, bandwidth.Asked, bandwidth.Count{})
	a.Progress(t0, "not limited", bandwidth.Limit{}, bandwidth.Asked, bandwidth.Count{Active: 1})
	if got := a.KnownUsers(); got != 10 {
		t.Errorf("Users() = %d, want no more than 10", got)
	}
	for at := time.Duration(0); at < 2*bandwidth.ForgetSpan+3*time.Second; at += 5 * time.Millisecond {
		a.Tick(t0.Add(at))
		a.Collect(t0.Add(at), nil)
	}
	if got := a.KnownUsers(); got != 0 {
		t.Errorf("Users() long after the last request = %d, want 0", got)
	}
}
