package limitfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// overrideEpoch is when the tests' overrides begin.
var overrideEpoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// newOverride is an override that ends so long after overrideEpoch.
func newOverride(user, said string, d time.Duration) limits.Override {
	return limits.Override{User: user, Limits: json.RawMessage(said), Reason: "launch", By: "ops", Since: overrideEpoch, Until: overrideEpoch.Add(d)}
}

const overrideFile = `version: 1
default_tier: free
anonymous_tier: guest
exempt: {users: [probe, "mon-*"]}
tiers:
  free: {concurrent: 1, requests: {GET: 10, PUT: 5}}
  guest: {concurrent: 2}
  pro: {concurrent: 3, jobs: {total: 4, queues: {specview: 2}}, requests: {GET: 100}, bandwidth: {down: 10MiB, default_share: 1MiB}}
users:
  alice: pro
  "team-*": {tier: pro, priority: 7}
  dora: {concurrent: 4, requests: {GET: 14}}
  ernie: {tier: pro, concurrent: 5, until: 2026-11-20T12:30:00Z, then: free}
`

// inForce is the set with overrides that are all in force.
func inForce(t interface {
	Helper()
	Fatalf(string, ...any)
}, set *limits.Set, overrides ...limits.Override) *limits.Set {
	t.Helper()
	out, refused := WithOverrides(set, overrides)
	for _, r := range refused {
		t.Fatalf("With(%s: %s) refuses it: %v", r.User, r.Limits, r.Why)
	}
	return out
}

// allFields compares limits with what they keep to themselves.
var allFields = cmp.Exporter(func(reflect.Type) bool { return true })

