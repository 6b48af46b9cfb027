package limitfile

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

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
	set, err := Parse("f", []byte(originFile))
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string, line int, layer Layer) FieldOrigin {
		return FieldOrigin{Name: name, Line: line, File: "f", Layer: layer}
	}
	pro := []FieldOrigin{field("bandwidth.down", 9, TierLayer), field("bandwidth.up", 9, TierLayer), field("requests.GET", 8, TierLayer)}
	free := []FieldOrigin{field("concurrent", 6, TierLayer), field("requests.*", 5, TierLayer), field("requests.GET", 5, TierLayer)}
	for _, tt := range []struct {
		name, user string
		want       Origin
	}{
		{"a tier's name", "alice", Origin{File: "f", User: 12, Tier: 7, TierFrom: FromEntry, Fields: pro}},
		{"overrides hide what they name, all of it if unlimited", "bob", Origin{File: "f", User: 13, Tier: 7, TierFrom: FromEntry,
			Fields: []FieldOrigin{field("bandwidth", 16, EntryLayer), field("requests.GET", 15, EntryLayer)}}},
		{"overrides to the default tier", "carol", Origin{File: "f", User: 17, Tier: 4,
			Fields: []FieldOrigin{field("concurrent", 17, EntryLayer), field("requests.*", 5, TierLayer), field("requests.GET", 5, TierLayer)}}},
		{"a name that is not its own key", "~d", Origin{File: "f", User: 18, Tier: 7, TierFrom: FromEntry, Fields: pro}},
		{"a class limited where the tier lifts all", "erin", Origin{File: "f", User: 19, Tier: 10, TierFrom: FromEntry,
			Fields: []FieldOrigin{field("requests", 10, TierLayer), field("requests.PUT", 19, EntryLayer)}}},
		{"named without saying anything", "frank", Origin{File: "f", User: 20, Tier: 4, Fields: free}},
		{"not named", "nobody", Origin{Tier: 4, Fields: free}},
		{"no name", "", Origin{Tier: 4, Fields: free}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, OriginAt(set, "", tt.user)); diff != "" {
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
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, set)
	}
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SampledFrom(sets).Draw(t, "set")
		user := rapid.SampledFrom(append(slices.Collect(set.UserNames()), "nobody")).Draw(t, "user")
		endpoint := rapid.SampledFrom(append(set.Endpoints(), "", limits.All)).Draw(t, "endpoint")
		l, o := set.User(limits.EndpointKey(endpoint, limits.Key(user))), OriginAt(set, endpoint, user)
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
endpoints: [up, api]
users_from: users.d/*.yaml
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
    endpoints:
      up:
        concurrent: 2
        requests: {GET: 1}
  guest: {concurrent: 1}
users:
  alice:
    comment: launch week
    until: 2026-12-01
    then: guest
    mode: enforce
    requests: {GET: {hour: 7}}
    endpoints:
      up: {concurrent: 9}
  "team-*": guest
unreadable: guest
`

func TestOriginOfMore(t *testing.T) {
	tree(t, map[string]string{"limits.yaml": originMore, "users.d/a.yaml": "users:\n\n  bob: {concurrent: 3}\n"})
	set, err := Load("limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const main, further = "limits.yaml", "users.d/a.yaml"
	tier := func(name string, line int) FieldOrigin { return FieldOrigin{Name: name, Line: line, File: main} }
	own := func(name string, line int) FieldOrigin {
		return FieldOrigin{Name: name, Line: line, File: main, Layer: EntryLayer}
	}
	there := func(f FieldOrigin) FieldOrigin { f.Endpoint = true; return f }
	free := []FieldOrigin{tier("concurrent", 18), tier("concurrent.mode", 18), tier("mode", 14), tier("requests.GET", 16), tier("requests.GET.burst", 16),
		tier("requests.GET.mode", 16), tier("requests.GET/minute", 16), tier("requests.PUT/hour", 17)}
	until := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	alice := Origin{File: main, User: 25, Tier: 12, Comment: "launch week", Until: until, Then: "guest", FileMode: 2}
	aliceHas := func(fields ...FieldOrigin) Origin { o := alice; o.Fields = fields; return o }
	for _, tt := range []struct {
		name, endpoint, user string
		at                   time.Time
		want                 Origin
	}{
		{"nobody", "", "zoe", time.Time{}, Origin{Tier: 12, FileMode: 2, Fields: free}},
		{"nobody, at an endpoint", "up", "zoe", time.Time{}, Origin{Tier: 12, FileMode: 2,
			Fields: []FieldOrigin{there(tier("concurrent", 21)), tier("mode", 14), there(tier("requests.GET", 22)), tier("requests.PUT/hour", 17)}}},
		{"a whole entry hides the tier's", "", "alice", time.Time{}, aliceHas(tier("concurrent", 18), tier("concurrent.mode", 18), own("mode", 29),
			own("requests.GET/hour", 30), tier("requests.PUT/hour", 17))},
		{"and that of the tier at the endpoint", "up", "alice", time.Time{}, aliceHas(there(own("concurrent", 32)), own("mode", 29),
			own("requests.GET/hour", 30), tier("requests.PUT/hour", 17))},
		{"an endpoint without limits of its own", "api", "alice", time.Time{}, aliceHas(tier("concurrent", 18), tier("concurrent.mode", 18), own("mode", 29),
			own("requests.GET/hour", 30), tier("requests.PUT/hour", 17))},
		{"expired", "", "alice", until, Origin{File: main, User: 25, Tier: 23, Comment: "launch week", Until: until, Then: "guest", Expired: true, TierFrom: FromEntry, FileMode: 2,
			Fields: []FieldOrigin{tier("concurrent", 23)}}},
		{"by a pattern", "", "team-x", time.Time{}, Origin{File: main, User: 33, Tier: 23, TierFrom: FromEntry, Pattern: "team-*", FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 23)}}},
		{"in a file of users_from", "", "bob", time.Time{}, Origin{File: further, User: 3, Tier: 12, FileMode: 2, Fields: append(
			[]FieldOrigin{{Name: "concurrent", Line: 3, File: further, Layer: EntryLayer}}, free[2:]...)}},
		{"exempt", "", "probe", time.Time{}, Origin{File: main, User: 9, TierFrom: FromExempt, FileMode: 2}},
		{"exempt by a pattern", "up", "mon-1", time.Time{}, Origin{File: main, User: 10, TierFrom: FromExempt, Pattern: "mon-*", FileMode: 2}},
		{"an address", "", "10.0.0.1", time.Time{}, Origin{Tier: 23, TierFrom: FromAnonymous, FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 23)}}},
		{"credentials that cannot be read", "", limits.UnreadableKey, time.Time{}, Origin{Tier: 23, TierFrom: FromUnreadable, FileMode: 2, Fields: []FieldOrigin{tier("concurrent", 23)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, OriginAt(set.At(tt.at), tt.endpoint, tt.user)); diff != "" {
				t.Errorf("OriginAt(%q, %q) (-want +got):\n%s", tt.endpoint, tt.user, diff)
			}
		})
	}
}

// A field that a user sets everywhere is no later said than one at an endpoint, although it is read
// again for each endpoint of the tier.
func TestOriginOfAFieldSetTwice(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
endpoints: [api, up]
tiers: {free: {endpoints: {up: {concurrent: 2}}}}
users:
  alice:
    concurrent: 5
    endpoints:
      api: {concurrent: 9}
      up: {concurrent: 7}
`)
	for endpoint, line := range map[string]int{"": 7, "api": 9, "up": 10} {
		if f, _ := OriginAt(set, endpoint, "alice").FieldOrigin("concurrent"); f.Line != line || f.Endpoint != (endpoint != "") {
			t.Errorf("at %q concurrent is set by %+v, want line %d", endpoint, f, line)
		}
	}
}
