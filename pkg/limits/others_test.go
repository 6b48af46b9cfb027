package limits_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const othersFile = `version: 1
default_tier: free
anonymous_tier: visitor
tiers:
  free: {requests: {GET: 10}}
  visitor: {requests: {GET: 2}}
  team: {requests: {GET: 50}}
  open: {}
users: {alice: free, "team-*": team, "*-bot": {tier: open, concurrent: 7}, "anonymous": open}
exempt: {users: [root, "probe-*"]}
`

func TestOthers(t *testing.T) {
	s := mustParse(t, othersFile)
	s, refused := limitfile.WithOverrides(s, []limits.Override{{User: "byhand", Limits: []byte(`"team"`), Reason: "a test", Until: time.Unix(4_000_000_000, 0)}})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	for _, tt := range []struct {
		key    string
		madeUp bool
		others string // if it is
		tier   string // of others
	}{
		{"alice", false, "", ""},
		{"byhand", false, "", ""},
		{"root", false, "", ""},
		{"probe-7", false, "", ""},
		{"anonymous", false, "", ""},
		{"zed", true, "~others", "free"},
		{"~" + strings.Repeat("A", 64), true, "~others", "free"},
		{"team-7", true, "~others:team-*", "team"},
		{"a-bot", true, "~others:*-bot", "open"},
		{"192.0.2.7", true, "~others:anonymous", "visitor"},
		{"2001:db8::", true, "~others:anonymous", "visitor"},
		{"~", false, "", ""},
		{"", false, "", ""},
		{limits.ExemptKey, false, "", ""},
		{limits.OthersKey, false, "", ""},
		{"~others:team-*", false, "", ""},
		{"~others:gone-*", false, "", ""},
	} {
		if got := s.MadeUp(tt.key); got != tt.madeUp {
			t.Errorf("MadeUp(%q) = %v, want %v", tt.key, got, tt.madeUp)
		}
		if !tt.madeUp {
			continue
		}
		got := s.Others(tt.key)
		if got != tt.others {
			t.Errorf("Others(%q) = %q, want %q", tt.key, got, tt.others)
		}
		if of := s.User(got); of != s.User(tt.key) || of.Tier != tt.tier {
			t.Errorf("User(%q) = %+v, want the limits of %q, which are %+v", got, of, tt.key, s.User(tt.key))
		}
		if !s.NamesUser(got) || !limits.IsOthers(got) || limits.IsOthers(tt.key) {
			t.Errorf("Known(%q) = %v, IsOthers = %v, IsOthers(%q) = %v, want true, true, false", got, s.NamesUser(got), limits.IsOthers(got), tt.key, limits.IsOthers(tt.key))
		}
	}
	if got := s.User("~others:gone-*").Tier; got != "free" {
		t.Errorf("the tier of a pattern's others when it is gone is %q, want the default one", got)
	}
}

// The key that names share is one that HAProxy's tables hold, is nobody's own, and
// has the limits that the name has, whatever the name and the patterns.
func TestOthersProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[a-c*]{0,40}(\*[ab]){0,60}\*`).Draw(t, "pattern")
		s, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: a\ntiers: {a: {}, b: {concurrent: 1}}\nusers: {'"+pattern+"': b}\n"))
		if err != nil {
			return // not a pattern
		}
		key := limits.Key(rapid.StringMatching(`[abc*~:]{1,120}`).Draw(t, "name"))
		if !s.MadeUp(key) {
			if key != pattern {
				t.Fatalf("MadeUp(%q) = false", key)
			}
			return
		}
		others := s.Others(key)
		if len(others) > limits.MaxOwnKey || limits.Key(others) == others || s.MadeUp(others) {
			t.Fatalf("Others(%q) = %q: too long, somebody's own, or made up itself", key, others)
		}
		if s.User(others) != s.User(key) {
			t.Fatalf("User(%q) = %v, want %v", others, s.User(others), s.User(key))
		}
	})
}

func TestUnlimited(t *testing.T) {
	s := mustParse(t, `version: 1
default_tier: none
tiers: {none: {jobs: {total: 1}}, rate: {requests: {"*": {hour: 1}}}, slots: {concurrent: 1}, down: {bandwidth: {down: 1}}, up: {bandwidth: {up: 1}}}
`)
	for _, name := range s.TierNames() {
		if l, _ := s.TierLimits(name); l.Unlimited() != (name == "none") {
			t.Errorf("Unlimited() of %s = %v", name, l.Unlimited())
		}
	}
}
