package limits_test

import (
	"slices"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func mustParse(t testing.TB, source string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits.yaml", []byte(source))
	if err != nil {
		t.Fatalf("Parse(%q) = %v", source, err)
	}
	return set
}

func perSecond(class string, n int) limits.Rate { return limits.Rate{Class: class, Max: n} }

func TestAppendRates(t *testing.T) {
	set := mustParse(t, `
version: 1
default_tier: both
tiers:
  both: {requests: {PUT: 50, GET: 100, "*": 200}}
  own: {requests: {PUT: 50, GET: 100}}
  all: {requests: {"*": 200}}
  none: {concurrent: 10}
`)
	get, put, all := perSecond("GET", 100), perSecond("PUT", 50), perSecond("*", 200)
	for _, tt := range []struct {
		name, tier, class string
		want              []limits.Rate
	}{
		{"own class then all", "both", "GET", []limits.Rate{get, all}},
		{"last class then all", "both", "PUT", []limits.Rate{put, all}},
		{"class without a limit counts against all", "both", "DELETE", []limits.Rate{all}},
		{"unknown class counts against all", "both", "LIST", []limits.Rate{all}},
		{"own class alone", "own", "PUT", []limits.Rate{put}},
		{"class without a limit and no all", "own", "DELETE", nil},
		{"only all", "all", "GET", []limits.Rate{all}},
		{"nothing limited", "none", "GET", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, _ := set.TierLimits(tt.tier)
			got := l.AppendRates(nil, tt.class, "")
			if !slices.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("AppendRates(%q) of %s = %v, want %v", tt.class, tt.tier, got, tt.want)
			}
			room := make([]limits.Rate, 0, limits.MaxRates)
			if n := testing.AllocsPerRun(10, func() { l.AppendRates(room, tt.class, "") }); n != 0 {
				t.Errorf("AppendRates(%q) allocates %v times, want 0", tt.class, n)
			}
		})
	}
	t.Run("zero Limits", func(t *testing.T) {
		if got := new(limits.Limits).AppendRates(nil, "GET", "LIST"); got != nil {
			t.Errorf("AppendRates(GET, LIST) = %v, want nil", got)
		}
	})
}

func TestEveryClassCanBeLimited(t *testing.T) {
	if classes := limits.BuiltinClasses(); !slices.IsSorted(classes) {
		t.Errorf("BuiltinClasses() = %v, want them sorted", classes)
	}
	set := mustParse(t, "version: 1\ndefault_tier: a\ntiers: {a: {requests: {GET: 1, HEAD: 2, PUT: 3, POST: 4, DELETE: 5, PATCH: 6, OPTIONS: 7, OTHER: 8, '*': 9}}}")
	for i, class := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "OTHER"} {
		want := []limits.Rate{perSecond(class, i+1), perSecond("*", 9)}
		if got := set.User("x").AppendRates(nil, class, ""); !slices.Equal(got, want) {
			t.Errorf("AppendRates(%s) = %v, want %v", class, got, want)
		}
	}
}
