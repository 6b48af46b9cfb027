package limitfile

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const flatHead = "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {requests: {GET: 100, \"*\": 200}}}\nusers_from: users.txt\n"

// flatBundle is a limit file with a flat users file.
func flatBundle(users []byte) []byte {
	return bundle([]source{{data: []byte(flatHead)}, {name: "users.txt", data: users}})
}

func TestOriginInAFlatFile(t *testing.T) {
	set, err := Parse("etc/limits.yaml", flatBundle([]byte("# all\nalice pro\n\n  bob free\n\"team-*\" pro\nteam-* pro\n")))
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]Origin{
		"alice":  {File: "etc/users.txt", User: 2, Tier: 3, TierFrom: FromEntry},
		"bob":    {File: "etc/users.txt", User: 4, Tier: 3, TierFrom: FromEntry},
		"team-7": {File: "etc/users.txt", User: 6, Tier: 3, TierFrom: FromEntry, Pattern: "team-*"},
		"nobody": {Tier: 3},
	} {
		got := OriginOf(set, user)
		got.Fields = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Origin of %s (-want +got):\n%s", user, diff)
		}
	}
}

// FuzzFlatFile: what a flat file says is what YAML says of the same users.
func FuzzFlatFile(f *testing.F) {
	for _, seed := range []string{"alice pro\n", "a* pro\n*a free", "# x\n\ta\tpro # y\r\n", "a pro\na pro", "a: pro", "~x pro", "@y free\n", "\xff pro", "a\x01 pro"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, users []byte) {
		set, err := Parse("limits.yaml", flatBundle(users))
		if err != nil {
			if len(err.Error()) == 0 {
				t.Error("an error says nothing")
			}
			return
		}
		var same bytes.Buffer
		same.WriteString(flatHead + "users:\n")
		for l := range flatLines(string(users)) {
			fmt.Fprintf(&same, "  %q: %q\n", l.name, l.tier)
			if got := set.User(limits.Key(l.name)).Tier; got != l.tier {
				t.Errorf("%q has the tier %q, want %q", l.name, got, l.tier)
			}
			if o := OriginOf(set, l.name); o.User != l.line {
				t.Errorf("%q is on line %d by its origin, want %d", l.name, o.User, l.line)
			}
		}
		inYAML, err := Parse("limits.yaml", bundle([]source{{data: same.Bytes()}, {name: "none.txt"}}))
		if err != nil {
			t.Fatalf("the same in YAML: %v", err)
		}
		a, b := bytes.SplitN([]byte(print(inYAML)), []byte("\n"), 2), bytes.SplitN([]byte(print(set)), []byte("\n"), 2) // without the versions
		if diff := cmp.Diff(string(a[1]), string(b[1])); diff != "" {
			t.Errorf("flat (-YAML +flat):\n%s", diff)
		}
	})
}

// millionUsers is a limit file with a flat file of so many users, each of whom costs 17
// bytes of it.
func millionUsers(n int) []byte {
	var users bytes.Buffer
	for i := range n {
		fmt.Fprintf(&users, "user-%07d pro\n", i)
	}
	return flatBundle(users.Bytes())
}

// TestMillionUsersAreSmall bounds what a user in a flat file costs while the set is in use,
// the line itself included, and what the whole takes while it is read.
func TestMillionUsersAreSmall(t *testing.T) {
	const users = 1_000_000
	const least, most, reading = 40, 200, 400 // bytes a user
	file := millionUsers(users)
	var m0, m1 runtime.MemStats
	before := heap()
	runtime.ReadMemStats(&m0)
	set, err := Parse("f", file)
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&m1)
	got := (int64(heap()) - int64(before)) / users
	if set.UserCount() != users || got < least || got > most {
		t.Errorf("a set of %d users keeps %d bytes a user, want %d to %d", set.UserCount(), got, least, most)
	}
	if got := int64(m1.TotalAlloc-m0.TotalAlloc) / users; got > reading {
		t.Errorf("reading %d users allocates %d bytes a user, want at most %d", users, got, reading)
	}
	runtime.KeepAlive(set)
	runtime.KeepAlive(file)
}

// BenchmarkMillionUsers reads a flat file of a million users.
func BenchmarkMillionUsers(b *testing.B) {
	file := millionUsers(1_000_000)
	before := heap()
	var set *limits.Set
	for b.Loop() {
		set, _ = Parse("f", file)
	}
	b.ReportMetric(float64(heap()-before)/1e6, "B/user")
	runtime.KeepAlive(set)
	runtime.KeepAlive(file)
}
