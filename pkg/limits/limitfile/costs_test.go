package limitfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestParseCost(t *testing.T) {
	const limitForm, estimateForm = "must be a whole number, one with k, M or G, or unlimited, got ", "must be a whole number from 0 (nothing), or one with k, M or G, got "
	for _, tt := range []struct {
		in       string
		want     int64
		limit    string // the error as a limit
		estimate string // and as an estimate
	}{
		{"1", 1, "", ""},
		{"-1", 0, "must be 0 or more, got -1; write unlimited to lift the limit", "must be 0 or more, got -1"},
		{"20000", 20_000, "", ""},
		{"20k", 20_000, "", ""},
		{"1.5M", 1_500_000, "", ""},
		{"1.50M", 1_500_000, "", ""},
		{"1.123456M", 1_123_456, "", ""},
		{"2.000000001G", 2_000_000_001, "", ""},
		{"1000G", limits.MaxCost, "", ""},
		{"1000000000000", limits.MaxCost, "", ""},
		{"1000000000001", 0, "must be at most 1000G, got 1000000000001", "must be at most 1000G, got 1000000000001"},
		{"1000.000000001G", 0, `must be at most 1000G, got "1000.000000001G"`, `must be at most 1000G, got "1000.000000001G"`},
		{"99999999999999999999k", 0, "must be at most 1000G, got 99999999999999999999k", "must be at most 1000G, got 99999999999999999999k"},
		{"1.2345k", 0, `must be a whole number, got "1.2345k"`, `must be a whole number, got "1.2345k"`},
		{"1.5", 0, `must be a whole number, got "1.5"`, `must be a whole number, got "1.5"`},
		{"0.5M", 0, `must not begin with 0, got "0.5M"`, `must not begin with 0, got "0.5M"`},
		{"007", 0, "must not begin with 0, got 007", "must not begin with 0, got 007"},
		{"0k", 0, "must not begin with 0, got 0k", "must not begin with 0, got 0k"},
		{"20K", 0, `has the unknown suffix "K"; did you mean k? (valid: k, M, G)`, `has the unknown suffix "K"; did you mean k? (valid: k, M, G)`},
		{"5T", 0, `has the unknown suffix "T" (valid: k, M, G)`, `has the unknown suffix "T" (valid: k, M, G)`},
		{"20 k", 0, `must have no blank before k, got "20 k"; write 20k`, `must have no blank before k, got "20 k"; write 20k`},
		{"20_000", 0, limitForm + `"20_000"`, estimateForm + `"20_000"`},
		{"1,5M", 0, limitForm + `"1,5M"`, estimateForm + `"1,5M"`},
		{"1.k", 0, limitForm + `"1.k"`, estimateForm + `"1.k"`},
		{".5M", 0, limitForm + `".5M"`, estimateForm + `".5M"`},
		{"1.2.3M", 0, limitForm + `"1.2.3M"`, estimateForm + `"1.2.3M"`},
		{"", 0, limitForm + `""`, estimateForm + `""`},
		{"-", 0, limitForm + `"-"`, estimateForm + `"-"`},
		{"k", 0, limitForm + `"k"`, estimateForm + `"k"`},
		{"+5", 0, limitForm + `"+5"`, estimateForm + `"+5"`},
		{"many", 0, limitForm + `"many"`, estimateForm + `"many"`},
	} {
		for _, as := range []struct {
			what, err string
			parse     func(string) (int64, error)
		}{{"limit", tt.limit, amountScale.parse}, {"estimate", tt.estimate, estimateScale.parse}} {
			got, err := as.parse(tt.in)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != tt.want && as.err == "" || text != as.err {
				t.Errorf("%q as a %s = %d, %q, want %d, %q", tt.in, as.what, got, text, tt.want, as.err)
			}
		}
	}
}

func FuzzCost(f *testing.F) {
	for _, s := range []string{"0", "1", "20k", "1.5M", "1000G", "1000000000001", "0.5k", "-3", "1.2345k", "1..2k", "k", "", "9223372036854775808G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := estimateScale.parse(s)
		limit, limitErr := amountScale.parse(s)
		switch {
		case err != nil && (n != 0 || limitErr == nil):
			t.Errorf("%q = %d, %v, and as a limit %d, %v", s, n, err, limit, limitErr)
		case err == nil && (n < 0 || n > limits.MaxCost):
			t.Errorf("%q = %d, want 0 to MaxCost", s, n)
		case err == nil && limit != n:
			t.Errorf("%q = %d, and as a limit %d, %v", s, n, limit, limitErr)
		}
	})
}

func TestParseJSONPath(t *testing.T) {
	for in, want := range map[string]bool{
		"max_tokens": true, "usage.total_tokens": true, "a.b.c.d.e.f.g.0-x": true, "a.b.c.d.e.f.g.h.i": false,
		strings.Repeat("x", maxJSONPath): true, strings.Repeat("x", maxJSONPath+1): false,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "a b": false, "a[0]": false, "ä": false, "$.a": false, "a\n": false,
	} {
		if _, err := parseJSONPath(in); (err == nil) != want {
			t.Errorf("parseJSONPath(%q) = %v, want an error: %v", in, err, !want)
		}
	}
}

func TestParseHeaderName(t *testing.T) {
	for in, want := range map[string]bool{"X-Cost": true, "content-length": true, "x": true, "": false, "a b": false, "X:": false, "Connection": false, "TRANSFER-ENCODING": false, "te": false} {
		if _, err := parseHeaderName(in); (err == nil) != want {
			t.Errorf("parseHeaderName(%q) = %v, want an error: %v", in, err, !want)
		}
	}
}

