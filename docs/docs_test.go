// Package docs checks what the repository's documents say of it.
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

// files are the repository's files that end so, by their paths from its root.
func files(t *testing.T, end string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
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
