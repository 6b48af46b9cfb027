package limits_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const setFile = `version: 1
default_tier: free
anonymous_tier: guest
unreadable: pro
exempt: {users: [probe, "mon-*", "~odd"]}
tiers:
  free: {concurrent: 1}
  guest: {concurrent: 2}
  pro: {concurrent: 3}
users:
  alice: pro
  "team-*": pro
  "10.9.*": pro
  "~bob": pro
  "@carol": pro
  mon-7: pro
  dora: {concurrent: 4}
  ernie: {tier: pro, concurrent: 5, until: 2026-12-01}
`

func TestSetUser(t *testing.T) {
	set := mustParse(t, setFile)
	for _, tt := range []struct {
		name, key  string
		concurrent int // 0: not limited
		known      bool
	}{
		{"named", "alice", 3, true},
		{"by a pattern", "team-x", 3, true},
		{"the pattern itself", "team-*", 3, true},
		{"hashed name", limits.Key("~bob"), 3, true},
		{"at sign in front", "@carol", 3, true},
		{"nobody", "zoe", 1, false},
		{"no key at all", "", 1, false},
		{"no name", "~", 2, false},
		{"IPv4 address", "10.0.0.1", 2, false},
		{"IPv6 network", "2001:db8:1:2::", 2, false},
		{"IP address by a pattern", "10.9.8.7", 3, true},
		{"almost an address", "10.0.0.256", 1, false},
		{"hash of another name", limits.Key("~zoe"), 1, false},
		{"exempt", "probe", 0, true},
		{"exempt by a pattern", "mon-1", 0, true},
		{"exempt by a pattern, and named", "mon-7", 0, true},
		{"exempt hashed name", limits.Key("~odd"), 0, true},
		{"exempt request", limits.ExemptKey, 0, true},
		{"credentials that cannot be read", limits.UnreadableKey, 3, false},
		{"a user with that text as name", limits.Key(limits.UnreadableKey), 1, false},
		{"own limit", "dora", 4, true},
		{"own limit over the tier's", "ernie", 5, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := set.User(tt.key); got.Concurrent != tt.concurrent || (got.Tier == limits.ExemptTier) != (tt.concurrent == 0) {
				t.Errorf("User(%q) = %+v, want concurrent %d", tt.key, got, tt.concurrent)
			}
			if got := set.NamesUser(tt.key); got != tt.known {
				t.Errorf("NamesUser(%q) = %v, want %v", tt.key, got, tt.known)
			}
			most := 0.0
			if tt.name == "almost an address" {
				most = 1 // netip's error
			}
			if n := testing.AllocsPerRun(10, func() { set.User(tt.key) }); n > most {
				t.Errorf("User(%q) allocates %v times, want %v at most", tt.key, n, most)
			}
		})
	}
	if got, want := set.UserCount(), 8; got != want {
		t.Errorf("Len() = %d, want %d: who is exempt alone is not listed", got, want)
	}
	want := []string{"10.9.*", "@carol", "alice", "dora", "ernie", "mon-7", "team-*", "~bob"}
	if got := slices.Collect(set.UserNames()); !slices.Equal(got, want) {
		t.Errorf("Users() = %q, want %q", got, want)
	}
	if got, want := set.Patterns(), []string{"team-*", "10.9.*"}; !slices.Equal(got, want) {
		t.Errorf("Patterns() = %q, want %q", got, want)
	}
	if got, ok := set.TierLimits("pro"); !ok || got.Concurrent != 3 {
		t.Errorf("TierLimits(pro) = %+v, %v, want concurrent 3", got, ok)
	}
	if got, ok := set.TierLimits("gold"); got != nil || ok {
		t.Errorf("TierLimits(gold) = %v, %v, want nil, false", got, ok)
	}
}