func TestParseTimeOfDay(t *testing.T) {
	for in, want := range map[string]time.Duration{"00:00": 0, "06:00": 6 * time.Hour, "23:59": 24*time.Hour - time.Minute} {
		if got, err := parseTimeOfDay(in); time.Duration(got) != want || err != nil {
			t.Errorf("parseTimeOfDay(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "6:00", "24:00", "06:60", "06:00:00", "0600", "06:00Z"} {
		if got, err := parseTimeOfDay(in); err == nil {
			t.Errorf("parseTimeOfDay(%q) = %v, want an error", in, got)
		}
	}
}

const costUnitsHead = "version: 1\ndefault_tier: free\ncosts: {tokens: {estimate: {default: 10}}, pages: {actual: {header: X-Pages}}}\n"

// Users who have equal limits share them, wherever each part is from.
func TestEqualCostsAreShared(t *testing.T) {
	set := mustParse(t, costUnitsHead+`tiers: {free: {costs: {tokens: {minute: 20k, day: 500k}, pages: {hour: 7}}}, trial: {mode: dry-run, costs: {tokens: {day: 9k}}}}
users:
  b: {costs: {tokens: {day: 500k, minute: 20000}}}
  c: {tier: trial, costs: {tokens: {day: 9000, mode: dry-run}}}
  d: {costs: {tokens: {day: 500000}}}
  e: {costs: {tokens: {day: 500k, mode: enforce}}}
  f: {costs: {tokens: {day: 500k, mode: dry-run}}}
`)
	free, _ := set.TierLimits("free")
	trial, _ := set.TierLimits("trial")
	if set.User("b") != free || set.User("c") != trial || set.User("d") != set.User("e") {
		t.Error("users with equal limits of costs have limits of their own, want the same ones")
	}
	if set.User("d") == free || set.User("d") == set.User("f") {
		t.Error("users with other limits of costs share them")
	}
}

// The Limits of who has no limit of costs say so, and those of who has one.
func TestLimitsCosts(t *testing.T) {
	set := mustParse(t, costUnitsHead+"tiers: {free: {}, paid: {costs: {tokens: {day: 10}}}, off: {mode: off, costs: {tokens: {day: 10}}}}\n")
	for name, want := range map[string]bool{"free": false, "paid": true, "off": false} {
		l, _ := set.TierLimits(name)
		if got := l.LimitsCosts(); got != want || l.Unlimited() == want || len(slices.Collect(l.Costs())) > 0 != want {
			t.Errorf("tier %s: LimitsCosts() = %v, Unlimited() = %v, want %v and the contrary", name, got, l.Unlimited(), want)
		}
	}
}

func TestOriginOfCosts(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
costs:
  tokens: {estimate: {default: 10}}
  pages: {estimate: {default: 0}, actual: {header: X-Pages}}
tiers:
  free:
    costs:
      tokens:
        minute: 20k
        day: 500k
        mode: dry-run
      pages: {hour: 7}
users:
  bob:
    costs:
      tokens: {day: 1M}
  carol: {costs: {tokens: unlimited}}
  dora: {costs: unlimited}
`)
	free := map[string]int{"costs.tokens/minute": 10, "costs.tokens/day": 11, "costs.tokens.mode": 12, "costs.pages/hour": 13}
	for _, tt := range []struct {
		user string
		want map[string]int // lines by field
	}{
		{"nobody", free},
		{"bob", map[string]int{"costs.tokens/day": 17, "costs.pages/hour": 13}},
		{"carol", map[string]int{"costs.tokens": 18, "costs.pages/hour": 13}},
		{"dora", map[string]int{"costs": 19}},
	} {
		if diff := cmp.Diff(tt.want, linesOf(set, tt.user)); diff != "" {
			t.Errorf("Origin of %q (-want +got):\n%s", tt.user, diff)
		}
	}
}

// What is set by hand is read as the file is: over the tier's limits, unit by unit.
func TestOverridesOfCosts(t *testing.T) {
	set := mustParse(t, costUnitsHead+"tiers: {free: {costs: {tokens: {minute: 20k, day: 500k}, pages: {hour: 7}}}}\n")
	for _, tt := range []struct{ limits, want, err string }{
		{`{"costs":{"tokens":{"day":"1M"}}}`, "pages/hour 7, tokens/day 1000000", ""},
		{`{"costs":{"tokens":{"day":1000000,"minute":"unlimited"}}}`, "pages/hour 7, tokens/day 1000000", ""},
		{`{"costs":{"tokens":"unlimited"}}`, "pages/hour 7", ""},
		{`{"costs":"unlimited"}`, "", ""},
		{`{"costs":{"tokens":{"day":5}}}`, "", "limits: costs.tokens.day must be at least 10, got 5: a request is estimated at so much that does not say what it costs (costs.tokens.estimate.default), and could never be admitted"},
		{`{"costs":{"words":{"day":5}}}`, "", `limits: costs: unknown unit "words" (valid: pages, tokens)`},
	} {
		o := limits.Override{User: "bob", Limits: []byte(tt.limits), Reason: "a test", Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)}
		with, refused := WithOverrides(set, []limits.Override{o})
		if len(refused) > 0 != (tt.err != "") || len(refused) > 0 && refused[0].Why.Error() != tt.err {
			t.Errorf("%s: refused %v, want %q", tt.limits, refused, tt.err)
			continue
		}
		if tt.err != "" {
			continue
		}
		var got []string
		for c := range with.User("bob").Costs() {
			got = append(got, fmt.Sprintf("%s %d", c.Name(), c.Max))
		}
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%s: bob has %q, want %s", tt.limits, got, tt.want)
		}
	}
}
