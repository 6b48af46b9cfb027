package haproxy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func TestCreditClasses(t *testing.T) {
	t.Parallel()
	many := "version: 1\ndefault_tier: free\nclasses:\n"
	limited := ""
	for i := range 60 {
		many += fmt.Sprintf("  C%02d: [{path_prefix: /%d/}]\n", i, i)
		limited += fmt.Sprintf(", C%02d: 1", i)
	}
	many += "tiers: {free: {requests: {GET: 1" + limited + "}}}\n"
	for _, row := range []struct {
		name, file string
		want       []string
	}{
		{"none", "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 5}}\n", []string{}},
		{"verbs and all", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {OTHER: 1, GET: 1, PUT: 1, '*': 9}}}\n", []string{"*", "GET", "PUT", "OTHER"}},
		{"operations", "version: 1\ndefault_tier: free\nclasses: {LIST: [{path_prefix: /l/}], BIG: [{path_prefix: /b/}]}\ntiers: {free: {requests: {LIST: 1, POST: 1}}}\n", []string{"POST", "LIST"}},
		{"by the minute", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {minute: 1}}}}\n", []string{}},
		{"more than have room", many, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			set, err := limitfile.Parse("limits.yaml", []byte(row.file))
			if err != nil {
				t.Fatal(err)
			}
			got := CreditClasses(set)
			if row.want == nil {
				if len(got) != maxCreditClasses || got[0] != "GET" || got[1] != "C00" {
					t.Errorf("CreditClasses = %q, want %d of them, the first ones", got, maxCreditClasses)
				}
			} else if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("CreditClasses (-want +got):\n%s", diff)
			}
			// HAProxy takes the rules for them.
			dir := t.TempDir()
			file, env, err := Write(dir, Config{Classes: set.Classes(), CreditClasses: got})
			if err != nil {
				t.Fatal(err)
			}
			if said := check(t, dir, file, env...); said != "" {
				t.Errorf("haproxy -c says %s", said)
			}
			// Classes that have a verb or none of their own are told with it.
			if text := readFile(t, filepath.Join(dir, "haproxy.cfg")); !strings.Contains(strings.ReplaceAll(text, "/", ""), `str("`+strings.TrimSpace(strings.Join(got, " ")+" |")) {
				t.Errorf("%s does not tell the agent of these classes", file)
			}
		})
	}
}

// Classes are checked before they become rules.
func TestCreditClassesAreChecked(t *testing.T) {
	for want, classes := range map[string][]string{
		`haproxy configuration: 28 classes that have tickets: want 27 at most`:                                               make([]string, maxCreditClasses+1),
		`haproxy configuration: class that has tickets "a b": want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter`: {"*", "a b"},
	} {
		if _, err := Render(Config{CreditClasses: classes}); err == nil || err.Error() != want {
			t.Errorf("Render with classes %q: %v, want %s", classes, err, want)
		}
	}
}
