package limitfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const togetherFile = `version: 1
default_tier: free
anonymous_tier: nobody
unreadable: nobody
endpoints: [api, uploads]
exempt: {users: [admin]}
tiers:
  free:
    requests: {GET: 10}
    concurrent: 3
    endpoints:
      "*": {requests: {GET: 100, "*": {second: 200, burst: 50, hour: 10000}}}
      uploads: {requests: {GET: 1}}
  nobody: {requests: {GET: 5}}
  careful: {mode: dry-run, endpoints: {"*": {requests: {GET: 7}}}}
users:
  bob: nobody
  carol: {requests: {GET: 1000}, concurrent: 9, endpoints: {"*": {requests: {PUT: 4}}}}
  dave: {endpoints: {"*": {requests: unlimited}}}
  erin: {tier: nobody, endpoints: {"*": {requests: {GET: 6}}}}
  frank: {mode: dry-run}
  grace: {tier: careful, mode: enforce}
  heidi: careful
  ivan: {endpoints: {"*": {mode: off}}}
  judy: {tier: nobody, endpoints: {"*": {requests: {GET: 6}}}, until: 2026-12-01, then: free}
  "team-*": {endpoints: {"*": {requests: {"*": unlimited}}}}
`

func TestTogether(t *testing.T) {
	set := mustParse(t, togetherFile)
	const free = "* 200+50, */hour 10000, GET 100"
	tests := []struct{ key, together, want string }{
		{"alice", "@*/alice", free},
		{"@uploads/alice", "@*/alice", free},
		{"@unheard-of/alice", "@*/alice", free},
		{"@*/alice", "@*/alice", free},
		{limits.OthersKey, "@*/" + limits.OthersKey, free},
		{limits.Key("~alice"), "@*/" + limits.Key("~alice"), free},
		{"@api/carol", "@*/carol", free + ", PUT 4"},
		{"frank", "@*/frank", "* 200+50 dry-run, */hour 10000 dry-run, GET 100 dry-run"},
		{"grace", "@*/grace", "GET 7"},
		{"heidi", "@*/heidi", "GET 7 dry-run"},
		{"erin", "@*/erin", "GET 6"},
		{"judy", "@*/judy", "GET 6"},
		{"team-1", "@*/team-1", "GET 100"},
		{limits.OthersKey + ":team-*", "@*/" + limits.OthersKey + ":team-*", "GET 100"},
		{"bob", "", ""},
		{"dave", "", ""},
		{"ivan", "", ""},
		{"192.0.2.1", "", ""},
		{"~", "", ""},
		{limits.UnreadableKey, "", ""},
		{"admin", "", ""},
		{"@api/admin", "", ""},
		{limits.ExemptKey, "", ""},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.key, "/", "|"), func(t *testing.T) {
			together, of, ok := set.Together(tt.key)
			if ok != (tt.want != "") || together != tt.together || ok && ratesText(of) != tt.want {
				t.Fatalf("Together(%q) = %q, %q, %v, want %q, %q", tt.key, together, ratesText(of), ok, tt.together, tt.want)
			}
			_, user := limits.SplitEndpoint(tt.key)
			if got := set.User(limits.EndpointKey(limits.All, user)); ok && got != of || !ok && !got.Unlimited() || got.Tier != set.User(user).Tier {
				t.Errorf("User(%q) = %+v, want %+v", limits.EndpointKey(limits.All, user), got, of)
			}
		})
	}
	if _, of, _ := set.At(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)).Together("judy"); ratesText(of) != free {
		t.Errorf("Together of a user whose entry ended = %q, want %q", ratesText(of), free)
	}
	if endpoint, counted, ok := set.Undeclared("@*/alice"); ok {
		t.Errorf("Undeclared(@*/alice) = %q, %q, true, want false", endpoint, counted)
	}
	if got := set.Endpoints(); !slices.Equal(got, []string{"api", "uploads"}) {
		t.Errorf("Endpoints() = %q, want those that the file declares", got)
	}
}

