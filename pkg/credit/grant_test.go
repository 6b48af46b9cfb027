package credit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		{"no classes", `{concurrent: 5}`, "| GET", 1, Grant{nil, u, 1}},
		{"an operation class of a verb", `{requests: {GET: 40}}`, "* POST/GET PUT | GET", 2, Grant{[]uint32{u, 5, u}, u, 4}},
		{"more classes than HAProxy has room for", "{}", many, 1, Grant{}},
	} {
		got, ok := GrantOf(limitsOf(t, tt.tier), tt.classes, tt.instances)
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != (tt.want.Factor > 0) {
			t.Errorf("%s: GrantOf(%s, %q, %d), %v (-want +got):\n%s", tt.name, tt.tier, tt.classes, tt.instances, ok, diff)
		}
	}
	if got, ok := GrantOf(limitsOf(t, "{}"), strings.TrimSuffix(many, " X"), 1); !ok || len(got.Each) != maxClasses {
		t.Errorf("%d classes: %d elements, %v, want all of them", maxClasses, len(got.Each), ok)
	}
}

func TestPossibleKey(t *testing.T) {
	for key, want := range map[string]bool{
		"alice": true, "10.0.0.1": true, "~": true, "": true,
		"~others": false, "~others:anonymous": false, "~unreadable": false,
	} {
		if got := PossibleKey(key); got != want {
			t.Errorf("PossibleKey(%q) = %v, want %v", key, got, want)
		}
	}
}
