package limitfile

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const originFile = `version: 1
default_tier: free
tiers:
  free:
    requests: {GET: 10, "*": 20}
    concurrent: 5
  pro:
    requests: {GET: 100}
    bandwidth: {down: 10MiB, up: 5MiB}
  none: {requests: unlimited}
users:
  alice: pro
  bob:
    tier: pro
    requests: {GET: 200}
    bandwidth: unlimited
  carol: {concurrent: 7}
  "~d": pro
  erin: {tier: none, requests: {PUT: 1}}
  frank: {}
`

func TestOrigin(t *testing.T) {
	set := mustParse(t, originFile)
	field := func(name string, line int, layer Layer) FieldOrigin {
		return FieldOrigin{Name: name, Line: line, File: "limits.yaml", Layer: layer}
	}
	pro := []FieldOrigin{field("bandwidth.down", 9, TierLayer), field("bandwidth.up", 9, TierLayer), field("requests.GET", 8, TierLayer)}
	free := []FieldOrigin{field("concurrent", 6, TierLayer), field("requests.*", 5, TierLayer), field("requests.GET", 5, TierLayer)}
	for _, tt := range []struct {
		name, user string
		want       Origin
	}{
		{"a tier's name", "alice", Origin{File: "limits.yaml", User: 12, Tier: 7, TierFrom: FromEntry, Fields: pro}},
		{"overrides hide what they name, all of it if unlimited", "bob", Origin{File: "limits.yaml", User: 13, Tier: 7, TierFrom: FromEntry,
			Fields: []FieldOrigin{field("bandwidth", 16, EntryLayer), field("requests.GET", 15, EntryLayer)}}},
		{"overrides to the default tier", "carol", Origin{File: "limits.yaml", User: 17, Tier: 4,
			Fields: []FieldOrigin{field("concurrent", 17, EntryLayer), field("requests.*", 5, TierLayer), field("requests.GET", 5, TierLayer)}}},
		{"a name that is not its own key", "~d", Origin{File: "limits.yaml", User: 18, Tier: 7, TierFrom: FromEntry, Fields: pro}},
		{"a class limited where the tier lifts all", "erin", Origin{File: "limits.yaml", User: 19, Tier: 10, TierFrom: FromEntry,
			Fields: []FieldOrigin{field("requests", 10, TierLayer), field("requests.PUT", 19, EntryLayer)}}},
		{"named without saying anything", "frank", Origin{File: "limits.yaml", User: 20, Tier: 4, Fields: free}},
		{"not named", "nobody", Origin{Tier: 4, Fields: free}},
		{"no name", "", Origin{Tier: 4, Fields: free}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, OriginOf(set, tt.user)); diff != "" {
				t.Errorf("Origin(%q) (-want +got):\n%s", tt.user, diff)
			}
		})
	}
}

func TestOriginField(t *testing.T) {
	o := Origin{Fields: []FieldOrigin{{Name: "concurrent", Line: 1}, {Name: "requests", Line: 2, Layer: EntryLayer}, {Name: "requests.GET", Line: 3, Layer: EntryLayer}}}
	for _, tt := range []struct {
		field string
		line  int // 0: nobody sets it
	}{
		{"concurrent", 1}, {"requests.GET", 3}, {"requests.PUT", 2}, {"requests", 2},
		{"bandwidth.up", 0}, {"GET", 0}, {"", 0},
	} {
		got, ok := o.FieldOrigin(tt.field)
		if got.Line != tt.line || ok != (tt.line > 0) {
			t.Errorf("Field(%q) = %v, %v, want line %d", tt.field, got, ok, tt.line)
		}
	}
}

