package limitfile

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestEqualLimitsAreShared(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
tiers: {free: {concurrent: 1}, trial: {mode: dry-run, requests: {GET: 5}}}
users:
  a: {tier: free, concurrent: 1}
  b: {tier: trial, requests: {GET: {second: 5, mode: dry-run}}}
  c: {tier: free, concurrent: 9, comment: x}
  d: {tier: free, concurrent: 9, mode: enforce}
`)
	free, _ := set.TierLimits("free")
	trial, _ := set.TierLimits("trial")
	for _, tt := range []struct {
		key  string
		want *limits.Limits
	}{{"a", free}, {"b", trial}, {"d", set.User("c")}} {
		if got := set.User(tt.key); got != tt.want {
			t.Errorf("User(%q) = %p, want the same as %p: %+v", tt.key, got, tt.want, got)
		}
	}
	if set.FromFile("c") != set.FromFile("d") {
		t.Error("users of whom the file says the same have entries of their own, want one")
	}
}
