package limitfile

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// sameWithout checks that what is read quickly is what the YAML library alone reads,
// and returns whether it was.
func sameWithout(t rapid.TB, data []byte) (quick bool) {
	t.Helper()
	f := parseOnce("f", data, nil, nil, true)
	if f.any() || f.doubtful {
		return false // Parse has the library read it
	}
	slow := parseOnce("f", data, nil, nil, false)
	if slow.any() {
		t.Fatalf("%q is read quickly without an error, and else with %v", data, slow.errors())
	}
	if diff := cmp.Diff(print(slow.set), print(f.set)); diff != "" {
		t.Fatalf("%q is read quickly as another set (-slow +quick):\n%s", data, diff)
	}
	return true
}

const linesHead = "version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {concurrent: 9}, \"null\": {concurrent: 1}, \"7\": {concurrent: 7}}\n"

// TestQuickIsLikeSlow joins lines that are plain, and lines that change what plain
// ones around them mean.
func TestQuickIsLikeSlow(t *testing.T) {
	line := rapid.OneOf(
		rapid.Map(rapid.IntRange(0, 30), func(n int) string { return fmt.Sprintf("  u%d: pro", n) }),
		rapid.SampledFrom([]string{
			"", "  ", "# comment", "  # comment", "    # comment", "   a: pro", "    more", "      deep: pro", "  null: pro", "  True: pro", "  b: null", "  1.5: pro", "  0x10: 7",
			"  2026-12-01: pro", "  c: 7", "  d: pro # vip", "  e: pro#vip", "  f: pro  ", "  g:  free", "  h:pro", "  i :pro", "  j: gold", "  k", "  l:", "  m: {tier: pro, concurrent: 3}",
			"  n: {tier: pro,", "  concurrent: 4", "  }", "  concurrent: 4}", "  'o o': pro", "  \"p\": pro", "  \"q", "  r: \"pro", "  s: pro\"", "  t: |", "  v: >-", "  w: &x pro", "  x: *x",
			"  y: !t pro", "  ? z", "  - aa", "- bb", "users:", "users: {}", "version: 1", "  \"cc*\": {concurrent: 5, requests: {GET: 5, \"*\": 3}}", "  dd: {comment: it's}", "  ee: {comment: 'it is {'}",
			"  ff: {comment: \"a } b\"}", "  gg: {comment: a 'b {c'}", "  hh: {concurrent: 3} # x", "  ii: {concurrent: 3}, jj: pro", "---", "...", "  kk@x.y/z+: pro", "\tll: pro", "  mm: pro\r", "  nn: pr\u2028o: pro",
			"  oo: { concurrent: 3, endpoints: {} }", "comment: \"", "\"", "  pp: [pro]", "  'qq': {tier: 'pro'}", "  rr*: pro", "  ss: {tier: pro, until: 2026-12-01T00:00:00Z, then: free}", "  tt: pro: x",
			"mode: dry-run", "x: {", "}", "<<: a", "  <<: pro", "  ~: pro", "  uu: ~", "  vv: 'pro", "  it's: pro",
			"  ~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460: pro", "  ~C88305B7:2EB3513EE0E06C25D4428A1AC8C0213E: {concurrent: 3}", "  ~C88305B7.6EEFAD2BED97B6D93EE663D67A44B46g: pro",
			"  ~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460x: pro", "  ~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460:pro",
		}),
	)
	quick, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		head := rapid.SampledFrom([]string{linesHead, "", "---\n" + linesHead, "{" + strings.ReplaceAll(linesHead, "\n", ",\n")}).Draw(t, "head")
		tail := rapid.SampledFrom([]string{"", linesHead, "mode: off\n", "}\n"}).Draw(t, "tail")
		lines := rapid.SliceOfN(line, 0, 8).Draw(t, "lines")
		data := head + rapid.SampledFrom([]string{"users:\n", "users: # all\n", "users:  \n", " users:\n", "users: &x\n", "\"users\":\n"}).Draw(t, "users") +
			strings.Join(lines, "\n") + rapid.SampledFrom([]string{"\n", ""}).Draw(t, "end") + tail
		all++
		if sameWithout(t, []byte(data)) {
			quick++
		}
	})
	if quick == 0 || quick == all {
		t.Errorf("%d of %d files were read quickly, want some and not all", quick, all)
	}
}

