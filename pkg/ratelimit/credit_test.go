package ratelimit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// credited is one step of a history with credit: what happens at a time, and what comes
// of it.
type credited struct {
	at   int // ms
	what string
	want string
}

// playSteps runs steps on an agent. A step is "start", "start spent" and so on for a request
// of GET, "lend", "lendable", "recalled SECOND SPENT THROUGH" (seconds from t0), "reloaded", "generation",
// "cluster N", "lost", "back", or "tick". What comes of it is what was decided, and what the
// agent asked, with a flush after each step or without: "second: need+ahead -back debt of
// reserve".
func playSteps(t *testing.T, a *ratelimit.Agent, limit int, flush bool, steps []credited) {
	t.Helper()
	pool := map[poolKey]int{}
	rates := get(limit)
	for _, s := range steps {
		at, got := ms(s.at), ""
		var w *ratelimit.Waiting
		said := map[string]ratelimit.Credit{
			"start": ratelimit.NoCredit, "start withheld": ratelimit.Withheld, "start spent": ratelimit.Spent, "start uncertain": ratelimit.Uncertain,
		}
		var sec, through int64
		var spent, n int
		credit, starts := said[s.what]
		switch {
		case starts:
			var v ratelimit.Verdict
			if v, w = a.Start(at, "u", rates, credit); w == nil {
				got = verdictOf(v)
			}
		case s.what == "lend":
			a.Lend(at, "u", rates, at.Unix()+1)
		case s.what == "lendable":
			got = fmt.Sprint(a.Lendable(at, "u", rates))
		case s.what == "reloaded":
			a.Reloaded(at)
		case s.what == "lost", s.what == "back":
			a.Lost(at, s.what == "lost")
		case s.what == "tick":
			a.Tick(at)
		case scan(s.what, "recalled %d %d %d", &sec, &spent, &through):
			a.Recalled(at, "u", rates[0], t0.Unix()+sec, spent, t0.Unix()+through)
		case scan(s.what, "cluster %d", &n):
			a.Cluster(at, n, 0)
		default:
			t.Fatalf("no step %q", s.what)
		}
		out := a.TakeOutput()
		for range out.Withdraw {
			got += " withdraw"
		}
		for _, n := range out.TableEntries {
			got += map[bool]string{false: " refuse natively", true: " lift"}[n.Lift]
		}
		asks := a.Collect(at, flush, nil)
		for _, ask := range asks {
			got += fmt.Sprintf(" [%d: %d+%d -%d %d of %d]", ask.WindowStart-t0.Unix(), ask.Need, ask.Ahead, ask.Back, ask.Debt, ask.Reserve)
		}
		for _, ask := range asks {
			a.Reply(at, ask, pools{totals: pool}.take(at, ask))
		}
		for _, d := range append(out.Decided, a.TakeOutput().Decided...) {
			got += " " + verdictOf(d.Verdict)
			if d == w {
				w = nil
			}
		}
		if w != nil {
			got += " waits"
		}
		if got = trim(got); got != s.want {
			t.Errorf("at %d ms %s: %q, want %q", s.at, s.what, got, s.want)
		}
	}
}

func trim(s string) string {
	if len(s) > 0 && s[0] == ' ' {
		return s[1:]
	}
	return s
}

func scan(s, format string, into ...any) bool {
	n, err := fmt.Sscanf(s, format, into...)
	return err == nil && n == len(into)
}

func verdictOf(v ratelimit.Verdict) string {
	if v.Allowed {
		return "allowed"
	}
	return "refused"
}

