package cause_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/cause"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// constants are the words of the package by the names of their constants.
func constants(t *testing.T) map[string]cause.Cause {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "cause.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]cause.Cause{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			words[spec.Names[0].Name] = cause.Cause(word)
		}
		return true
	})
	return words
}

// TestCausesAreFoundInTheCode: where docs/limits.md says that a refusal with a cause is decided, the
// cause is. Each word has a row, and no row has a word that is not one.
func TestCausesAreFoundInTheCode(t *testing.T) {
	names := map[cause.Cause]string{}
	for name, word := range constants(t) {
		names[word] = name
	}
	all := slices.Collect(maps.Keys(names))

	_, section, found := strings.Cut(read(t, "docs/limits.md"), "### Why was this user throttled?\n")
	if !found {
		t.Fatal("docs/limits.md does not say why users are throttled")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	place := regexp.MustCompile("([a-z/]+\\.go) `([A-Za-z]+)`")
	var rows []cause.Cause
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|.*\\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		word, where := cause.Cause(row[1]), row[2]
		rows = append(rows, word)
		if !slices.Contains(cause.Agent(), word) {
			if cfg := read(t, "haproxy/haproxy.cfg"); where != "haproxy/haproxy.cfg" || !strings.Contains(cfg, "set-var(txn.sluice.cause) str("+string(word)+")") {
				t.Errorf("no rule of haproxy.cfg sets the cause %q, and the document says that it is decided in %s", word, where)
			}
			continue
		}
		places := place.FindAllStringSubmatch(where, -1)
		if len(places) == 0 {
			t.Errorf("the document does not say where %q is decided", word)
		}
		for _, p := range places {
			if body := function(t, p[1], p[2]); !strings.Contains(body, "cause."+names[word]) {
				t.Errorf("%s: %s does not decide cause.%s, as the document says:\n%s", p[1], p[2], names[word], body)
			}
		}
	}
	slices.Sort(rows)
	slices.Sort(all)
	if !slices.Equal(rows, all) {
		t.Errorf("the document explains %v, want %v", rows, all)
	}
}

// function is the text of a function or method of a file; "" if there is none.
func function(t *testing.T, path, name string) string {
	t.Helper()
	text := read(t, path)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			return text[files.Position(f.Pos()).Offset:files.Position(f.End()).Offset]
		}
	}
	return ""
}
