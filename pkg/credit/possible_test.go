package credit

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func TestPossible(t *testing.T) {
	for _, tt := range []struct {
		tier      string
		instances int
		want      bool
	}{
		{"{}", 1, true},
		{`{requests: {GET: 0, PUT: 10}}`, 1, false},
		{`{concurrent: {limit: 50, except: [GET]}}`, 1, false},
		{"{}", 1000, true},
		{`{requests: {GET: 10, "*": 20}, concurrent: 5}`, 1, true},
		{`{requests: {GET: 1}}`, 1, true},
		{`{requests: {GET: 10, "*": 20}, concurrent: 5}`, 3, true},
		{`{requests: {GET: 10, "*": 20}, concurrent: 5}`, 4, false}, // of the places
		{`{requests: {GET: 10}}`, 6, true},
		{`{requests: {GET: 10}}`, 7, false},
		{`{requests: {GET: {second: 10, minute: 100}}}`, 1, false},
		{`{requests: {GET: {second: 10, burst: 5}}}`, 1, false},
		{`{bandwidth: {down: 1MB}}`, 1, true},
		{`{requests: {GET: 10}, bandwidth: {down: 1MB, up: 1MB}}`, 6, true},
		{`{requests: {GET: 10}, mode: dry-run}`, 1, false},
		{`{concurrent: 10, mode: dry-run}`, 1, false},
		{`{concurrent: 10, over_limit: {concurrent: wait 2s}}`, 1, false},
		{`{requests: {GET: 10}, priority: 1}`, 1, false},
	} {
		if got := Possible(limitsOf(t, tt.tier), tt.instances); got != tt.want {
			t.Errorf("Possible(%s, %d) = %v, want %v", tt.tier, tt.instances, got, tt.want)
		}
	}
}

// limitsOf is what a user of a tier has.
func limitsOf(t *testing.T, tier string) *limits.Limits {
	t.Helper()
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: a\ntiers: {a: "+tier+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return set.User("alice")
}