// TestCreditAlone: HAProxy has the whole limit.
func TestCreditAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []credited
	}{
		{"what is withheld is the agent's to decide", []credited{
			{100, "start withheld", "allowed"}, {101, "start withheld", "allowed"}, {102, "start withheld", "allowed [0: 0+0 -0 3 of 0]"},
			{103, "start withheld", "refused"},
		}},
		{"in the second of a grant the agent still decides", []credited{
			{100, "start withheld", "allowed"}, {100, "lendable", "true"}, {100, "lend", ""},
			{200, "start withheld", "allowed"}, {201, "start uncertain", "allowed [0: 0+0 -0 3 of 0]"}, {202, "start withheld", "refused"},
		}},
		{"what is spent is refused, and HAProxy told so", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""},
			{1500, "start spent", "refused refuse natively"}, {1501, "start spent", "refused"},
			{2500, "start spent", "refused refuse natively"},
		}},
		{"also what an agent before this one has given", []credited{
			{1500, "start spent", "refused refuse natively"},
		}},
		{"who asks for another reason waits to know what was spent", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""},
			{1500, "start uncertain", "withdraw waits"}, {1501, "start uncertain", "waits"},
			{1502, "recalled 1 2 1", "[1: 0+0 -0 1 of 0] [0: 0+0 -0 1 of 0] allowed refused"}, // of 3 one was left
			{1503, "recalled 1 2 1", ""},
			{1504, "start withheld", "refused"},
			{1505, "start spent", "refused"}, // asked before it was withdrawn
			{2100, "start withheld", "allowed"},
		}},
		{"a withdrawal that nobody answers is asked for again", []credited{
			{1500, "start uncertain", "withdraw waits"}, {1599, "start uncertain", "waits"}, {1600, "start uncertain", "withdraw waits"},
		}},
		{"credit that HAProxy has lost may have been spent", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""},
			{1500, "start withheld", "withdraw waits"},
			{1501, "recalled 1 0 1", "allowed"},
		}},
		{"a recall lifts what was refused too soon", []credited{
			{1500, "start spent", "refused refuse natively"}, {1510, "recalled 1 1 1", "lift"}, {1511, "start withheld", "allowed"},
		}},
		{"what was asked before the credit began is of that second", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""}, {101, "start withheld", "allowed"},
			{1010, "start withheld", "allowed"}, {1011, "start withheld", "refused"},
		}},
		{"but not if HAProxy had it before", []credited{
			{900, "start withheld", "allowed"}, {1010, "recalled 1 0 1", ""}, {2010, "start uncertain", "withdraw waits"},
		}},
		{"credit of another generation, which has not opened the second", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""},
			{1500, "start spent", "refused refuse natively"},
			{2100, "recalled 2 0 2", ""}, {2100, "start withheld", "allowed"},
			{2101, "recalled 2 0 2", ""}, {2101, "start withheld", "allowed"}, {2102, "lendable", "true"}, {2102, "lend", ""},
			{2103, "start uncertain", "allowed [2: 0+0 -0 3 of 0] [0: 0+0 -0 1 of 0]"}, {2104, "start uncertain", "refused"},
			{3100, "start uncertain", "withdraw waits"},
		}},
		{"so it is after a restart, whoever gave it", []credited{
			{2100, "recalled 2 0 2", ""}, {2100, "start withheld", "allowed"}, {2101, "start uncertain", "allowed"},
		}},
		{"HAProxy's clock is ahead", []credited{
			{100, "start withheld", "allowed"}, {100, "lend", ""},
			{1990, "recalled 2 2 3", ""},
			{1991, "start withheld", "refused"}, // nobody knows what was spent of second 1
			{2100, "start withheld", "allowed [2: 0+0 -0 1 of 0] [0: 0+0 -0 1 of 0]"}, {2101, "start withheld", "refused"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { playSteps(t, ratelimit.NewAgent(ratelimit.Config{}), 3, false, tt.steps) })
	}
}

// TestCreditOfOneOfSeveralLimits: HAProxy does not say which limit's tickets were spent.
func TestCreditOfOneOfSeveralLimits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		classes []string
		native  []string // what HAProxy is told to refuse
	}{
		{"one", []string{"GET"}, []string{"GET"}},
		{"all requests'", []string{limits.All}, []string{limits.All}},
		{"a class' and all requests'", []string{"GET", limits.All}, []string{"GET"}},
		{"two classes', either may be", []string{"GET", "LIST", limits.All}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var rates []limits.Rate
			for _, class := range tt.classes {
				rates = append(rates, limits.Rate{Class: class, Max: 10})
			}
			a := ratelimit.NewAgent(ratelimit.Config{})
			if v, w := a.Start(ms(500), "u", rates, ratelimit.Spent); w != nil || v.Allowed {
				t.Fatalf("Start = %+v, %v, want refused", v, w)
			}
			var told []string
			for _, n := range a.TakeOutput().TableEntries {
				told = append(told, n.Key.Class)
			}
			if !slices.Equal(told, tt.native) {
				t.Errorf("HAProxy is told to refuse %q, want %q", told, tt.native)
			}
		})
	}
}

