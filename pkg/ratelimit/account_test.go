package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestAccount has histories of one user with 10 a second and a burst of 20.
func TestAccount(t *testing.T) {
	type step struct {
		at                        int // ms
		second                    int64
		debt, back, need, ahead   int
		tokens, total, limit, was int // was: the agents that share the key
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"who was not seen for long has saved all", []step{
			{at: 100, second: 0, need: 50, tokens: 30, total: 30, limit: 30},
			{at: 200, second: 0, need: 1, total: 30, limit: 30},
			{at: 1100, second: 1, need: 50, tokens: 10, total: 10, limit: 10},
		}},
		{"what is left of a second is saved", []step{
			{at: 100, second: 0, need: 30, tokens: 30, total: 30, limit: 30},
			{at: 1100, second: 1, need: 4, tokens: 4, total: 4, limit: 10},
			{at: 2100, second: 2, need: 50, tokens: 16, total: 16, limit: 16},
			{at: 3100, second: 3, need: 50, tokens: 10, total: 10, limit: 10},
		}},
		{"seconds without a visit as well, up to the burst", []step{
			{at: 100, second: 0, need: 30, tokens: 30, total: 30, limit: 30},
			{at: 2100, second: 2, need: 50, tokens: 20, total: 20, limit: 20},
			{at: 9100, second: 9, need: 50, tokens: 30, total: 30, limit: 30},
			{at: 3_600_000, second: 3600, need: 50, tokens: 30, total: 30, limit: 30},
		}},
		{"five seconds later, with a little missing", []step{
			{at: 100, second: 0, debt: 45, total: 45, limit: 30},
			{at: 1100, second: 1, debt: 10, total: 10, limit: 10},
			{at: 2100, second: 2, debt: 10, total: 10, limit: 10},
			{at: 3100, second: 3, need: 50, tokens: 10, total: 10, limit: 10},
		}},
		{"the next second has no credit until it begins", []step{
			{at: 950, second: 1, need: 50, tokens: 10, total: 10, limit: 10},
			{at: 980, second: 0, need: 5, tokens: 5, total: 5, limit: 30},
			{at: 1100, second: 1, need: 50, tokens: 20, total: 30, limit: 30},
		}},
		{"a second begins 10 ms early", []step{
			{at: 990, second: 1, need: 50, tokens: 30, total: 30, limit: 30},
			{at: 995, second: 0, need: 50, tokens: 10, total: 10, limit: 10}, // what the next has left of it
			{at: 996, second: 1, need: 1, total: 30, limit: 30},
			{at: 1500, second: 1, need: 1, total: 30, limit: 30},
			{at: 2100, second: 2, need: 50, tokens: 10, total: 10, limit: 10},
		}},
		{"tokens of the second before come back", []step{
			{at: 100, second: 0, need: 30, tokens: 30, total: 30, limit: 30},
			{at: 1100, second: 1, need: 50, tokens: 10, total: 10, limit: 10},
			{at: 1110, second: 0, back: 6, total: 24, limit: 30},
			{at: 1120, second: 1, need: 50, tokens: 6, total: 16, limit: 16},
		}},
		{"older ones do not, and older debts lower the credit", []step{
			{at: 100, second: 0, need: 20, tokens: 20, total: 20, limit: 30},
			{at: 2100, second: 2, need: 2, tokens: 2, total: 2, limit: 30},
			{at: 2200, second: 0, back: 6},
			{at: 2300, second: 0, debt: 13, need: 9},
			{at: 2400, second: 2, need: 50, tokens: 18, total: 20, limit: 20},
		}},
		{"a second of the far future is none", []step{
			{at: 100, second: 2, need: 5},
			{at: 200, second: 0, need: 50, tokens: 30, total: 30, limit: 30},
		}},
		{"ahead of need only half of an even part", []step{
			{at: 100, second: 0, need: 10, ahead: 50, was: 2, tokens: 15, total: 15, limit: 30},
		}},
		{"a clock that was set back begins with nothing saved", []step{
			{at: 60_000, second: 60, need: 1, tokens: 1, total: 1, limit: 30},
			{at: 0, second: 0, need: 50, tokens: 10, total: 10, limit: 10},
			{at: 1000, second: 1, need: 50, tokens: 10, total: 10, limit: 10},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var a ratelimit.Account
			for i, s := range tt.steps {
				ask := ratelimit.Ask{WindowStart: t0.Unix() + s.second, Limit: 10, Burst: 20, Debt: s.debt, Back: s.back, Need: s.need, Ahead: s.ahead, Instances: s.was}
				var g ratelimit.Grant
				a, g = a.Take(ms(s.at), ask)
				if want := (ratelimit.Grant{Tokens: s.tokens, Total: s.total, Limit: s.limit}); g != want {
					t.Errorf("step %d: Take(%+v) = %+v, want %+v", i, ask, g, want)
				}
			}
		})
	}
}

// TestAccountSpans: whatever is asked for of whichever seconds, n seconds get n
// limits and the burst at most; and one who asks for all that there is gets it all.
func TestAccountSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		burst := rapid.IntRange(1, 100).Draw(t, "burst")
		var a ratelimit.Account
		at := t0
		got := map[int64]int{}
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			at = at.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 200, 600, 1000, 4000, 11_000}).Draw(t, "gap ms")) * time.Millisecond)
			ask := ratelimit.Ask{
				WindowStart: at.Unix() + rapid.Int64Range(-2, 2).Draw(t, "second"), Limit: limit, Burst: burst,
				Need: rapid.IntRange(0, 60).Draw(t, "need"), Ahead: rapid.IntRange(0, 60).Draw(t, "ahead"),
				Instances: rapid.IntRange(1, 3).Draw(t, "instances"),
			}
			ask.Back = min(got[ask.WindowStart], rapid.SampledFrom([]int{0, 0, 3, 60}).Draw(t, "back"))
			late := ask.WindowStart < at.Unix()-1
			var g ratelimit.Grant
			a, g = a.Take(at, ask)
			if g.Tokens < 0 || g.Tokens > ask.Need+ask.Ahead {
				t.Fatalf("Take(%+v) = %+v, want at most what was asked for", ask, g)
			}
			got[ask.WindowStart] += g.Tokens
			if !late {
				got[ask.WindowStart] -= ask.Back
			}
		}
		for from := t0.Unix() - 3; from <= at.Unix()+3; from++ {
			sum := 0
			for to := from; to <= at.Unix()+3; to++ {
				sum += got[to]
				if most := int(to-from+1)*limit + burst; sum > most {
					t.Fatalf("%d seconds got %d, want at most %d", to-from+1, sum, most)
				}
			}
		}

		// Then everything, in each second after.
		credit, last := -1, at.Unix()
		for i := range int64(4) {
			now := time.Unix(last+3+i, 0)
			var g ratelimit.Grant
			a, g = a.Take(now, ratelimit.Ask{WindowStart: now.Unix(), Limit: limit, Burst: burst, Need: 1000})
			if credit < 0 {
				credit = g.Total - limit
			}
			if want := limit + credit; g.Total != want || g.Limit != want || credit < 0 || credit > burst {
				t.Fatalf("second %d after got %d of %d, want %d", i, g.Total, g.Limit, want)
			}
			credit = 0
		}
	})
}
