package limitfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

var update = flag.Bool("update", false, "write the golden files in testdata")

// TestGoodFiles pins what each good file means.
func TestGoodFiles(t *testing.T) {
	for _, path := range glob(t, "testdata/good-*.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			set, err := Load(path)
			testkit.Must(t, err)
			golden(t, path, print(set))
		})
	}
}

// TestBadFiles pins every error of each bad file: one file a rule.
func TestBadFiles(t *testing.T) {
	for _, path := range glob(t, "testdata/bad-*.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			testkit.Must(t, err)
			set, err := Parse(filepath.Base(path), data)
			if errs := (Errors)(nil); set != nil || !errors.As(err, &errs) {
				t.Fatalf("Parse = %v, %v, want Errors", set, err)
			}
			golden(t, path, err.Error()+"\n")
		})
	}
}

// TestOneFault pins the errors of files that have one fault each: in testdata/bad.txtar each file is followed by them.
func TestOneFault(t *testing.T) {
	const path = "testdata/bad.txtar"
	archive, err := txtar.ParseFile(path)
	testkit.Must(t, err)
	for i := 0; i+1 < len(archive.Files); i += 2 {
		file, want := archive.Files[i], &archive.Files[i+1]
		_, err := Parse(file.Name, file.Data)
		got := fmt.Sprintln(err)
		if *update {
			want.Data = []byte(got)
		}
		if err == nil || got != string(want.Data) || strings.TrimSuffix(want.Name, ".txt") != strings.TrimSuffix(file.Name, ".yaml") {
			t.Errorf("Parse = %s, want as in %s: %s", got, want.Name, want.Data)
		}
	}
	if *update {
		testkit.Must(t, os.WriteFile(path, txtar.Format(archive), 0o644))
	}
}

// TestExamples holds the files that are shipped to what they promise.
func TestExamples(t *testing.T) {
	for _, tt := range []struct {
		path, defaultTier string
		tiers, users      int
	}{
		{"../../../config/limits.yaml", "free", 3, 3},
		{"../../../config/examples/s3.yaml", "standard", 3, 3},
		{"../../../config/examples/api.yaml", "free", 4, 6},
		{"../../../config/examples/jobs.yaml", "free", 5, 6},
		{"../../../config/examples/tenants.yaml", "free", 3, 3},
		{"../../../config/examples/llm.yaml", "free", 4, 4},
	} {
		t.Run(filepath.Base(tt.path), func(t *testing.T) {
			set, err := Load(tt.path)
			testkit.Must(t, err)
			first, _, _ := strings.Cut(string(set.Source()), "\n")
			if want := "# yaml-language-server: $schema=limits.schema.json"; strings.ReplaceAll(first, "../", "") != want {
				t.Errorf("%s begins with %s, want %s", tt.path, first, want)
			}
			if set.DefaultTier() != tt.defaultTier || len(set.TierNames()) != tt.tiers || set.UserCount() != tt.users {
				t.Errorf("Load(%s) = default %s, %d tiers, %d users, want %s, %d, %d", tt.path,
					set.DefaultTier(), len(set.TierNames()), set.UserCount(), tt.defaultTier, tt.tiers, tt.users)
			}
		})
	}
	shipped := append(glob(t, "../../../config/*.yaml"), glob(t, "../../../config/examples/*.yaml")...)
	if len(shipped) != 6 {
		t.Errorf("config has %v, want each of them in this test", shipped)
	}
}