// TestCreditShared: of a limit of 100 and two agents each HAProxy has 12.
func TestCreditShared(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []credited
	}{
		{"nothing is reserved for who cannot have credit", []credited{
			{100, "start", "[0: 1+12 -0 0 of 0] allowed"},
		}},
		{"HAProxy may have had it in the first second", []credited{
			{100, "start withheld", "[0: 1+12 -0 0 of 24] allowed"},
		}},
		{"from the next on it is the agent's, once", []credited{
			{800, "start withheld", "[0: 1+12 -0 0 of 24] allowed"},
			{1000, "tick", ""},
			{1100, "start withheld", "allowed"}, {1101, "start withheld", "allowed"},
			{1110, "recalled 1 0 1", ""}, {1120, "start withheld", "allowed"},
			{1200, "tick", ""}, {1980, "tick", "[1: 0+0 -9 0 of 24]"}, {2000, "tick", ""},
		}},
		{"it is HAProxy's from the second on that it was given for", []credited{
			{800, "start withheld", "[0: 1+12 -0 0 of 24] allowed"}, {801, "lendable", "true"}, {801, "lend", ""},
			{1500, "start spent", "[1: 1+12 -0 0 of 24] allowed"},
		}},
		{"what HAProxy did not spend of it is given back, in this second and ahead of the next", []credited{
			{500, "recalled 0 5 2", "[0: 0+0 -7 0 of 24]"},
			{501, "recalled 0 5 2", ""},
			{700, "recalled 0 6 2", "[0: 0+0 -0 1 of 24]"},
			{990, "tick", "[1: 0+0 -12 0 of 24]"}, {995, "tick", ""}, {1000, "tick", ""}, {1990, "tick", "[2: 0+0 -12 0 of 24]"},
			{2990, "tick", ""}, {3990, "tick", ""},
		}},
		{"it can be recalled for longer", []credited{
			{500, "recalled 0 5 0", "[0: 0+0 -7 0 of 24]"}, {600, "recalled 1 0 1", ""}, {990, "tick", "[1: 0+0 -12 0 of 24]"}, {1990, "tick", ""},
		}},
		{"what it spent beyond it is counted", []credited{
			{500, "recalled 0 15 0", "[0: 0+0 -0 3 of 24]"},
		}},
		{"of a second gone by nothing is given back, but all of the present one", []credited{
			{1500, "recalled 0 5 1", "[1: 0+0 -12 0 of 24]"},
		}},
		{"of a second that has begun for HAProxy alone, what it did not spend", []credited{
			{990, "recalled 1 2 1", ""}, {995, "start withheld", "[0: 1+12 -0 0 of 24] allowed"},
			{1000, "tick", ""}, {1001, "start withheld", "allowed"}, {1100, "tick", ""}, {1400, "tick", "[1: 0+0 -9 0 of 24]"},
		}},
		{"nor of one in which HAProxy was reloaded", []credited{
			{500, "reloaded", ""}, {501, "recalled 0 0 1", ""}, {990, "tick", "[1: 0+0 -12 0 of 24]"},
		}},
		{"a recall just after a grant, for an answer that comes behind it brings none", []credited{
			{500, "start withheld", "[0: 1+12 -0 0 of 24] allowed"}, {500, "lend", ""}, {540, "recalled 0 0 2", ""},
			{990, "tick", "[0: 0+0 -24 0 of 24] [1: 0+0 -12 0 of 24]"}, {1500, "start withheld", "[1: 1+12 -0 0 of 24] allowed"},
		}},
		{"while Redis is lost HAProxy's part counts against the agent's", []credited{
			{500, "start spent", "[0: 1+12 -0 0 of 24] allowed"}, {900, "lost", ""},
			{1500, "start spent", "allowed [1: 0+12 -0 1 of 24]"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Cluster(t0.Add(-10*time.Second), 2, 0)
			playSteps(t, a, 100, true, tt.steps)
		})
	}
}

// TestCreditOfANewAgent: the one before it may have taken the portions of the second in
// which it begins and of the next.
func TestCreditOfANewAgent(t *testing.T) {
	a := ratelimit.NewAgent(ratelimit.Config{})
	a.Cluster(t0, 2, 0)
	playSteps(t, a, 100, true, []credited{
		{500, "start withheld", "[0: 1+12 -0 0 of 25] allowed"}, {990, "tick", "[0: 0+0 -11 0 of 25]"},
		{1000, "tick", ""}, {1100, "recalled 1 0 1", ""}, {1101, "start withheld", "[1: 1+12 -0 0 of 25] allowed"}, {1200, "tick", ""},
		{2000, "tick", ""}, {2100, "start withheld", "allowed"},
	})
}