// Of each limit that a user has, Origin finds the line that sets it; a limit that no line
// sets is none.
func TestOriginKnowsEveryLimit(t *testing.T) {
	var sets []*limits.Set
	for _, path := range glob(t, "testdata/good-*.yaml") {
		set, err := Load(path)
		testkit.Must(t, err)
		sets = append(sets, set)
	}
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SampledFrom(sets).Draw(t, "set")
		user := rapid.SampledFrom(append(slices.Collect(set.UserNames()), "nobody")).Draw(t, "user")
		l, o := set.User(limits.Key(user)), OriginOf(set, user)
		limited := map[string]bool{
			"concurrent": l.Concurrent > 0, "bandwidth.down": l.Bandwidth.Down > 0,
			"bandwidth.up": l.Bandwidth.Up > 0, "bandwidth.default_share": l.Bandwidth.DefaultShare > 0,
			"over_limit.concurrent": l.Wait > 0, "priority": l.Priority != 0,
		}
		for r := range l.Rates() {
			limited["requests."+r.Name()] = true
		}
		for c := range l.Costs() {
			limited["costs."+c.Name()] = true
		}
		for _, name := range l.OffFields() {
			limited[name] = true
		}
		for field, is := range limited {
			if f, ok := o.FieldOrigin(field); is && (!ok || f.Line < 1) {
				t.Errorf("user %q has a limit %s, and Field = %v, %v", user, field, f, ok)
			}
		}
		if (o.Tier < 1) != (o.TierFrom == FromExempt) {
			t.Errorf("user %q has the tier %s on line %d", user, l.Tier, o.Tier)
		}
	})
}

const originMore = `version: 1
mode: enforce
default_tier: free
anonymous_tier: guest
# nobody is exempt by chance
exempt:
  users:
    - probe
    - "mon-*"
tiers:
  free:
    comment: for all
    mode: dry-run
    requests:
      GET: {second: 10, burst: 5, minute: 100, mode: dry-run}
      PUT: {hour: 3}
    concurrent: {limit: 5, mode: off}
  guest: {concurrent: 1}
users:
  alice:
    comment: launch week
    until: 2026-12-01
    then: guest
    mode: enforce
    requests: {GET: {hour: 7}}
  "team-*": guest
  bob: {concurrent: 3}
unreadable: guest
`

func TestOriginOfMore(t *testing.T) {
	set := mustParse(t, originMore)
	const main = "limits.yaml"
	tier := func(name string, line int) FieldOrigin { return FieldOrigin{Name: name, Line: line, File: main} }
	own := func(name string, line int) FieldOrigin {
		return FieldOrigin{Name: name, Line: line, File: main, Layer: EntryLayer}
	}
	free := []FieldOrigin{tier("concurrent", 17), tier("concurrent.mode", 17), tier("mode", 13), tier("requests.GET", 15), tier("requests.GET.burst", 15),
		tier("requests.GET.mode", 15), tier("requests.GET/minute", 15), tier("requests.PUT/hour", 16)}
	until := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	alice := Origin{File: main, User: 20, Tier: 11, Comment: "launch week", Until: until, Then: "guest", FileMode: 2}
	aliceHas := func(fields ...FieldOrigin) Origin { o := alice; o.Fields = fields; return o }
	for _, tt := range []struct {
		name, user string
		at         time.Time
		want       Origin
	}{
		{"nobody", "zoe", time.Time{}, Origin{Tier: 11, FileMode: 2, Fields: free}},
		{"a whole entry hides the tier's", "alice", time.Time{}, aliceHas(tier("concurrent", 17), tier("concurrent.mode", 17), own("mode", 24),
			own("requests.GET/hour", 25), tier("requests.PUT/hour", 16))},
		{"expired", "alice", until, Origin{File: main, User: 20, Tier: 18, Comment: "launch week", Until: until, Then: "guest", Expired: true, TierFrom: FromEntry, FileMode: 2,
			Fields: []FieldOrigin{tier("concurrent", 18)}}},
		{"by a pattern", "team-x", time.Time{}, Origin{File: main, User: 26, Tier: 18, TierFrom: FromEntry, Pattern: "team-*", FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 18)}}},
		{"one limit of their own", "bob", time.Time{}, Origin{File: main, User: 27, Tier: 11, FileMode: 2, Fields: append([]FieldOrigin{own("concurrent", 27)}, free[2:]...)}},
		{"exempt", "probe", time.Time{}, Origin{File: main, User: 8, TierFrom: FromExempt, FileMode: 2}},
		{"exempt by a pattern", "mon-1", time.Time{}, Origin{File: main, User: 9, TierFrom: FromExempt, Pattern: "mon-*", FileMode: 2}},
		{"an address", "10.0.0.1", time.Time{}, Origin{Tier: 18, TierFrom: FromAnonymous, FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 18)}}},
		{"credentials that cannot be read", limits.UnreadableKey, time.Time{}, Origin{Tier: 18, TierFrom: FromUnreadable, FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 18)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, OriginOf(set.At(tt.at), tt.user)); diff != "" {
				t.Errorf("OriginOf(%q) (-want +got):\n%s", tt.user, diff)
			}
		})
	}
}