func TestPlainLinesAreQuick(t *testing.T) {
	for _, tt := range []struct {
		name, users string
		count       int // plain lines
	}{
		{"plain", "  a: pro\n  b-1.x@y+z/2: free # vip\n\n# all\n  c:   pro  \n", 3},
		{"no newline at the end", "  a: pro", 1},
		{"with overrides in one line", "  a: pro\n  b: {tier: pro, concurrent: 3}\n  \"c*\": pro\n  d*: free\n", 1},
		{"followed by another field", "  a: pro\nmode: off\n", 1},
		{"nothing plain", "  \"a\": pro\n", 0},
		{"an override in several lines", "  a: pro\n  b:\n    tier: pro\n", 0},
	} {
		_, p := plainLines([]byte(linesHead + "users:\n" + tt.users))
		if p.count != tt.count {
			t.Errorf("%s: %d plain lines, want %d", tt.name, p.count, tt.count)
		}
		if quick := sameWithout(t, []byte(linesHead+"users:\n"+tt.users)); !quick {
			t.Errorf("%s: it is not read quickly", tt.name)
		}
	}
}

func TestOneLine(t *testing.T) {
	for _, tt := range []struct {
		line string
		want bool
	}{
		{"a: {}", true}, {"a: {b: {c: [d, 'e }', \"f {\"]}}  # g", true}, {"'a b': pro", true}, {"a*: pro", true}, {"a: pro # b", true},
		{"a: {b: it's, c: {d: it's}", false}, // the braces between the quotes count: neither is one
		{"a: {b: {c: d}", false}, {"a: {b: 'c}", false}, {"a: {b: \"c\\\"}", false}, {"a: {b: c}, d: e", false}, {"a: {b: c} d", false},
		{"a: {b: c # }", false}, {"a: {b: *c}", false}, {"a: |", false}, {"a:", false}, {"a", false}, {"? a", false}, {"'a: pro", false}, {"a: 'pro'", false}, {"", false}, {"\"a\": \"", false},
	} {
		if got := oneLine([]byte(tt.line)); got != tt.want {
			t.Errorf("oneLine(%s) = %v, want %v", tt.line, got, tt.want)
		}
	}
}

// millionUsers is a file of so many users, each of whom costs 22 bytes of it.
func millionUsers(n int) []byte {
	var file bytes.Buffer
	file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {requests: {GET: 100, \"*\": 200}}}\nusers:\n")
	for i := range n {
		fmt.Fprintf(&file, "  user-%07d: pro\n", i)
	}
	return file.Bytes()
}

// TestMillionUsersAreSmall bounds what a plain user costs while the set is in use,
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
	if set.Len() != users || got < least || got > most {
		t.Errorf("a set of %d users keeps %d bytes a user, want %d to %d", set.Len(), got, least, most)
	}
	if got := int64(m1.TotalAlloc-m0.TotalAlloc) / users; got > reading {
		t.Errorf("reading %d users allocates %d bytes a user, want at most %d", users, got, reading)
	}
	runtime.KeepAlive(set)
	runtime.KeepAlive(file)
}

// BenchmarkMillionUsers reads a file of a million users.
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

// TestOriginOfAPlainLine: what is read quickly is found again, too.
func TestOriginOfAPlainLine(t *testing.T) {
	set := mustParse(t, linesHead+"users:\n  alice: pro\n\n  bob: {tier: pro, concurrent: 3}\n  carol: free\n")
	for user, line := range map[string]int{"alice": 5, "bob": 7, "carol": 8, "nobody": 0} {
		if got := OriginOf(set, user); got.User != line || got.Named != (line > 0) {
			t.Errorf("Origin(%s) = %+v, want line %d", user, got, line)
		}
	}
}
