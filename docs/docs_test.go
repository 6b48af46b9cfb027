package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = ".."

// files are the repository's files that end so, by their paths from its root, but for what a release has built.
func files(t *testing.T, end string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "dist") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, end) {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)[A-Z]\w*)\(`)
	// A test's name, in a command whose pattern it is, abbreviated, or with a subtest's.
	named = regexp.MustCompile(`(RUN=|-run |-bench )?\b((?:Test|Benchmark|Fuzz)[A-Z]\w*)(…|\*)?(?:/([\w…]+))?`)
	// What else a command may choose tests by.
	chosen = regexp.MustCompile(`RUN=(\w+)`)
)

// Who reads in a document which test shows something finds that test.
func TestTestsNamedInDocumentsExist(t *testing.T) {
	sources := map[string][]string{} // by the tests in them
	for _, text := range files(t, "_test.go") {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			sources[m[1]] = append(sources[m[1]], text)
		}
	}
	chooses := func(part string) bool {
		for name := range sources {
			if strings.Contains(name, part) {
				return true
			}
		}
		return false
	}
	for path, text := range files(t, ".md") {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			command, name, rest, sub := m[1], m[2], m[3], m[4]
			switch {
			case command != "" && chooses(name):
			case rest != "" || strings.Contains(sub, "…"):
				t.Errorf("%s: %s is abbreviated, want the whole name", path, m[0])
			case sources[name] == nil:
				t.Errorf("%s: there is no %s", path, name)
			case sub != "" && !strings.Contains(strings.Join(sources[name], ""), strings.ReplaceAll(sub, "_", " ")):
				t.Errorf("%s: %s has no subtest %s", path, name, sub)
			}
		}
		for _, m := range chosen.FindAllStringSubmatch(text, -1) {
			if !chooses(m[1]) {
				t.Errorf("%s: %s chooses no test", path, m[0])
			}
		}
	}
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// Links between documents, and to files, lead somewhere.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	documents := files(t, ".md")
	anchors := map[string]bool{} // as "path#anchor"
	for path, text := range documents {
		for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			anchors[path+"#"+anchor(m[1])] = true
		}
	}
	for path, text := range documents {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to, part, inside := strings.Cut(m[1], "#")
			target := path
			if to != "" {
				target = filepath.Join(filepath.Dir(path), to)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
			} else if inside && !anchors[target+"#"+part] {
				t.Errorf("%s: %s: there is no such heading", path, m[1])
			}
		}
	}
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// rows are the rows of a document's tables that have so many cells, without the heads.
func rows(t *testing.T, path string, cells int) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	var before string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") {
			before = line
			continue
		}
		row := strings.Split(strings.Trim(strings.ReplaceAll(strings.TrimSpace(line), `\|`, "¦"), "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if head := !strings.HasPrefix(before, "|"); !head && len(row) == cells {
			all = append(all, row)
		}
		before = line
	}
	if len(all) == 0 {
		t.Fatalf("%s has no row of %d cells", path, cells)
	}
	return all
}

var code = regexp.MustCompile("`([^`]+)`")

// Each failure has a test that exists, and is seen in metrics that exist.
func TestFailures(t *testing.T) {
	metric, run := regexp.MustCompile(`\bsluice_[a-z_]+`), regexp.MustCompile("`make (chaos|soak|overload)`")
	text, err := os.ReadFile("failures.md")
	if err != nil {
		t.Fatal(err)
	}
	all := rows(t, "docs/failures.md", 5)
	if lines := strings.Count(string(text), "\n| ") - strings.Count(string(text), "\n| what fails"); len(all) != lines {
		t.Errorf("%d of %d rows have five cells, want all", len(all), lines)
	}
	for _, row := range all {
		// TestTestsNamedInDocumentsExist looks for a test.
		if named.FindString(row[4]) == "" && !run.MatchString(row[4]) {
			t.Errorf("%q: no test", row[0])
		}
		for _, name := range metric.FindAllString(row[3], -1) {
			if !strings.Contains(metrics, "`"+name+"`") && !haproxys[name] {
				t.Errorf("%q: docs/metrics.md has no %s", row[0], name)
			}
		}
	}
}

// haproxys are tables and backends of HAProxy's that are no metrics of ours.
var haproxys = map[string]bool{"sluice_agent": true, "sluice_address": true, "sluice_seconds": true, "sluice_credit": true, "sluice_unreadable": true}

// longest is how many words one reads in ten minutes, and the code map.
const longest = 2350

// The code map names files that there are, and what they declare. The whole page stays one
// that is read at a sitting.
func TestCodeMap(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if words := len(regexp.MustCompile(`[^\s|-]\S*`).FindAll(page, -1)); words > longest { // the lines of tables are none
		t.Errorf("ARCHITECTURE.md has %d words, want %d at most: what is exact belongs to a DESIGN.md or a page of docs/", words, longest)
	}
	for _, row := range rows(t, "ARCHITECTURE.md", 3) {
		wanted := map[string]bool{}
		for _, m := range code.FindAllStringSubmatch(row[2], -1) {
			wanted[m[1]] = true
		}
		found := map[string]bool{}
		for _, m := range code.FindAllStringSubmatch(row[1], -1) {
			source, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil {
				t.Errorf("%q: %v", row[0], err)
				continue
			}
			any := !strings.HasSuffix(m[1], ".go") && !strings.HasSuffix(m[1], ".cfg")
			for name := range wanted {
				if declares(m[1], string(source), name) {
					found[name], any = true, true
				}
			}
			if !any {
				t.Errorf("%q: %s has none of %s", row[0], m[1], row[2])
			}
		}
		for name := range wanted {
			if !found[name] {
				t.Errorf("%q: no %s in %s", row[0], name, row[1])
			}
		}
	}
}

// declares reports whether a file has a function or type, or if it is no Go file, a line.
func declares(path, source, name string) bool {
	if !strings.HasSuffix(path, ".go") {
		return strings.Contains(source, name)
	}
	return regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + regexp.QuoteMeta(name) + `\b`).MatchString(source)
}

// A path that a document names leads to a file or folder.
func TestPathsInDocumentsExist(t *testing.T) {
	folders, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var tops []string
	for _, d := range folders {
		if d.IsDir() && !strings.HasPrefix(d.Name(), ".") && d.Name() != "bin" {
			tops = append(tops, regexp.QuoteMeta(d.Name()))
		}
	}
	path := regexp.MustCompile(`^(?:` + strings.Join(tops, "|") + `)/[\w./-]+$`)
	seen := 0
	for document, text := range files(t, ".md") {
		for _, m := range code.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if !path.MatchString(m[1]) {
				continue
			}
			seen++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
	}
	if seen == 0 {
		t.Error("no document names a path")
	}
}

// A setting that is commented out in the packages' files is one that the programs have.
func TestSettingsOfThePackagesExist(t *testing.T) {
	known := files(t, "haproxy.cfg")["haproxy/haproxy.cfg"] + files(t, "sluice-haproxy.service")["deploy/systemd/sluice-haproxy.service"]
	for _, text := range files(t, ".go") {
		for _, m := range regexp.MustCompile(`env:"(\w+)"`).FindAllStringSubmatch(text, -1) {
			known += " " + m[1]
		}
	}
	settings := 0
	for name, text := range files(t, ".env") {
		for _, m := range regexp.MustCompile(`(?m)^#?(SLUICE_\w+)=`).FindAllStringSubmatch(text, -1) {
			settings++
			if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(known) {
				t.Errorf("%s has %s, which nothing reads", name, m[1])
			}
		}
	}
	if settings == 0 {
		t.Error("no settings found")
	}
}