func TestWith(t *testing.T) {
	minute := time.Minute
	for _, tt := range []struct {
		name      string
		overrides []limits.Override
		key       string
		at        time.Duration // after overrideEpoch
		want      string
	}{
		{"what is not named stays what the tier gives", []limits.Override{newOverride("alice", `{"concurrent":50}`, time.Hour)}, "alice", 0, "pro GET=100 concurrent=50 down=10485760"},
		{"what is not named stays what the user's own entry gives", []limits.Override{newOverride("dora", `{"concurrent":50}`, time.Hour)}, "dora", 0, "free GET=14 PUT=5 concurrent=50"},
		{"a class leaves the others", []limits.Override{newOverride("dora", `{"requests":{"PUT":50}}`, time.Hour)}, "dora", 0, "free GET=14 PUT=50 concurrent=4"},
		{"a tier replaces all that the file says", []limits.Override{newOverride("dora", `{"tier":"pro"}`, time.Hour)}, "dora", 0, "pro GET=100 concurrent=3 down=10485760"},
		{"the name of a tier alone does so too", []limits.Override{newOverride("dora", `"pro"`, time.Hour)}, "dora", 0, "pro GET=100 concurrent=3 down=10485760"},
		{"until it ends", []limits.Override{newOverride("dora", `"pro"`, time.Hour)}, "dora", time.Hour, "free GET=14 PUT=5 concurrent=4"},
		{"not a moment sooner", []limits.Override{newOverride("dora", `"pro"`, time.Hour)}, "dora", time.Hour - 1, "pro GET=100 concurrent=3 down=10485760"},
		{"nobody else", []limits.Override{newOverride("dora", `"pro"`, time.Hour)}, "alice", 0, "pro GET=100 concurrent=3 down=10485760"},
		{"whom a pattern names", []limits.Override{newOverride("team-x", `{"concurrent":50}`, time.Hour)}, "team-x", 0, "pro GET=100 concurrent=50 down=10485760 priority=7"},
		{"others of the pattern", []limits.Override{newOverride("team-x", `{"concurrent":50}`, time.Hour)}, "team-y", 0, "pro GET=100 concurrent=3 down=10485760 priority=7"},
		{"whom nothing names", []limits.Override{newOverride("zoe", `{"concurrent":50}`, time.Hour)}, "zoe", 0, "free GET=10 PUT=5 concurrent=50"},
		{"an address", []limits.Override{newOverride("10.0.0.1", `{"requests":{"GET":1}}`, time.Hour)}, "10.0.0.1", 0, "guest GET=1 concurrent=2"},
		{"a name that is hashed", []limits.Override{newOverride("~odd", `{"concurrent":50}`, time.Hour)}, limits.Key("~odd"), 0, "free GET=10 PUT=5 concurrent=50"},
		{"nothing is limited any more", []limits.Override{newOverride("alice", `{"concurrent":"unlimited","requests":"unlimited","bandwidth":"unlimited"}`, time.Hour)}, "alice", 0, "pro"},
		{"jobs", []limits.Override{newOverride("alice", `{"jobs":9}`, time.Hour)}, "alice", 0, "pro GET=100 concurrent=3 down=10485760 jobs=9 map[specview:2] priority"},
		{"jobs of whom nothing names", []limits.Override{newOverride("zoe", `{"jobs":{"total":"unlimited","class":"priority"}}`, time.Hour)}, "zoe", 0, "free GET=10 PUT=5 concurrent=1 jobs=0 map[] priority"},
		{"over what the file lends until later", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, minute)}, "ernie", 0, "pro GET=6 concurrent=5 down=10485760"},
		{"which goes on when it has ended", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, minute)}, "ernie", minute, "pro GET=100 concurrent=5 down=10485760"},
		{"until it ends", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, minute)}, "ernie", 30 * minute, "free GET=10 PUT=5 concurrent=1"},
		{"over what the file lends until sooner", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, time.Hour)}, "ernie", 30*minute - 1, "pro GET=6 concurrent=5 down=10485760"},
		{"and then over what follows", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, time.Hour)}, "ernie", 30 * minute, "free GET=6 PUT=5 concurrent=1"},
		{"which is left in the end", []limits.Override{newOverride("ernie", `{"requests":{"GET":6}}`, time.Hour)}, "ernie", time.Hour, "free GET=10 PUT=5 concurrent=1"},
	} {
		set := inForce(t, mustParse(t, overrideFile), tt.overrides...)
		if got := inShort(set.At(overrideEpoch.Add(tt.at)).User(tt.key)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// inShort is what limits say.
func inShort(l *limits.Limits) string {
	s := l.Tier
	for r := range l.Rates() {
		s += fmt.Sprintf(" %s=%d", r.Name(), r.Max)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"concurrent", int64(l.Concurrent)}, {"down", l.Bandwidth.Down}, {"up", l.Bandwidth.Up}, {"priority", int64(l.Priority)}} {
		if f.value != 0 {
			s += fmt.Sprintf(" %s=%d", f.name, f.value)
		}
	}
	if j := l.Jobs(); j.Source == limits.OfUser {
		s += fmt.Sprintf(" jobs=%d %v %s", j.Total, j.Queues, j.Class)
	}
	return s
}

func TestWithRefuses(t *testing.T) {
	long := strings.Repeat("ü", 201)
	change := func(f func(*limits.Override)) limits.Override {
		o := newOverride("alice", `{"concurrent":50}`, time.Hour)
		f(&o)
		return o
	}
	for _, tt := range []struct {
		name     string
		override limits.Override
		want     string
	}{
		{"a value", newOverride("alice", `{"concurrent":0}`, time.Hour), "limits: concurrent must be 1 or more, got 0; write requests: 0 to refuse every request, or unlimited to lift the limit"},
		{"text for a number", newOverride("alice", `{"concurrent":"5"}`, time.Hour), "limits: concurrent must be a number, got text; write 5 without quotes"},
		{"a fraction", newOverride("alice", `{"concurrent":1.5}`, time.Hour), `limits: concurrent must be a whole number in plain digits, or unlimited, got "1.5"`},
		{"a field", newOverride("alice", `{"concurent":5}`, time.Hour), `limits: unknown field "concurent"; did you mean concurrent? (valid: tier, requests, costs, concurrent, bandwidth, over_limit, priority, mode, jobs)`},
		{"a field twice", newOverride("alice", `{"concurrent":5,"concurrent":6}`, time.Hour), `limits has "concurrent" twice`},
		{"a tier", newOverride("alice", `{"tier":"gold"}`, time.Hour), `limits: tier: unknown tier "gold" (valid: free, guest, pro)`},
		{"the name of none", newOverride("alice", `"gold"`, time.Hour), `limits: tier: unknown tier "gold" (valid: free, guest, pro)`},
		{"a class", newOverride("alice", `{"requests":{"get":5}}`, time.Hour), `limits: requests: unknown class "get"; did you mean GET? (valid: "*", DELETE, GET, HEAD, OPTIONS, OTHER, PATCH, POST, PUT)`},
		{"no jobs at all", newOverride("alice", `{"jobs":0}`, time.Hour), `limits: jobs must be 1 or more, got 0; write unlimited to lift the limit`},
		{"a share beyond its limit", newOverride("alice", `{"bandwidth":{"down":"1KiB"}}`, time.Hour), "limits: bandwidth.default_share must be at most bandwidth.down, which is 1024 bytes, got 1048576"},
		{"an end of its own", newOverride("alice", `{"concurrent":5,"until":"2026-12-01"}`, time.Hour), "limits: until is for limit files; an override has an end and a reason of its own"},
		{"nothing", newOverride("alice", `{}`, time.Hour), `limits must say something, such as {"concurrent": 10}`},
		{"null", newOverride("alice", `null`, time.Hour), `limits must be the name of a tier, or a mapping such as {"tier": "pro", "concurrent": 10}, got nothing`},
		{"a list", newOverride("alice", `[1]`, time.Hour), `limits must be the name of a tier, or a mapping such as {"tier": "pro", "concurrent": 10}, got a list`},
		{"no JSON", newOverride("alice", `{concurrent: 5}`, time.Hour), "limits: invalid character 'c'"},
		{"more than one", newOverride("alice", `{"concurrent":5} 6`, time.Hour), "limits: invalid character '6' after top-level value"},
		{"a part of one", newOverride("alice", `{"concurrent":5`, time.Hour), "limits: unexpected end of JSON input"},
		{"too deep", newOverride("alice", strings.Repeat(`{"a":`, 9000)+"1"+strings.Repeat("}", 9000), time.Hour), `limits: unknown field "a"`},
		{"no UTF-8", newOverride("alice", "\"\xff\"", time.Hour), "limits: not UTF-8 text"},
		{"who is exempt", newOverride("probe", `{"concurrent":5}`, time.Hour), `user "probe" is exempt by the limit file, so nothing limits this user; an override would have no effect`},
		{"who is exempt by a pattern", newOverride("mon-1", `{"concurrent":5}`, time.Hour), `user "mon-1" is exempt by the limit file, so nothing limits this user; an override would have no effect`},
		{"a pattern", newOverride("team-*", `{"concurrent":5}`, time.Hour), `user "team-*": a pattern cannot be overridden; name one user`},
		{"nobody", newOverride("", `{"concurrent":5}`, time.Hour), "user must be a name in UTF-8, as in a limit file"},
		{"a name of other bytes", newOverride("\xff", `{"concurrent":5}`, time.Hour), "user must be a name in UTF-8, as in a limit file"},
		{"no reason", change(func(o *limits.Override) { o.Reason = "" }), "reason must be 1 to 200 printable characters, got 0 characters"},
		{"a blank one", change(func(o *limits.Override) { o.Reason = " " }), "reason must be 1 to 200 printable characters, got 1 characters"},
		{"a long one", change(func(o *limits.Override) { o.Reason = long }), "reason must be 1 to 200 printable characters, got 201 characters"},
		{"one with a line's end", change(func(o *limits.Override) { o.Reason = "a\nb" }), "reason must be 1 to 200 printable characters, got 3 characters"},
		{"no end", change(func(o *limits.Override) { o.Until = time.Time{} }), "since and until must be times from 1970 to 2200"},
		{"an end that cannot be written", change(func(o *limits.Override) { o.Until = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) }), "since and until must be times from 1970 to 2200"},
	} {
		plain := mustParse(t, overrideFile)
		set, refused := WithOverrides(plain, []limits.Override{tt.override})
		if len(refused) != 1 || !strings.HasPrefix(refused[0].Why.Error(), tt.want) || set != plain {
			t.Errorf("%s: With = %v, %v, want the set as it was and %s", tt.name, set == plain, refused, tt.want)
		}
		good := newOverride("dora", `{"concurrent":9}`, time.Hour)
		set, refused = WithOverrides(plain, []limits.Override{tt.override, good})
		if len(refused) != 1 || set.Version() != inForce(t, plain, good).Version() {
			t.Errorf("%s, beside a good one: With = %v, %v, want the good one in force", tt.name, set.Overrides(), refused)
		}
	}
}