func TestParseGenerated(t *testing.T) {
	const head = "version: 1\ndefault_tier: free\ntiers: {free: {}}\n"
	for _, tt := range []struct{ name, source, want string }{
		{"empty file", "", "f:1:1: the file is empty; it needs version, default_tier and tiers"},
		{"only a byte order mark", "\ufeff", "f:1:1: the file is empty; it needs version, default_tier and tiers"},
		{"only a document mark", "---\n", "f:1:1: the file is empty; it needs version, default_tier and tiers"},
		{"tab", head + "users:\n\talice: free\n", "f:5:1: not valid YAML: found character that cannot start any token; " +
			"indent with blanks, not tabs, and quote names that begin with @, ` or %"},
		{"not UTF-8", head + "users: {é\xff: free}\n", "f:4:10: the file is not UTF-8 text"},
		{"UTF-16", "\xff\xfev\x00", "f:1:1: the file is not UTF-8 text"},
		{"control character", head + "users: {\x01: free}", "f:4:9: not valid YAML: control characters are not allowed"},
		{"NUL", head + "users: {a\x00: free}", "f:4:10: not valid YAML: control characters are not allowed"},
		{"deep nesting", head + "users: " + strings.Repeat("[", 20_000), "f:4:10008: not valid YAML: exceeded max depth of 10000; " +
			"a limit file is four levels deep"},
		{"nesting below the depth of the YAML library", head + "users: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000),
			"f:4:8: users must be a mapping such as {alice: free}, got a list"},
		{"too large", strings.Repeat("#", MaxFileSize+1), "f:1:1: the file is larger than 64 MiB"},
		{"more values than memory is for", head + "users: [" + strings.Repeat("a,", maxParts) + "]",
			"f:1:1: the file has about 8000008 values; at most 8000000 are possible"},
		{"more items than memory is for", head + "users:\n" + strings.Repeat("- a\n", maxParts),
			"f:1:1: the file has about 8000007 values; at most 8000000 are possible"},
		{"alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + head,
			"f:1:1: the file: unknown field \"a\" (valid: version, default_tier, tiers, users, groups, mode, windows, anonymous_tier, unreadable, classes, exempt, costs, queues, and 3 more)\n" +
				"f:2:1: the file: unknown field \"b\" (valid: version, default_tier, tiers, users, groups, mode, windows, anonymous_tier, unreadable, classes, exempt, costs, queues, and 3 more)\n" +
				"f:3:1: the file: unknown field \"c\" (valid: version, default_tier, tiers, users, groups, mode, windows, anonymous_tier, unreadable, classes, exempt, costs, queues, and 3 more)"},
		{"tier name of 101 bytes", "version: 1\ndefault_tier: a\ntiers: {a: {}, " + strings.Repeat("b", 101) + ": {}}",
			`f:3:16: the tier name "` + strings.Repeat("b", 60) + `"… is not usable; write 1 to 100 bytes without control characters, and no ~ in front`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("f", []byte(tt.source))
			if err == nil || err.Error() != tt.want {
				t.Errorf("Parse = %v, want %s", err, tt.want)
			}
		})
	}
}

// TestDocumentsSurvivesAPanic: the YAML library has panicked on strange input
// before, and a limit file must not end a daemon.
func TestDocumentsSurvivesAPanic(t *testing.T) {
	_, _, err := documents(panicReader{})
	if got, want := fmt.Sprint(err), "yaml: index out of range"; got != want {
		t.Errorf("documents(a reader that panics) = %s, want %s", got, want)
	}
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("index out of range") }