// TestCreditAheadOfASecond: by the number of agents that there are by then.
func TestCreditAheadOfASecond(t *testing.T) {
	a := ratelimit.NewAgent(ratelimit.Config{})
	a.Cluster(t0.Add(-10*time.Second), 13, 0)
	a.Cluster(t0.Add(-5*time.Second), 13, 0)
	playSteps(t, a, 100, true, []credited{
		{500, "recalled 0 0 1", "[0: 0+0 -1 0 of 13]"}, {700, "cluster 12", ""}, {990, "tick", "[1: 0+0 -1 0 of 25]"},
	})
}

// TestCreditPartsOfALostPool: each of two agents admits its even part of a hot key's
// limit by itself, and HAProxy's credit is part of it.
func TestCreditPartsOfALostPool(t *testing.T) {
	for _, tt := range []struct {
		name string
		said ratelimit.Credit
		want int
	}{
		{"none", ratelimit.NoCredit, 50},
		{"in force", ratelimit.Spent, 38},
		{"uncertain", ratelimit.Uncertain, 38},
	} {
		a := ratelimit.NewAgent(ratelimit.Config{})
		a.Cluster(t0.Add(-10*time.Second), 2, 0)
		a.Start(ms(100), "u", get(100), tt.said)
		a.MarkHot(ms(110), ratelimit.Key{Class: "GET", User: "u"}, ms(3000), 2)
		a.Lost(ms(120), true)
		admitted := 0
		for i := range 200 {
			if v, w := a.Start(ms(1100+i), "u", get(100), tt.said); w == nil && v.Allowed {
				admitted++
			}
		}
		if admitted != tt.want {
			t.Errorf("credit %s: admitted %d, want %d", tt.name, admitted, tt.want)
		}
	}
}

