package terms

import (
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func TestEnds(t *testing.T) {
	set, err := limitfile.Parse("limits.yaml", []byte(`version: 1
default_tier: free
tiers: {free: {concurrent: 5}, pro: {concurrent: 50}}
users:
  never: pro
  in tier: {tier: pro, concurrent: 7, until: 2027-01-01}
  in another: {tier: pro, until: 2027-01-01T12:00:00.5+01:00, then: free}
  long ago: {concurrent: 7, until: 2001-01-01}
  nothing changes: {tier: pro, concurrent: 50, until: 2029-01-01}
  "pat*": {tier: pro, until: 2030-01-01, then: free}
`))
	testkit.Must(t, err)
	e := NewEnds(set)
	for _, tt := range []struct{ user, want string }{
		{"never", "never"},
		{"in tier", "2027-01-01T00:00:00Z, then like everybody in tier pro"},
		{"in another", "2027-01-01T11:00:00.5Z, then like everybody in tier free"},
		{"long ago", "2001-01-01T00:00:00Z, then like everybody in tier free"},
		{"nothing changes", "never"},
		{"pat*", "2030-01-01T00:00:00Z, then like everybody in tier free"},
		{"pattern", "2030-01-01T00:00:00Z, then like everybody in tier free"},
		{"not named", "never"},
	} {
		if got := e.EndOf(limits.Key(tt.user)).String(); got != tt.want {
			t.Errorf("of(%q) = %s, want %s", tt.user, got, tt.want)
		}
	}
}