func TestErrorsAreSortedAndBounded(t *testing.T) {
	file := func(users int) []byte {
		var b bytes.Buffer
		b.WriteString("version: 1\nusers:\n")
		for i := range users {
			fmt.Fprintf(&b, "  u%d: gold\n", i)
		}
		b.WriteString("default_tier: gold\ntiers: {free: {concurrent: 0}}\n")
		return b.Bytes()
	}
	for _, tt := range []struct {
		users, want int
		last        string
	}{
		{18, 20, "f:22:28: tier \"free\": concurrent must be 1 or more, got 0; write requests: 0 to refuse every request, or unlimited to lift the limit"},
		{19, 21, "f:23:28: and 1 more error"},
		{20, 21, "f:23:15: and 2 more errors"},
		{5000, 21, "f:23:8: and 4982 more errors"},
	} {
		_, err := Parse("f", file(tt.users))
		var errs Errors
		if !errors.As(err, &errs) || len(errs) != tt.want {
			t.Fatalf("Parse of a file with %d bad users = %d errors, want %d", tt.users, len(errs), tt.want)
		}
		if got := errs[len(errs)-1].Error(); got != tt.last {
			t.Errorf("last error of a file with %d bad users = %s, want %s", tt.users, got, tt.last)
		}
		if got, want := errs[0].Error(), `f:3:7: user "u0": tier: unknown tier "gold" (valid: free)`; got != want {
			t.Errorf("first error = %s, want %s", got, want)
		}
		if !slices.IsSortedFunc(errs, func(a, b *Error) int { return a.Line - b.Line }) {
			t.Errorf("errors are not sorted by line: %v", errs)
		}
		var first *Error
		if !errors.As(err, &first) || first != errs[0] {
			t.Errorf("errors.As(*Error) = %v, want the first error", first)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	t.Run("missing file", func(t *testing.T) {
		if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load = %v, want fs.ErrNotExist", err)
		}
	})
	t.Run("directory", func(t *testing.T) {
		if _, err := Load(dir); err == nil || !strings.HasPrefix(err.Error(), "read limit file: ") {
			t.Errorf("Load = %v, want read limit file: …", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		path := filepath.Join(dir, "large.yaml")
		testkit.Must(t, os.WriteFile(path, nil, 0o600))
		testkit.Must(t, os.Truncate(path, 1<<40)) // sparse
		want := path + ":1:1: the file is larger than 64 MiB"
		if _, err := Load(path); err == nil || err.Error() != want {
			t.Errorf("Load = %v, want %s", err, want)
		}
	})
}

func TestSet(t *testing.T) {
	long := strings.Repeat("x", 300)
	source := "version: 1\ndefault_tier: free\ntiers: {pro: {concurrent: 9, requests: {GET: 5}, over_limit: {concurrent: wait 2s}, priority: 3}, free: {}}\n" +
		"users: {zoe: pro, " + long + ": pro, ~bob: {tier: pro, concurrent: 1}, same: {tier: pro, concurrent: 9, over_limit: {concurrent: wait 2000ms}, priority: 3}}\n"
	data := []byte(source)
	set, err := Parse("f", data)
	testkit.Must(t, err)
	for i := range data {
		data[i] = 'x' // the caller's again
	}
	if got := string(set.Source()); got != source {
		t.Errorf("Source() = %q, want %q", got, source)
	}
	if got, want := set.Version(), fmt.Sprintf("%x", sha256.Sum256([]byte(source)))[:12]; got != want {
		t.Errorf("Version() = %q, want %q", got, want)
	}
	if got, want := slices.Collect(set.UserNames()), []string{"same", long, "zoe", "~bob"}; !slices.Equal(got, want) || set.UserCount() != 4 {
		t.Errorf("Users() = %q (%d), want %q", got, set.UserCount(), want)
	}
	if got, want := set.TierNames(), []string{"free", "pro"}; !slices.Equal(got, want) {
		t.Errorf("Tiers() = %q, want %q", got, want)
	}
	pro, _ := set.TierLimits("pro")
	free, _ := set.TierLimits("free")
	if l, ok := set.TierLimits("gold"); l != nil || ok {
		t.Errorf("Tier(gold) = %v, %v, want nil, false", l, ok)
	}
	for _, tt := range []struct {
		name, key string
		want      *limits.Limits
	}{
		{"named user shares the tier's limits", "zoe", pro},
		{"override that changes nothing shares them too", "same", pro},
		{"long name by its key", limits.Key(long), pro},
		{"long name is not a key", long, free},
		{"name with a tilde is not a key", "~bob", free},
		{"unknown user has the default tier", "nobody", free},
		{"no user has the default tier", "", free},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := set.User(tt.key); got != tt.want {
				t.Errorf("User(%q) = %+v, want %+v", tt.key, got, tt.want)
			}
		})
	}
	got := set.User(limits.Key("~bob"))
	if got.Concurrent != 1 || got.Tier != "pro" || got.Wait != 2*time.Second || got.Priority != 3 || !slices.Equal(slices.Collect(got.Rates()), slices.Collect(pro.Rates())) {
		t.Errorf("User(Key(~bob)) = %+v, want pro with concurrent 1", got)
	}
}

// TestSetIsSmall bounds what a user costs in the worst case, when no two have
// the same limits. It fails if a Set keeps alive what Parse needed to make it.
func TestSetIsSmall(t *testing.T) {
	const users, most = 20_000, 300 // bytes a user, the 46 of the user's line included
	var file bytes.Buffer
	file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 5}}}\nusers:\n")
	for i := range users {
		fmt.Fprintf(&file, "  user-%07d: {tier: free, concurrent: %d}\n", i, i+1)
	}
	before := heap()
	set := mustParse(t, file.String())
	after := heap()
	if got := (int64(after) - int64(before)) / users; got > most {
		t.Errorf("a set of %d users keeps %d bytes a user, want at most %d", set.UserCount(), got, most)
	}
	runtime.KeepAlive(set)
	runtime.KeepAlive(file)
}

// filePatterns match the files of testdata, good ones and bad ones, and those that are shipped.
var filePatterns = []string{"testdata/*.yaml", "../../../config/*.yaml", "../../../config/examples/*.yaml"}

func FuzzParse(f *testing.F) {
	for _, pattern := range filePatterns {
		for _, path := range glob(f, pattern) {
			data, err := os.ReadFile(path)
			testkit.Must(f, err)
			f.Add(data)
		}
	}
	f.Add([]byte("version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {concurrent: 9}}\n" + "users:\n  alice: pro\n  bob: {tier: pro}\n"))
	f.Add([]byte("? [a]\n: {<<: *x}\n"))
	f.Add([]byte("a: !!binary |\n  x\n--- \n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse("f", data)
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 || len(errs) > maxErrors+1 || set != nil {
				t.Fatalf("Parse(%q) = %v, %v, want no set and 1 to %d Errors", data, set, err, maxErrors+1)
			}
			for _, e := range errs {
				if e.File != "f" || e.Line < 1 || e.Column < 1 || e.Message == "" || len(e.Message) > 2000 {
					t.Fatalf("Parse(%q) = %#v, want a position and a message", data, e)
				}
			}
			return
		}
		schemaAccepts(t, data)
		again, err := Parse("f", set.Source())
		if err != nil {
			t.Fatalf("Parse(Source of %q) = %v", data, err)
		}
		if a, b := print(set), print(again); a != b {
			t.Fatalf("Parse(Source of %q) = %s, want %s", data, b, a)
		}
		if l, ok := set.TierLimits(set.DefaultTier()); !ok || set.User("~nobody") != l {
			t.Fatalf("Parse(%q): unknown users do not have the default tier", data)
		}
		for name := range set.UserNames() {
			if set.User(limits.Key(name)) == nil {
				t.Fatalf("Parse(%q): user %q has no limits", data, name)
			}
		}
	})
}