// Two of the same user are a mistake of the caller.
func TestWithTwice(t *testing.T) {
	o := newOverride("alice", `{"concurrent":5}`, time.Hour)
	set, refused := WithOverrides(mustParse(t, overrideFile), []limits.Override{o, o})
	if len(refused) != 1 || refused[0].Why.Error() != "the user has two overrides" || len(set.Overrides()) != 1 {
		t.Errorf("With = %v, %v, want the first one", set.Overrides(), refused)
	}
}

// A set with overrides knows as many users as the file names, and which overrides are
// in force.
func TestOverridesOfASet(t *testing.T) {
	plain := mustParse(t, overrideFile)
	short, long := newOverride("zoe", `{"concurrent":5}`, time.Minute), newOverride("alice", `{"concurrent":6}`, time.Hour)
	set := inForce(t, plain, short, long)
	if set.UserCount() != plain.UserCount() || set.NamesUser("zoe") || !slices.Equal(slices.Collect(set.UserNames()), slices.Collect(plain.UserNames())) {
		t.Errorf("users %d, zoe known %v, want those of the file", set.UserCount(), set.NamesUser("zoe"))
	}
	for _, tt := range []struct {
		at      time.Duration
		want    []limits.Override
		expires time.Time
	}{
		{0, []limits.Override{long, short}, short.Until},
		{time.Minute, []limits.Override{long}, time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC)},
		{30 * time.Minute, []limits.Override{long}, long.Until},
		{time.Hour, nil, time.Time{}},
	} {
		now := set.At(overrideEpoch.Add(tt.at))
		if diff := cmp.Diff(tt.want, now.Overrides(), cmpopts.EquateEmpty()); diff != "" || !now.Expires().Equal(tt.expires) {
			t.Errorf("after %v: expires %v, want %v; overrides (-want +got):\n%s", tt.at, now.Expires(), tt.expires, diff)
		}
	}
	if again, _ := WithOverrides(set, nil); again.Version() != plain.Version() || len(again.Overrides()) != 0 {
		t.Errorf("With(nil) has version %s and %v, want %s and none", again.Version(), again.Overrides(), plain.Version())
	}
	if again, _ := WithOverrides(plain, nil); again != plain {
		t.Error("With(nil) of a set without overrides is another one")
	}
	if same, other := inForce(t, plain, long, short), inForce(t, plain, long); same.Version() != set.Version() || other.Version() == set.Version() || set.Version() == plain.Version() {
		t.Error("the version does not follow what is in force")
	}
	at := set.At(overrideEpoch.Add(time.Minute))
	if again, _ := WithOverrides(at, []limits.Override{short, long}); !again.Expires().Equal(at.Expires()) {
		t.Errorf("With of a set at a time expires at %v, want %v", again.Expires(), at.Expires())
	}
}