// ratesText is one word a limit, then what is special about it.
func ratesText(l *limits.Limits) string {
	var all []string
	for r := range l.Rates() {
		text := fmt.Sprintf("%s %d", r.Name(), r.Max)
		if r.Burst > 0 {
			text += fmt.Sprintf("+%d", r.Burst)
		}
		if r.Mode != limits.Enforce {
			text += " " + r.Mode.String()
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// checkTogether says how Together and User of a user's key differ, or nil.
func checkTogether(s *limits.Set, user string) error {
	mine := limits.EndpointKey(limits.All, user)
	if endpoint, key := limits.SplitEndpoint(mine); endpoint != limits.All || key != user {
		return fmt.Errorf("SplitEndpoint(%q) = %q, %q", mine, endpoint, key)
	}
	l := s.User(mine)
	if l.Concurrent != 0 || l.Bandwidth != (limits.Bandwidth{}) || l.Wait != 0 || l.Priority != 0 || l.Jobs().Total != 0 || l.Tier != s.User(user).Tier {
		return fmt.Errorf("User(%q) = %+v, want rates and costs alone, in tier %s", mine, l, s.User(user).Tier)
	}
	for _, endpoint := range append(s.Endpoints(), "", "undeclared", limits.All) {
		key := limits.EndpointKey(endpoint, user)
		together, of, ok := s.Together(key)
		switch {
		case ok != (len(slices.Collect(l.Rates())) > 0 || l.LimitsCosts()):
			return fmt.Errorf("Together(%q) = %v with the rates %s and costs %v", key, ok, ratesText(l), l.LimitsCosts())
		case ok && (together != mine || of != l):
			return fmt.Errorf("Together(%q) = %q, %s, want %q, %s", key, together, ratesText(of), mine, ratesText(l))
		case !ok && (together != "" || of != nil):
			return fmt.Errorf("Together(%q) = %q, %v, false, want nothing", key, together, of)
		}
	}
	return nil
}

// TestTogetherIsWhatTheFileSays: the file's words, the set's limits over all endpoints
// together, and those of the key under which they are counted are the same, whatever else
// the file says, and after a journey through Source.
func TestTogetherIsWhatTheFileSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.MapOfN(rapid.SampledFrom([]string{"*", "GET", "PUT"}), rapid.IntRange(1, 100), 0, 3)
		text := func(rates map[string]int) string {
			var all []string
			for _, class := range slices.Sorted(maps.Keys(rates)) {
				all = append(all, fmt.Sprintf("%q: %d", class, rates[class]))
			}
			return "{requests: {" + strings.Join(all, ", ") + "}}"
		}
		tier, own := rates.Draw(t, "tier"), rates.Draw(t, "own")
		elsewhere := rapid.SampledFrom([]string{"", "requests: {GET: 1000, DELETE: 3}, ", "concurrent: 5, bandwidth: {down: 1MB}, ", "priority: 9, over_limit: {concurrent: wait 2s}, "})
		source := "version: 1\ndefault_tier: a\nendpoints: [e, f]\ntiers: {a: {" + elsewhere.Draw(t, "tier's other") + "endpoints: {e: {concurrent: 1}, \"*\": " + text(tier) + "}}}\n" +
			"users: {u: {" + elsewhere.Draw(t, "own other") + "endpoints: {f: {requests: {GET: 2}}, \"*\": " + text(own) + "}}}\n"
		set, err := Parse("f", []byte(source))
		if err != nil {
			t.Fatalf("%v:\n%s", err, source)
		}
		both := maps.Clone(tier)
		maps.Copy(both, own)
		again, err := Parse("f", set.Source())
		if err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]*limits.Set{"the set": set, "the set of its Source": again} {
			for user, want := range map[string]map[string]int{"u": both, "v": tier, limits.UnreadableKey: tier} {
				key := limits.KeyOf(user)
				if err := checkTogether(s, key); err != nil {
					t.Fatalf("%s: %v:\n%s", name, err, source)
				}
				got := map[string]int{}
				for r := range s.User(limits.EndpointKey(limits.All, key)).Rates() {
					got[r.Class] = r.Max
				}
				if !maps.Equal(got, want) {
					t.Fatalf("%s: user %q has %v over all endpoints together, want %v:\n%s", name, user, got, want, source)
				}
			}
		}
	})
}