func TestSetAt(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
tiers: {free: {concurrent: 1}, pro: {concurrent: 10}}
users:
  a: {tier: pro, concurrent: 2, until: 2026-12-01}
  b: {tier: pro, concurrent: 3, until: 2026-12-01, then: free}
  "c*": {concurrent: 4, until: "2026-12-02T12:00:00.000000001Z", then: pro}
`)
	first := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	second := time.Date(2026, 12, 2, 12, 0, 0, 1, time.UTC)
	keys := []string{"a", "b", "cc"}
	var last *limits.Set
	for _, tt := range []struct {
		name    string
		at      time.Time
		want    []int // concurrent, of keys
		expires time.Time
		same    bool // as the step before
	}{
		{"long before", time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), []int{2, 3, 4}, first, false},
		{"the zero time", time.Time{}, []int{2, 3, 4}, first, true},
		{"a moment before the first", first.Add(-1), []int{2, 3, 4}, first, true},
		{"the first moment", first, []int{10, 1, 4}, second, false},
		{"between", first.Add(time.Hour), []int{10, 1, 4}, second, true},
		{"a moment before the second", second.Add(-1), []int{10, 1, 4}, second, true},
		{"the second moment", second, []int{10, 1, 10}, time.Time{}, false},
		{"the end of times", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), []int{10, 1, 10}, time.Time{}, true},
		{"back in time", first, []int{10, 1, 4}, second, false},
	} {
		if last == nil {
			last = set
			tt.same = true
		}
		got := last.At(tt.at)
		if (got == last) != tt.same {
			t.Errorf("%s: At returns the set itself: %v, want %v", tt.name, got == last, tt.same)
		}
		for i, key := range keys {
			if got := got.User(key).Concurrent; got != tt.want[i] {
				t.Errorf("%s: User(%q) has concurrent %d, want %d", tt.name, key, got, tt.want[i])
			}
		}
		if !got.Expires().Equal(tt.expires) {
			t.Errorf("%s: Expires() = %v, want %v", tt.name, got.Expires(), tt.expires)
		}
		if got.Version() != set.Version() || !got.NamesUser("b") {
			t.Errorf("%s: version %s, want %s", tt.name, got.Version(), set.Version())
		}
		last = got
	}
}

func TestAnonymous(t *testing.T) {
	for _, tt := range []struct {
		key  string
		want bool
	}{
		{"~", true}, {"~~", false}, {"", false}, {limits.Key(""), false}, {limits.ExemptKey, false},
		{"1.2.3.4", true}, {"255.255.255.255", true}, {"0.0.0.0", true},
		{"1.2.3", false}, {"1.2.3.4.5", false}, {"1.2.3.256", false}, {"1.2.3.04", false}, {"1.2.3.", false}, {".1.2.3", false}, {"1.2.3.4x", false}, {"1.2.3.0004", false},
		{"2001:db8:1:2::", true}, {"::", true}, {"::1", true}, {"1:2:3:4:5:6:7:8", true}, {"1:2:3:4:5:6:7::", true}, {"FE80::A", true}, {"::ffff:1.2.3.4", true}, {"1:2:3:4:5:6:1.2.3.4", true},
		{":", false}, {":::", false}, {"1::2::3", false}, {"1:2:3:4:5:6:7", false}, {"1:2:3:4:5:6:7:8:9", false}, {"1:2:3:4:5:6:7:8::", false}, {"12345::", false}, {"g::", false}, {"1:2", false}, {"a:b", false}, {"::1.2.3.4:5", false}, {"fe80::1%eth0", false},
	} {
		if got := limits.Anonymous(tt.key); got != tt.want {
			t.Errorf("Anonymous(%q) = %v, want %v", tt.key, got, tt.want)
		}
	}
}

func TestAppendRatesOrder(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: a
classes: {LIST: {}, AAA: {}}
tiers: {a: {requests: {"*": {hour: 6, second: 5}, LIST: {hour: 4, second: 3}, AAA: 9, GET: {minute: 2, second: 1}}}}
`)
	for _, tt := range []struct{ verb, class, want string }{
		{"GET", "LIST", "GET GET/minute LIST LIST/hour * */hour"},
		{"GET", "", "GET GET/minute * */hour"},
		{"PUT", "LIST", "LIST LIST/hour * */hour"},
		{"PUT", "", "* */hour"},
		{"PUT", "OTHERS", "* */hour"},
	} {
		var names []string
		for _, r := range set.User("x").AppendRates(nil, tt.verb, tt.class) {
			names = append(names, r.Name())
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("AppendRates(%q, %q) = %s, want %s", tt.verb, tt.class, got, tt.want)
		}
	}
}

func TestRateName(t *testing.T) {
	for _, tt := range []struct {
		class string
		w     limits.Window
		name  string
	}{{"GET", limits.Second, "GET"}, {"LIST", limits.Minute, "LIST/minute"}, {"*", limits.Hour, "*/hour"}} {
		if got := limits.RateName(tt.class, tt.w); got != tt.name {
			t.Errorf("RateName(%s, %v) = %s, want %s", tt.class, tt.w, got, tt.name)
		}
		if class, w := limits.ParseRateName(tt.name); class != tt.class || w != tt.w {
			t.Errorf("ParseRateName(%s) = %s, %v, want %s, %v", tt.name, class, w, tt.class, tt.w)
		}
	}
	if class, w := limits.ParseRateName("GET/second"); class != "GET/second" || w != limits.Second {
		t.Errorf("ParseRateName(GET/second) = %s, %v, want the whole as the class", class, w)
	}
	if got := fmt.Sprintf("%v %v %v %v", limits.Windows, limits.Enforce, limits.DryRun, limits.Off); got != "[second minute hour day month] enforce dry-run off" {
		t.Errorf("windows and modes are %s", got)
	}
}

// What a file says of users who are exempt has no end, and limits nobody.
func TestExemptUsersHaveNoLimits(t *testing.T) {
	set := mustParse(t, "version: 1\ndefault_tier: free\ntiers: {free: {}}\nexempt: {users: [probe, \"mon-*\"]}\n"+
		"users: {probe: {requests: {GET: 5}, until: 2026-12-01}, mon-1: {bandwidth: {up: 1MB}, until: 2026-12-02}}\n")
	if got := set.Expires(); !got.IsZero() {
		t.Errorf("Expires() = %v, want never", got)
	}
	if classes := set.SecondClasses(); len(classes) > 0 || set.LimitsBandwidth() {
		t.Errorf("SecondClasses() = %v, LimitsBandwidth() = %v, want nothing", classes, set.LimitsBandwidth())
	}
}
