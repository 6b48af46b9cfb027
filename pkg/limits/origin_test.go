package limits

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
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
	pro := []FieldOrigin{{"bandwidth.down", 9, false}, {"bandwidth.up", 9, false}, {"requests.GET", 8, false}}
	free := []FieldOrigin{{"concurrent", 6, false}, {"requests.*", 5, false}, {"requests.GET", 5, false}}
	for _, tt := range []struct {
		name, user string
		want       Origin
	}{
		{"a tier's name", "alice", Origin{User: 12, Tier: 7, Named: true, Fields: pro}},
		{"overrides hide what they name, all of it if unlimited", "bob", Origin{User: 13, Tier: 7, Named: true,
			Fields: []FieldOrigin{{"bandwidth", 16, true}, {"requests.GET", 15, true}}}},
		{"overrides to the default tier", "carol", Origin{User: 17, Tier: 4,
			Fields: []FieldOrigin{{"concurrent", 17, true}, {"requests.*", 5, false}, {"requests.GET", 5, false}}}},
		{"a name that is not its own key", "~d", Origin{User: 18, Tier: 7, Named: true, Fields: pro}},
		{"a class limited where the tier lifts all", "erin", Origin{User: 19, Tier: 10, Named: true,
			Fields: []FieldOrigin{{"requests", 10, false}, {"requests.PUT", 19, true}}}},
		{"named without saying anything", "frank", Origin{User: 20, Tier: 4, Fields: free}},
		{"not named", "nobody", Origin{Tier: 4, Fields: free}},
		{"no name", "", Origin{Tier: 4, Fields: free}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, set.Origin(tt.user)); diff != "" {
				t.Errorf("Origin(%q) (-want +got):\n%s", tt.user, diff)
			}
		})
	}
}

func TestOriginField(t *testing.T) {
	o := Origin{Fields: []FieldOrigin{{"concurrent", 1, false}, {"requests", 2, true}, {"requests.GET", 3, true}}}
	for _, tt := range []struct {
		field string
		line  int // 0: nobody sets it
	}{
		{"concurrent", 1}, {"requests.GET", 3}, {"requests.PUT", 2}, {"requests", 2},
		{"bandwidth.up", 0}, {"GET", 0}, {"", 0},
	} {
		got, ok := o.Field(tt.field)
		if got.Line != tt.line || ok != (tt.line > 0) {
			t.Errorf("Field(%q) = %v, %v, want line %d", tt.field, got, ok, tt.line)
		}
	}
}

// TestOriginKnowsEveryLimit: whoever sets a limit that a user has is found, and
// what nobody sets is not limited.
func TestOriginKnowsEveryLimit(t *testing.T) {
	var sets []*Set
	for _, path := range glob(t, "testdata/good-*.yaml") {
		set, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, set)
	}
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SampledFrom(sets).Draw(t, "set")
		user := rapid.SampledFrom(append(slices.Collect(set.Users()), "nobody")).Draw(t, "user")
		l, o := set.User(Key(user)), set.Origin(user)
		limited := map[string]bool{
			"concurrent": l.Concurrent > 0, "bandwidth.down": l.Bandwidth.Down > 0,
			"bandwidth.up": l.Bandwidth.Up > 0, "bandwidth.default_share": l.Bandwidth.DefaultShare > 0,
		}
		for _, r := range l.All() {
			limited["requests."+r.Class] = true
		}
		for field, is := range limited {
			if f, ok := o.Field(field); is && (!ok || f.Line < 1) {
				t.Errorf("user %q has a limit %s, and Field = %v, %v", user, field, f, ok)
			}
		}
		if o.Tier < 1 {
			t.Errorf("user %q has the tier %s on line %d", user, l.Tier, o.Tier)
		}
	})
}