// The share is larger than the limit of ernie's entry, but not than that of the tier that follows it.
func TestOverrideRefusedForItsFirstPart(t *testing.T) {
	set := mustParse(t, strings.Replace(overrideFile, "pro, concurrent: 5", "free, bandwidth: {down: 1KiB}", 1))
	bad := newOverride("ernie", `{"bandwidth": {"default_share": "1MiB"}}`, time.Hour)
	good := newOverride("ernie", `{"concurrent": 9}`, time.Hour)
	out, refused := WithOverrides(set, []limits.Override{bad, good})
	if len(refused) != 1 || !strings.Contains(refused[0].Why.Error(), "default_share must be at most") || len(out.Overrides()) != 1 {
		t.Errorf("With = %v, %v, want the first one refused and the second in force", out.Overrides(), refused)
	}
}

// A source with an override that is not valid, as of another build, is refused whole.
func TestParseOfBadOverrides(t *testing.T) {
	for data, want := range map[string]string{
		`[{"user":"bob","limits":{"speed":1},"reason":"x","since":"2026-11-20T12:00:00Z","until":"2026-11-20T13:00:00Z"}]`: `f:1:1: override of user "bob": limits: unknown field "speed"`,
		`[{"user":"bob"}]`:                      `f:1:1: override of user "bob": reason must be`,
		`[{"x":1}]`:                             `f:1:1: the overrides are damaged: overrides: json: unknown field "x"`,
		`[] []`:                                 "f:1:1: the overrides are damaged: overrides: something follows them",
		strings.Repeat(" ", MaxOverridesSize+1): "f:1:1: the overrides are damaged: overrides: larger than 1048576 bytes",
	} {
		_, err := ParsePublished("f", []byte(overrideFile), []byte(data), nil)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Parse of %.80s = %v, want %s", data, err, want)
		}
	}
	many := make([]limits.Override, MaxOverrides+1)
	for i := range many {
		many[i] = newOverride(fmt.Sprint(i), `"pro"`, time.Hour)
	}
	if _, refused := WithOverrides(mustParse(t, overrideFile), many); len(refused) != len(many) {
		t.Errorf("With(%d overrides) refuses %d, want all", len(many), len(refused))
	}
}

// handUsers are those of whom overrideFile says something, each in its own way, and others.
var handUsers = []string{"alice", "team-x", "ernie", "zoe", "10.0.0.1", "~odd", strings.Repeat("x", 150)}