// print shows everything that a set says.
func print(s *limits.Set) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %s, default tier %s\n", s.Version(), s.DefaultTier())
	for _, d := range s.Dedicated() {
		fmt.Fprintf(&b, "workers: %+v\n", d)
	}
	printRules(&b, s, s.Exempt())
	for _, name := range s.GroupNames() {
		l, _ := s.GroupLimits(name)
		printLimits(&b, "group", name, l)
	}
	for at := s; ; at = at.At(at.Expires()) {
		for name := range at.UserNames() {
			printLimits(&b, "user", name, at.User(limits.Key(name)))
		}
		if at.Expires().IsZero() {
			return b.String()
		}
		fmt.Fprintf(&b, "from %v on\n", at.Expires())
	}
}

// printRules writes what a set says besides its users.
func printRules(b *strings.Builder, s *limits.Set, exempt limits.Exempt) {
	if s.UnreadableTier() != "" {
		fmt.Fprintf(b, "unreadable tier %q\n", s.UnreadableTier())
	}
	if s.Mode() != limits.Enforce || s.AnonymousTier() != "" {
		fmt.Fprintf(b, "mode %v, anonymous tier %q\n", s.Mode(), s.AnonymousTier())
	}
	for _, c := range s.Classes() {
		fmt.Fprintf(b, "class %s: %+v\n", c.Name, c.Any)
	}
	for _, u := range s.CostUnits() {
		fmt.Fprintf(b, "cost: %+v\n", u)
	}
	for _, q := range s.Queues() {
		fmt.Fprintf(b, "queues: %+v\n", q)
	}
	if a := s.AddressLimits(); a != (limits.AddressLimits{}) {
		fmt.Fprintf(b, "each address: requests %d, concurrent %d, failed authentication %q\n", a.Requests, a.Concurrent, a.FailedAuthString())
	}
	if x := exempt; len(x.Users)+len(x.Addresses)+len(x.Paths) > 0 {
		fmt.Fprintf(b, "exempt: %+v\n", x)
	}
	for _, name := range s.TierNames() {
		l, _ := s.TierLimits(name)
		printLimits(b, "tier", name, l)
	}
}

func printLimits(b *strings.Builder, what, name string, l *limits.Limits) {
	var also string
	if l.Bandwidth.DefaultShare != 0 {
		also += fmt.Sprintf(", default share %d", l.Bandwidth.DefaultShare)
	}
	if except := l.Except(); len(except) > 0 {
		also += fmt.Sprintf(", concurrent except %v", except)
	}
	if l.ConcurrentMode != limits.Enforce {
		also += fmt.Sprintf(", concurrent %v", l.ConcurrentMode)
	}
	if l.OffFields() != nil {
		also += fmt.Sprintf(", off %v", l.OffFields())
	}
	if l.Group != "" {
		also += ", group " + l.Group
	}
	if j := l.Jobs(); j.Stated {
		also += fmt.Sprintf(", jobs %d %v %s %v of %d", j.Total, j.Queues, j.Class, j.Mode, j.Source)
	}
	for c := range l.Costs() {
		also += fmt.Sprintf(", cost %s %d%s %v", c.Name(), c.Max, printCalendar(c.Calendar), c.Mode)
	}
	var rates []string
	for r := range l.Rates() {
		text := fmt.Sprintf("{%s %d", r.Name(), r.Max)
		if r.Burst != 0 {
			text += fmt.Sprintf(" burst %d", r.Burst)
		}
		if r.Mode != limits.Enforce {
			text += " " + r.Mode.String()
		}
		rates = append(rates, text+printCalendar(r.Calendar)+"}")
	}
	fmt.Fprintf(b, "%s %q: tier %s, concurrent %d, wait %v, priority %d, down %d, up %d%s, requests %v\n",
		what, name, l.Tier, l.Concurrent, l.Wait, l.Priority, l.Bandwidth.Down, l.Bandwidth.Up, also, rates)
}

func printCalendar(c *limits.Calendar) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" by %v %v %d", c.Zone(), c.DayStarts(), c.MonthStarts())
}

// golden compares got with the .txt file beside a .yaml file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	path = strings.TrimSuffix(path, ".yaml") + ".txt"
	if *update {
		testkit.Must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s (-want +got):\n%s", path, diff)
	}
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("Glob(%s) = %v, %v, want files", pattern, paths, err)
	}
	return paths
}
