package haproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The scripts' own tests, run by the Lua that is in HAProxy.
func TestCostScripts(t *testing.T) {
	t.Parallel()
	if err := runCostScripts(testkit.HAProxyPath(t), t.TempDir()); err != nil {
		t.Error(err)
	}
}

// runCostScripts has a HAProxy run cost_scanner_test.lua with the modules of a folder.
func runCostScripts(program, dir string) error {
	return runLua(dir, program, "cost_scanner_test.lua", "costs: all passed")
}

// In whatever pieces documents come, the script reads the same number in them as Go's encoding/json.
func TestCostScannerReadsAsGo(t *testing.T) {
	t.Parallel()
	paths := rapid.SliceOfN(rapid.SampledFrom(costKeys), 1, 2)
	// All in one HAProxy: to start it takes longer than to read them.
	var module strings.Builder
	module.WriteString("return {\n")
	found := 0
	for i := range 400 {
		path, text := paths.Example(i), rapid.Custom(drawDocuments).Example(i)
		want := "nil"
		if n, ok := lastNumber(t, text, path); ok {
			want = strconv.FormatInt(n, 10)
			found++
		}
		fmt.Fprintf(&module, "{text=%s,path={%s},want=%s},\n", luaText(text), luaTexts(path), want)
	}
	module.WriteString("}\n")
	if found < 10 {
		t.Errorf("%d documents have a number at their path, want 10 at least", found)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cost_documents.lua"), []byte(module.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runCostScripts(testkit.HAProxyPath(t), dir); err != nil {
		t.Error(err)
	}
}

// costKeys are few, so that many documents have those of the path. They are written as they are.
var costKeys = []string{"usage", "total_tokens", "us"}

// drawDocuments draws one or several documents, valid and in any form that JSON allows.
func drawDocuments(t *rapid.T) string {
	var b strings.Builder
	for range rapid.IntRange(1, 3).Draw(t, "values") {
		drawValue(t, &b, 4)
		b.WriteByte('\n') // between two numbers there must be something
	}
	return b.String()
}

// drawAnswer draws documents of which about every second has a number at usage.total_tokens, with and without others of these
// names beside it.
func drawAnswer(t *rapid.T) string {
	if rapid.Bool().Draw(t, "any") {
		return drawDocuments(t)
	}
	var b strings.Builder
	// beside draws members of an object, each with a comma after or before it.
	beside := func(before string, after string) {
		for range rapid.IntRange(0, 2).Draw(t, "others") {
			b.WriteString(before)
			switch rapid.IntRange(0, 4).Draw(t, "member") {
			case 0: // names of the path, which a reader could take for those that count
				fmt.Fprintf(&b, `"usage":{"total_tokens":%d}`, rapid.IntRange(0, 1<<40).Draw(t, "other"))
			case 1:
				fmt.Fprintf(&b, `"total_tokens":%d`, rapid.IntRange(0, 1<<40).Draw(t, "other"))
			case 2:
				b.WriteString(`"` + rapid.SampledFrom(costKeys).Draw(t, "key") + `":`)
				drawValue(t, &b, 2)
			default:
				drawText(t, &b)
				b.WriteByte(':')
				drawValue(t, &b, 2)
			}
			b.WriteString(after)
		}
	}
	b.WriteByte('{')
	beside("", ",")
	b.WriteString(`"usage":{`)
	beside("", ",")
	b.WriteString(`"total_tokens":` + strconv.Itoa(rapid.IntRange(0, 1<<40).Draw(t, "cost")))
	beside(",", "")
	b.WriteByte('}')
	beside(",", "")
	b.WriteByte('}')
	return b.String()
}

func drawValue(t *rapid.T, b *strings.Builder, depth int) {
	space := func() {
		b.WriteString(rapid.SampledFrom([]string{"", "", "", " ", "\n", "\t \r\n"}).Draw(t, "space"))
	}
	space()
	kind := rapid.IntRange(0, 15).Draw(t, "kind")
	if depth == 0 {
		kind %= 4
	}
	switch {
	case kind == 0:
		b.WriteString(rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "word"))
	case kind <= 2:
		b.WriteString(rapid.SampledFrom([]string{
			"0", "-0", "7", "21", "21.0", "2.1e1", "21E0", "2.5", "-3", "1e400", "1e-3", "1000000000000", "1000000000001", "123456789012345678901234567890",
			strconv.Itoa(rapid.IntRange(0, 1<<40).Draw(t, "whole")),
		}).Draw(t, "number"))
	case kind == 3:
		drawText(t, b)
	case kind <= 5:
		b.WriteByte('[')
		for i := range rapid.IntRange(0, 4).Draw(t, "elements") {
			if i > 0 {
				b.WriteByte(',')
			}
			drawValue(t, b, depth-1)
		}
		b.WriteByte(']')
	default:
		b.WriteByte('{')
		for i := range rapid.IntRange(0, 5).Draw(t, "members") {
			if i > 0 {
				b.WriteByte(',')
			}
			space()
			if rapid.IntRange(0, 3).Draw(t, "another key") == 0 {
				drawText(t, b)
			} else {
				b.WriteString(`"` + rapid.SampledFrom(costKeys).Draw(t, "key") + `"`)
			}
			space()
			b.WriteByte(':')
			drawValue(t, b, depth-1)
		}
		b.WriteByte('}')
	}
	space()
}

// drawText draws a text that is none of costKeys, with what a scanner could take for something else.
func drawText(t *rapid.T, b *strings.Builder) {
	b.WriteString(`"~`)
	for range rapid.IntRange(0, 6).Draw(t, "parts") {
		b.WriteString(rapid.SampledFrom([]string{`\"`, `\\`, `\\\"`, `{`, `}`, `[`, `]`, `,`, `:`, `\u007d`, `\n`, "é", `usage`, `\"usage\":{\"total_tokens\":5}`, `data: `}).Draw(t, "part"))
	}
	b.WriteByte('"')
}

// lastNumber is the last number at the path that may be a cost, as Go reads the documents.
func lastNumber(t *testing.T, text string, path []string) (n int64, ok bool) {
	in := json.NewDecoder(strings.NewReader(text))
	in.UseNumber()
	// walk reads a value; on is how many keys of the path have led to it, or -1.
	var walk func(on int)
	walk = func(on int) {
		token, err := in.Token()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		switch v := token.(type) {
		case json.Delim:
			for in.More() {
				next := -1
				if v == '{' {
					key, err := in.Token()
					if err != nil {
						t.Fatalf("%q: %v", text, err)
					}
					if on >= 0 && on < len(path) && key == path[on] {
						next = on + 1
					}
				}
				walk(next)
			}
			if _, err := in.Token(); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		case json.Number:
			if on != len(path) {
				return
			}
			f, err := strconv.ParseFloat(v.String(), 64)
			if err == nil && f == float64(int64(f)) && f >= 0 && f <= limits.MaxCost {
				n, ok = int64(f), true
			}
		}
	}
	for {
		if !in.More() {
			if _, err := in.Token(); errors.Is(err, io.EOF) {
				return n, ok
			}
		}
		walk(0)
	}
}

// luaText is a text as Lua reads it.
func luaText(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, `\%03d`, c)
	}
	return b.String() + `"`
}

func luaTexts(texts []string) string {
	var all []string
	for _, text := range texts {
		all = append(all, luaText(text))
	}
	return strings.Join(all, ",")
}