// drawLimits draws what an override may say, with a tier or without.
func drawLimits(t *rapid.T) string {
	fields := map[string]any{}
	if rapid.Bool().Draw(t, "tier") {
		fields["tier"] = rapid.SampledFrom([]string{"free", "guest", "pro"}).Draw(t, "of")
	}
	n := rapid.IntRange(1, 1000)
	for _, field := range []string{"concurrent", "priority"} {
		if rapid.Bool().Draw(t, field) {
			fields[field] = n.Draw(t, field)
		}
	}
	switch rapid.IntRange(0, 2).Draw(t, "requests") {
	case 1:
		fields["requests"] = "unlimited"
	case 2:
		fields["requests"] = map[string]any{"GET": n.Draw(t, "GET"), "*": map[string]any{"minute": n.Draw(t, "minute")}}
	}
	if rapid.Bool().Draw(t, "bandwidth") {
		fields["bandwidth"] = map[string]any{"up": fmt.Sprintf("%dMiB", n.Draw(t, "up")), "down": "unlimited"}
	}
	switch rapid.IntRange(0, 2).Draw(t, "jobs") {
	case 1:
		fields["jobs"] = rapid.SampledFrom([]any{2, "unlimited"}).Draw(t, "number")
	case 2:
		fields["jobs"] = map[string]any{"class": "priority", "queues": map[string]any{"analysis": rapid.IntRange(1, 9).Draw(t, "analysis"), "specview": "unlimited"}}
	}
	if len(fields) == 0 {
		fields["mode"] = "dry-run"
	}
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A set with overrides is the set of a file that says so in the users' own entries;
// when all have ended it is that of the file without; and Parse makes the same set of
// its source.
func TestWithIsWhatTheFileWouldSay(t *testing.T) {
	plain := mustParse(t, overrideFile)
	var head map[string]any
	testkit.Must(t, yaml.Unmarshal([]byte(overrideFile), &head))
	keys := []string{limits.ExemptKey, "probe", "team-y", "nobody"}
	for _, user := range handUsers {
		keys = append(keys, limits.Key(user))
	}
	rapid.Check(t, func(t *rapid.T) {
		users := maps.Clone(head["users"].(map[string]any))
		var overrides []limits.Override
		end := time.Duration(0)
		for _, user := range rapid.SliceOfNDistinct(rapid.SampledFrom(handUsers), 1, 4, rapid.ID[string]).Draw(t, "users") {
			d := time.Duration(rapid.IntRange(1, 3600).Draw(t, "seconds")) * time.Second
			end = max(end, d)
			o := newOverride(user, drawLimits(t), d)
			overrides = append(overrides, o)
			var entry map[string]any
			if err := json.Unmarshal(o.Limits, &entry); err != nil {
				t.Fatal(err)
			}
			if _, named := entry["tier"]; !named { // what the file gives the user goes on beside it
				entry = merged(map[string]map[string]any{
					"alice": {"tier": "pro"}, "team-x": {"tier": "pro", "priority": 7}, "ernie": {"tier": "pro", "concurrent": 5}, "10.0.0.1": {"tier": "guest"},
				}[user], entry)
			}
			users[user] = entry
		}
		file := maps.Clone(head)
		file["users"] = users
		text, err := yaml.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		said, err := Parse("f", text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		set := inForce(t, plain, overrides...)
		again, err := ParsePublished("g", set.Source(), set.EncodedOverrides(), nil)
		if err != nil || again.Version() != set.Version() || again.UserCount() != set.UserCount() {
			t.Fatalf("ParsePublished = %v, want the set", err)
		}
		first := slices.MinFunc(overrides, func(a, b limits.Override) int { return a.Until.Compare(b.Until) }).Until
		halfPast := time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC) // when ernie's entry ends
		for _, key := range keys {
			want, got := said.At(overrideEpoch).User(key), set.At(overrideEpoch).User(key)
			if diff := cmp.Diff(want, got, allFields); diff != "" {
				t.Fatalf("%s: with %s (-file +overrides):\n%s", key, EncodeOverrides(overrides), diff)
			}
			for _, at := range []time.Time{overrideEpoch, first.Add(-1), first, overrideEpoch.Add(end), halfPast} {
				if diff := cmp.Diff(set.At(at).User(key), again.At(at).User(key), allFields); diff != "" {
					t.Fatalf("%s at %v: ParsePublished (-set +parsed):\n%s", key, at, diff)
				}
			}
			after := overrideEpoch.Add(end)
			if diff := cmp.Diff(plain.At(after).User(key), set.At(after).User(key), allFields); diff != "" {
				t.Fatalf("%s after all ended (-plain +overrides):\n%s", key, diff)
			}
		}
	})
}

// merged is an entry of users with the fields of an override over it, of which neither
// has one that is merged itself.
func merged(entry, over map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, entry)
	maps.Copy(out, over)
	return out
}