// TestTogetherIsCheap: each request asks.
func TestTogetherIsCheap(t *testing.T) {
	with := mustParse(t, togetherFile)
	without := mustParse(t, "version: 1\ndefault_tier: free\nendpoints: [uploads]\ntiers: {free: {requests: {GET: 1}}}\n")
	for _, tt := range []struct {
		name string
		set  *limits.Set
		key  string
		most float64
	}{
		{"a file without such limits", without, "@uploads/alice", 0},
		{"a user without", with, "@uploads/bob", 0},
		{"a user with them", with, "@uploads/alice", 1},
	} {
		if got := testing.AllocsPerRun(100, func() { tt.set.Together(tt.key) }); got > tt.most {
			t.Errorf("%s: Together allocates %v times, want at most %v", tt.name, got, tt.most)
		}
	}
}

func TestTogetherOfOverrides(t *testing.T) {
	set := mustParse(t, togetherFile)
	for _, tt := range []struct {
		name, user, limits, want string
	}{
		{"over the tier's", "alice", `{"endpoints":{"*":{"requests":{"GET":3}}}}`, "* 200+50, */hour 10000, GET 3"},
		{"over the user's own", "carol", `{"endpoints":{"*":{"requests":{"PUT":9}}}}`, "* 200+50, */hour 10000, GET 100, PUT 9"},
		{"of a tier without", "bob", `{"endpoints":{"*":{"requests":{"GET":3}}}}`, "GET 3"},
		{"another tier", "alice", `"careful"`, "GET 7 dry-run"},
		{"something else", "alice", `{"concurrent":50}`, "* 200+50, */hour 10000, GET 100"},
		{"lifted", "alice", `{"endpoints":{"*":{"requests":"unlimited"}}}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			with, refused := WithOverrides(set, []limits.Override{newOverride(tt.user, "", tt.limits, time.Hour)})
			if len(refused) > 0 {
				t.Fatalf("With refuses %v", refused)
			}
			if err := checkTogether(with, tt.user); err != nil {
				t.Error(err)
			}
			if got := ratesText(with.User(limits.EndpointKey(limits.All, tt.user))); got != tt.want {
				t.Errorf("limits over all endpoints together = %q, want %q", got, tt.want)
			}
		})
	}
	if with, refused := WithOverrides(set, []limits.Override{newOverride("alice", "", `{"endpoints":{"*":{"concurrent":3}}}`, time.Hour)}); with != set || len(refused) != 1 ||
		!strings.Contains(refused[0].Why.Error(), "concurrent cannot be limited over all endpoints together") {
		t.Errorf("With what cannot be limited so = %v, want it refused", refused)
	}
	at := newOverride("alice", limits.All, `{"requests":{"GET":3}}`, time.Hour)
	if err := CheckOverride(at); err == nil || !strings.Contains(err.Error(), `with {"endpoints": {"*": `) {
		t.Errorf("Check of an override at the endpoint * = %v, want how to write it", err)
	}
}

func TestOriginTogether(t *testing.T) {
	set := mustParse(t, togetherFile)
	field := func(name string, line int, layer Layer, endpoint bool) FieldOrigin {
		return FieldOrigin{Name: name, Line: line, File: set.Name(), Layer: layer, Endpoint: endpoint}
	}
	free := []FieldOrigin{
		field("requests.*", 12, TierLayer, true), field("requests.*.burst", 12, TierLayer, true), field("requests.*/hour", 12, TierLayer, true), field("requests.GET", 12, TierLayer, true),
	}
	for _, tt := range []struct {
		user string
		want []FieldOrigin
	}{
		{"alice", free},
		{"carol", append(slices.Clip(free), field("requests.PUT", 18, EntryLayer, true))},
		{"dave", []FieldOrigin{field("requests", 19, EntryLayer, true)}},
		{"frank", append([]FieldOrigin{field("mode", 21, EntryLayer, false)}, free...)},
		{"heidi", []FieldOrigin{field("mode", 15, TierLayer, false), field("requests.GET", 15, TierLayer, true)}},
		{"bob", nil},
	} {
		if got := OriginAt(set, limits.All, tt.user).Fields; !slices.Equal(got, tt.want) {
			t.Errorf("OriginAt(*, %s) has the fields %v, want %v", tt.user, got, tt.want)
		}
	}
}