func TestCreditLendable(t *testing.T) {
	start := credited{500, "start withheld", "[0: 1+12 -0 0 of 24] allowed"}
	for _, tt := range []struct {
		name  string
		steps []credited
	}{
		{"a user with a request", []credited{start, {501, "lendable", "true"}}},
		{"a user of whom nothing is known", []credited{{501, "lendable", "true"}}},
		{"one who cannot have it", []credited{{500, "start", "[0: 1+12 -0 0 of 0] allowed"}, {501, "lendable", "false"}}},
		{"around the end of a second", []credited{start, {849, "lendable", "true"}, {850, "lendable", "false"}, {1049, "lendable", "false"}, {1050, "lendable", "true"}}},
		{"one who has it", []credited{start, {501, "lend", ""}, {502, "lendable", "false"}, {1100, "lendable", "false"}}},
		{"one of whom HAProxy says that it has it", []credited{{500, "start uncertain", "[0: 1+12 -0 0 of 24] allowed"}, {501, "lendable", "false"}}},
		{"one whose credit HAProxy has lost", []credited{
			start, {501, "lend", ""}, {1500, "start withheld", "[1: 1+12 -0 0 of 24] allowed"}, {1501, "lendable", "false"},
			{2500, "start withheld", "[2: 1+12 -0 0 of 24] allowed"}, {2501, "lendable", "true"},
		}},
		{"while it is recalled", []credited{
			{100, "recalled 0 12 1", ""}, {200, "lendable", "false"}, {1200, "lendable", "true"},
		}},
		{"after another agent joined", []credited{
			start, {501, "cluster 3", ""}, {501, "cluster 3", ""}, {600, "lendable", "false"}, {2600, "start withheld", "allowed"}, {2601, "lendable", "false"}, {3100, "lendable", "true"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Cluster(t0.Add(-10*time.Second), 2, 0)
			playSteps(t, a, 100, true, tt.steps)
		})
	}
}

// TestCreditIsForgotten: neither users of whom nothing is known but that their credit was
// recalled, nor those who had a request, are remembered for long.
func TestCreditIsForgotten(t *testing.T) {
	for _, tt := range []struct {
		name  string
		begin func(*ratelimit.Agent)
		last  int // second in which they may be known
	}{
		{"recalled", func(a *ratelimit.Agent) {
			a.Recalled(ms(500), "u", limits.Rate{Class: "GET", Max: 100}, t0.Unix(), 3, t0.Unix()+2)
		}, 3},
		{"withheld", func(a *ratelimit.Agent) { a.Start(ms(500), "u", get(100), ratelimit.Withheld) }, 5},
		{"spent", func(a *ratelimit.Agent) { a.Start(ms(500), "u", get(100), ratelimit.Spent) }, 5},
	} {
		a := ratelimit.NewAgent(ratelimit.Config{})
		a.Cluster(t0.Add(-10*time.Second), 2, 0)
		tt.begin(a)
		pool := map[poolKey]int{}
		for at := 500; at <= 1000*tt.last+20; at += 5 {
			a.Tick(ms(at))
			exchange(a, ms(at), pool)
			if known := a.KnownUsers(); at < 2900 && known != 1 {
				t.Fatalf("%s: at %d ms %d users are known, want 1", tt.name, at, known)
			}
		}
		if known := a.KnownUsers(); known != 0 {
			t.Errorf("%s: after %d s %d users are known, want none", tt.name, tt.last, known)
		}
	}
}

// TestCreditReserves: agents that go by different numbers for a while all have the pool
// reserve what any of them may have lent.
func TestCreditReserves(t *testing.T) {
	reserve := func(a *ratelimit.Agent, at time.Time, limit int) int {
		a.Start(at, "u", get(limit), ratelimit.Spent)
		for _, ask := range a.Collect(at, true, nil) {
			if ask.Need > 0 {
				return ask.Reserve
			}
		}
		return -1
	}
	for _, tt := range []struct {
		name                 string
		limit, before, after int
		at                   time.Duration // after the number changed
		want                 int
	}{
		{"of two", 100, 2, 2, 0, 24},
		{"one joins", 100, 12, 13, 0, 25},
		{"one has joined", 100, 12, 13, 3 * time.Second, 13},
		{"one joins, and now there are too many", 10, 6, 7, 0, 6},
		{"there are too many", 10, 6, 7, 3 * time.Second, 0},
		{"one leaves", 100, 13, 12, 0, 25},
		{"one leaves a few", 10, 6, 5, 0, 6},
		{"a second one joins", 100, 1, 2, 0, 25},
		{"the other one leaves", 100, 2, 1, 0, 25},
	} {
		a := ratelimit.NewAgent(ratelimit.Config{})
		a.Cluster(t0.Add(-10*time.Second), tt.before, 0)
		a.Cluster(t0, tt.before, 0)
		a.Cluster(t0, tt.after, 0)
		if got := reserve(a, t0.Add(tt.at), tt.limit); got != tt.want {
			t.Errorf("%s: %d are reserved, want %d", tt.name, got, tt.want)
		}
	}
	// One that joins does not know that there were two, who go on with 56 each for a moment: 3 × 37 are less.
	third := ratelimit.NewAgent(ratelimit.Config{})
	third.Cluster(t0, 3, 2)
	if got := reserve(third, t0.Add(500*time.Millisecond), 450); got < 2*56 {
		t.Errorf("the third one of a limit of 450 has %d reserved, want at least 112", got)
	}
}

// TestCreditClockSetBack: what was taken of a second is not taken again when it comes
// again, unless that is long after.
func TestCreditClockSetBack(t *testing.T) {
	for _, tt := range []struct {
		back time.Duration
		want []int // tokens given back, in the second that comes again and in the next
	}{
		{3 * time.Second, []int{0, 0}},
		{time.Hour, []int{0, 12}},
	} {
		a := ratelimit.NewAgent(ratelimit.Config{})
		a.Cluster(t0.Add(-2*time.Hour), 2, 0)
		pool := map[poolKey]int{}
		a.Recalled(ms(500), "u", get(100)[0], t0.Unix(), 0, t0.Unix()+30)
		exchange(a, ms(500), pool)
		var got []int
		for i := range 2 {
			at := ms(500 + 1000*i).Add(-tt.back)
			a.Tick(at)
			a.Recalled(at, "u", get(100)[0], at.Unix(), 0, at.Unix()+30)
			back := 0
			for _, ask := range exchange(a, at, pool) {
				back += ask.Back
			}
			got = append(got, back)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("set back by %v (-want +got):\n%s", tt.back, diff)
		}
	}
}