func TestOriginOfOverrides(t *testing.T) {
	plain := mustParse(t, overrideFile)
	whole := newOverride("dora", `{"concurrent":50}`, time.Hour)
	tier := newOverride("10.0.0.1", `{"tier":"pro","priority":3}`, time.Hour)
	set := inForce(t, plain, whole, tier).At(overrideEpoch)
	fields := func(o Origin) (s []string) {
		for _, f := range o.Fields {
			line := fmt.Sprintf("%s %s:%d", f.Name, f.File, f.Line)
			if f.Layer == OverrideLayer {
				line = f.Name + " override"
			}
			s = append(s, line)
		}
		return s
	}
	for _, tt := range []struct {
		name, user string
		at         time.Duration
		override   *limits.Override
		line, tier int
		fields     []string
	}{
		{"what is not overridden is the file's", "dora", 0, &whole, 12, 6, []string{"concurrent override", "requests.GET limits.yaml:12", "requests.PUT limits.yaml:6"}},
		{"until it ends", "dora", time.Hour, nil, 12, 6, []string{"concurrent limits.yaml:12", "requests.GET limits.yaml:12", "requests.PUT limits.yaml:6"}},
		{"another tier", "10.0.0.1", 0, &tier, 0, 8, []string{"bandwidth.default_share limits.yaml:8", "bandwidth.down limits.yaml:8", "concurrent limits.yaml:8", "jobs.queues.specview limits.yaml:8", "jobs.total limits.yaml:8", "priority override", "requests.GET limits.yaml:8"}},
		{"others have none", "alice", 0, nil, 10, 8, []string{"bandwidth.default_share limits.yaml:8", "bandwidth.down limits.yaml:8", "concurrent limits.yaml:8", "jobs.queues.specview limits.yaml:8", "jobs.total limits.yaml:8", "requests.GET limits.yaml:8"}},
	} {
		o := OriginOf(set.At(overrideEpoch.Add(tt.at)), tt.user)
		if diff := cmp.Diff(tt.fields, fields(o)); diff != "" || o.User != tt.line || o.Tier != tt.tier || o.TierFrom == FromAnonymous {
			t.Errorf("%s: user line %d, tier %d, anonymous %v, want %d and %d; fields (-want +got):\n%s", tt.name, o.User, o.Tier, o.TierFrom == FromAnonymous, tt.line, tt.tier, diff)
		}
		if diff := cmp.Diff(tt.override, o.Override); diff != "" {
			t.Errorf("%s: override (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Whatever is kept somewhere: it is refused, or in force as Parse of the source has it.
func FuzzDecodeOverrides(f *testing.F) {
	f.Add(EncodeOverrides([]limits.Override{newOverride("alice", `{"concurrent":5,"requests":{"GET":{"minute":4,"burst":3}}}`, time.Hour), newOverride("zoe", `{"mode":"off"}`, time.Hour)}))
	f.Add(EncodeOverrides([]limits.Override{newOverride("ernie", `"pro"`, 400*time.Hour), newOverride("a<b>&\u2028", `{"tier":"pro"}`, time.Hour)}))
	f.Add([]byte(`[]`))
	f.Add([]byte(`[{"user":"a","limits":[[[[1e9]]]],"reason":"r","since":"0001-01-01T00:00:00Z","until":"2199-12-31T23:59:59+23:59"}]`))
	set := mustParse(f, overrideFile)
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := DecodeOverrides(data)
		if err != nil {
			return
		}
		out, refused := WithOverrides(set, list)
		if in := len(out.Overrides()); in+len(refused) != len(list) {
			t.Fatalf("With(%q): %d in force and %d refused of %d", data, in, len(refused), len(list))
		}
		again, err := ParsePublished("f", out.Source(), out.EncodedOverrides(), nil)
		if err != nil || again.Version() != out.Version() {
			t.Fatalf("With(%q): ParsePublished = %v", data, err)
		}
		if diff := cmp.Diff(out.Overrides(), again.Overrides()); diff != "" {
			t.Fatalf("With(%q): overrides (-set +parsed):\n%s", data, diff)
		}
	})
}
