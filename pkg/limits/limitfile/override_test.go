package limitfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// said is what one mapping of a file says: of a tier, a user. A nil pointer
// says nothing.
type said struct {
	mode       *limits.Mode
	get, all   *saidRate
	concurrent *saidLimit
}

type saidRate struct {
	second, burst, minute int // 0: not limited
	mode                  limits.Mode
}

type saidLimit struct {
	limit int
	mode  limits.Mode
}

func (s said) yaml(more ...string) string {
	var fields []string
	if s.mode != nil {
		fields = append(fields, "mode: "+s.mode.String())
	}
	var rates []string
	for _, r := range []struct {
		class string
		said  *saidRate
	}{{"GET", s.get}, {`"*"`, s.all}} {
		if r.said != nil {
			rates = append(rates, r.class+": "+r.said.yaml())
		}
	}
	if rates != nil {
		fields = append(fields, "requests: {"+strings.Join(rates, ", ")+"}")
	}
	if c := s.concurrent; c != nil {
		fields = append(fields, fmt.Sprintf("concurrent: {limit: %s, mode: %v}", countText(c.limit), c.mode))
	}
	return "{" + strings.Join(append(fields, more...), ", ") + "}"
}

func (r saidRate) yaml() string {
	text := fmt.Sprintf("{second: %s, minute: %s, mode: %v", countText(r.second), countText(r.minute), r.mode)
	if r.burst > 0 {
		text += fmt.Sprintf(", burst: %d", r.burst)
	}
	return text + "}"
}

func countText(n int) string {
	if n == 0 {
		return unlimited
	}
	return fmt.Sprint(n)
}

// over is what the later of two mappings leaves of both: it replaces whole entries.
func (s said) over(base said) said {
	if s.mode == nil {
		s.mode = base.mode
	}
	if s.get == nil {
		s.get = base.get
	}
	if s.all == nil {
		s.all = base.all
	}
	if s.concurrent == nil {
		s.concurrent = base.concurrent
	}
	return s
}

// limits are what it comes to in a file of a mode, as printed.
func (s said) limits(file limits.Mode) string {
	scope := file
	if s.mode != nil && *s.mode > scope {
		scope = *s.mode
	}
	var all []string
	add := func(name string, n, burst int, mode limits.Mode) {
		if mode = max(mode, scope); n > 0 && mode != limits.Off {
			all = append(all, fmt.Sprint(name, " ", n, " ", burst, " ", mode))
		}
	}
	for _, r := range []struct {
		class string
		said  *saidRate
	}{{"*", s.all}, {"GET", s.get}} {
		if r.said != nil {
			add(r.class, r.said.second, r.said.burst, r.said.mode)
			add(r.class+"/minute", r.said.minute, 0, r.said.mode)
		}
	}
	if s.concurrent != nil {
		add("concurrent", s.concurrent.limit, 0, s.concurrent.mode)
	}
	return strings.Join(all, "\n")
}

func shownLimits(l *limits.Limits) string {
	var all []string
	for r := range l.Rates() {
		all = append(all, fmt.Sprint(r.Name(), " ", r.Max, " ", r.Burst, " ", r.Mode))
	}
	if l.Concurrent > 0 {
		all = append(all, fmt.Sprint("concurrent ", l.Concurrent, " 0 ", l.ConcurrentMode))
	}
	return strings.Join(all, "\n")
}

// TestOverrides compares what a file comes to with what its parts say, laid over
// each other: the tier and the user.
func TestOverrides(t *testing.T) {
	mode := rapid.SampledFrom([]limits.Mode{limits.Enforce, limits.DryRun, limits.Off})
	limit := rapid.IntRange(0, 3)
	anything := rapid.Custom(func(t *rapid.T) said {
		var s said
		has := func(name string) bool { return rapid.Bool().Draw(t, name) }
		rate := func(name string) *saidRate {
			if !has(name) {
				return nil
			}
			r := saidRate{second: limit.Draw(t, "second"), minute: limit.Draw(t, "minute"), mode: mode.Draw(t, "own mode")}
			if r.second > 0 {
				r.burst = limit.Draw(t, "burst")
			}
			return &r
		}
		if has("mode") {
			m := mode.Draw(t, "mode")
			s.mode = &m
		}
		s.get, s.all = rate("GET"), rate("*")
		if has("concurrent") {
			s.concurrent = &saidLimit{limit.Draw(t, "limit"), mode.Draw(t, "own mode")}
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		file := mode.Draw(t, "mode of the file")
		tier, user := anything.Draw(t, "tier"), anything.Draw(t, "user")
		source := fmt.Sprintf("version: 1\nmode: %v\ndefault_tier: a\ntiers:\n  a: %s\nusers:\n  u: %s\n  v: %s\n", file,
			tier.yaml(), user.yaml("tier: a"), user.yaml())
		set, err := Parse("f", []byte(source))
		if err != nil {
			t.Fatalf("Parse(%s) = %v", source, err)
		}
		for _, tt := range []struct {
			key  string
			want said
		}{
			{"nobody", tier},
			{"u", user.over(tier)},
			{"v", user.over(tier)},
		} {
			l := set.User(tt.key)
			if got, want := shownLimits(l), tt.want.limits(file); got != want {
				t.Fatalf("%s\nUser(%q) is\n%s\nwant\n%s", source, tt.key, got, want)
			}
			if off := l.OffFields(); !slices.IsSorted(off) || len(off) > 5 || file == limits.Off && shownLimits(l) != "" {
				t.Fatalf("%s\nUser(%q) has Off() %q", source, tt.key, off)
			}
		}
	})
}

// TestOffTellsWhatIsOff: every limit is either among the limits or in Off.
func TestOffTellsWhatIsOff(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: a
tiers:
  a: {mode: off, requests: {GET: {second: 1, minute: 2}, "*": 3}, concurrent: 4, bandwidth: {down: 5, up: 6, default_share: 1}}
  b: {requests: {GET: {minute: 2, mode: off}, PUT: 1}, concurrent: {limit: 4, mode: off}, bandwidth: {up: 6}}
  c: {mode: off, concurrent: unlimited, priority: 3}
`)
	for tier, want := range map[string]string{
		"a": "bandwidth.down bandwidth.up concurrent requests.* requests.GET requests.GET/minute",
		"b": "concurrent requests.GET/minute",
		"c": "",
	} {
		l, _ := set.TierLimits(tier)
		if got := strings.Join(l.OffFields(), " "); got != want {
			t.Errorf("Off() of tier %s = %s, want %s", tier, got, want)
		}
	}
}
