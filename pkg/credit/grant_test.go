package credit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func TestGrantOf(t *testing.T) {
	const u = Unlimited
	many := "*" + strings.Repeat(" X", maxClasses)
	for _, tt := range []struct {
		name, tier, classes string
		instances           int
		want                Grant // no classes: none
	}{
		{"alone, all of it", `{requests: {GET: 40, "*": 60}}`, "* GET", 1, Grant{[]uint32{60, 40}, u, 1}},
		{"no instance known yet", `{requests: {GET: 40}}`, "GET", 0, Grant{[]uint32{40}, u, 1}},
		{"of two instances a portion, more while no agent answers", `{requests: {GET: 40, "*": 60}}`, "* GET", 2, Grant{[]uint32{7, 5}, u, 4}},
		{"in the configuration's order", `{requests: {GET: 40, "*": 60}}`, "GET *", 1, Grant{[]uint32{40, 60}, u, 1}},
		{"classes without a limit", `{requests: {GET: 40}}`, "* GET PUT", 2, Grant{[]uint32{u, 5, u}, u, 4}},
		{"no limits", "{}", "* GET", 3, Grant{[]uint32{u, u}, u, 4}},
		{"requests in progress are not for it to say", `{concurrent: 5}`, "*", 1, Grant{[]uint32{u}, u, 1}},
		{"a class that is not counted", `{requests: {PUT: 40, "*": 60}}`, "* GET", 1, Grant{}},
		{"all but one are counted", `{requests: {GET: 40, PUT: 4}}`, "* GET", 1, Grant{}},
		{"no classes", "{}", " ", 1, Grant{}},
		{"more classes than HAProxy has room for", "{}", many, 1, Grant{}},
	} {
		got, ok := GrantOf(limitsOf(t, tt.tier), tt.classes, tt.instances)
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != (len(tt.want.Each) > 0) {
			t.Errorf("%s: GrantOf(%s, %q, %d), %v (-want +got):\n%s", tt.name, tt.tier, tt.classes, tt.instances, ok, diff)
		}
	}
	if got, ok := GrantOf(limitsOf(t, "{}"), strings.TrimSuffix(many, " X"), 1); !ok || len(got.Each) != maxClasses {
		t.Errorf("%d classes: %d elements, %v, want all of them", maxClasses, len(got.Each), ok)
	}
}

func TestByDefault(t *testing.T) {
	const tiers = "default_tier: a\ntiers: {a: {requests: {GET: 40}}, b: {requests: {GET: 1}, concurrent: 5}}\n"
	for _, tt := range []struct {
		name, file string
		instances  int
		shares     bool
		want       Grant // no classes: none
	}{
		{"the default tier's", tiers, 1, false, Grant{[]uint32{40}, Unlimited, 1}},
		{"of two instances", tiers, 2, false, Grant{[]uint32{5}, Unlimited, 4}},
		{"users with limits of their own", tiers + "users: {alice: b}\nexempt: {users: [bob]}\n", 1, false, Grant{[]uint32{40}, Unlimited, 1}},
		{"names without a credential", tiers + "anonymous_tier: b\n", 1, false, Grant{[]uint32{40}, Unlimited, 1}},
		{"patterns", tiers + "users: {'a*': a}\n", 1, false, Grant{}},
		{"exempt patterns", tiers + "exempt: {users: ['a*']}\n", 1, false, Grant{}},
		{"of all endpoints together", "default_tier: a\ntiers: {a: {requests: {GET: 40}, endpoints: {'*': {requests: {GET: 50}}}}}\nendpoints: [up]\n", 1, false, Grant{}},
		{"an hour's limit", "default_tier: a\ntiers: {a: {requests: {GET: {hour: 40}}}}\n", 1, false, Grant{}},
		{"too little for two", "default_tier: a\ntiers: {a: {requests: {GET: 2}}}\n", 2, false, Grant{}},
		{"requests in progress", "default_tier: a\ntiers: {a: {requests: {GET: 40}, concurrent: 20}}\n", 1, false, Grant{[]uint32{40}, 6, 1}},
		{"and of two instances", "default_tier: a\ntiers: {a: {requests: {GET: 40}, concurrent: 20}}\n", 2, false, Grant{[]uint32{5}, 2, 4}},
		{"one in progress", "default_tier: a\ntiers: {a: {requests: {GET: 40}, concurrent: 1}}\n", 1, false, Grant{}},
		{"a bandwidth down", "default_tier: a\ntiers: {a: {bandwidth: {down: 1MB}}}\n", 1, true, Grant{[]uint32{Unlimited}, Unlimited, 1}},
		{"a bandwidth up", "default_tier: a\ntiers: {a: {bandwidth: {up: 1MB}}}\n", 2, true, Grant{[]uint32{Unlimited}, Unlimited, 4}},
		{"a bandwidth down that HAProxy cannot keep", "default_tier: a\ntiers: {a: {bandwidth: {down: 1MB}}}\n", 1, false, Grant{}},
		{"a bandwidth up that HAProxy cannot keep", "default_tier: a\ntiers: {a: {bandwidth: {up: 1MB}}}\n", 1, false, Grant{}},
		{"a class that is not counted", "default_tier: a\ntiers: {a: {requests: {PUT: 2}}}\n", 1, false, Grant{}},
	} {
		got, ok := ByDefault(setOf(t, tt.file), "GET", tt.shares, tt.instances)
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != (len(tt.want.Each) > 0) {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, ok, diff)
		}
	}

	for _, n := range []int{maxNamed, maxNamed + 1} {
		var users strings.Builder
		for i := range n {
			fmt.Fprintf(&users, "  u%d: b\n", i)
		}
		if _, ok := ByDefault(setOf(t, tiers+"users:\n"+users.String()), "GET", true, 1); ok != (n <= maxNamed) {
			t.Errorf("%d users with limits of their own: %v, want %v", n, ok, !ok)
		}
	}
}

func TestHasDefault(t *testing.T) {
	const file = "default_tier: a\ntiers: {a: {}, b: {}}\nendpoints: [up]\nusers: {wilma: b}\nexempt: {users: [fred]}\n"
	with, without := setOf(t, file+"anonymous_tier: b\n"), setOf(t, file)
	for _, tt := range []struct {
		key           string
		want, address bool // without and with a tier for addresses
	}{
		{"alice", true, true},
		{"wilma", false, false},
		{"fred", false, false},
		{"10.0.0.1", true, false},
		{"2001:db8::1", true, false},
		{"@up/alice", false, false},
		{"~", false, false},
		{"~others", false, false},
		{"~unreadable", false, false},
		{"~ABC", false, false},
		{"", false, false},
	} {
		if got, address := HasDefault(without, tt.key), HasDefault(with, tt.key); got != tt.want || address != tt.address {
			t.Errorf("HasDefault(%q) = %v, %v with a tier for addresses; want %v, %v", tt.key, got, address, tt.want, tt.address)
		}
	}
}

func TestPossibleKey(t *testing.T) {
	for key, want := range map[string]bool{
		"alice": true, "10.0.0.1": true, "~": true, "@up/alice": true, "": true,
		"@*/alice": false, "~others": false, "~others:anonymous": false, "@up/~others": false, "~unreadable": false, "@up/~unreadable": false,
	} {
		if got := PossibleKey(key); got != want {
			t.Errorf("PossibleKey(%q) = %v, want %v", key, got, want)
		}
	}
}

func setOf(t *testing.T, file string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\n"+file))
	if err != nil {
		t.Fatal(err)
	}
	return set
}
