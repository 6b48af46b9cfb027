package riverqos

import (
	"encoding/json"
	"testing"
)

func TestMark(t *testing.T) {
	for _, c := range []struct {
		name, metadata string
		marks          map[string]any
		want           string
		ok             bool
	}{
		{"an empty object", `{}`, map[string]any{markUser: "ann"}, `{"sluice:user":"ann"}`, true},
		{"nothing is an empty object", ``, map[string]any{markUser: "ann"}, `{"sluice:user":"ann"}`, true},
		{"null is one as well", `null`, map[string]any{markUser: "ann"}, `{"sluice:user":"ann"}`, true},
		{"what is there stays as it is", `{"n": 12345678901234567890}`, map[string]any{markUser: "ann"}, `{"n":12345678901234567890,"sluice:user":"ann"}`, true},
		{"another's mark does not count", `{"sluice:user": "bob", "sluice:wait": "gated"}`, map[string]any{markUser: "ann", markWait: nil}, `{"sluice:user":"ann"}`, true},
		{"an array takes no marks", `[]`, map[string]any{markUser: "ann"}, ``, false},
		{"nor does what is no JSON", `{`, map[string]any{markUser: "ann"}, ``, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, ok := addMarks([]byte(c.metadata), c.marks); string(got) != c.want || ok != c.ok {
				t.Errorf("mark(%s) = %s, %v, want %s, %v", c.metadata, got, ok, c.want, c.ok)
			}
		})
	}
}

func FuzzMark(f *testing.F) {
	for _, metadata := range []string{`{}`, `{"a": [1, {"b": null}]}`, `{"sluice:user": 1}`, `null`, `[]`, ``, `{"a":1,"a":2}`} {
		f.Add([]byte(metadata), "ann", 1.5)
	}
	f.Fuzz(func(t *testing.T, metadata []byte, user string, since float64) {
		readMarks(metadata) // does not panic
		marked, ok := addMarks(metadata, map[string]any{markUser: user, markSince: since})
		if !ok {
			return
		}
		if !json.Valid(marked) {
			t.Fatalf("mark(%q) = %q, which is not JSON", metadata, marked)
		}
		twice, ok := addMarks(marked, map[string]any{markUser: user, markSince: since})
		if !ok || string(twice) != string(marked) {
			t.Errorf("mark(mark(%q)) = %q, %v, want %q", metadata, twice, ok, marked)
		}
	})
}

func TestService(t *testing.T) {
	for queue, want := range map[string]string{
		"analysis_priority": "analysis", "analysis_default": "analysis", "analysis_scheduled": "analysis",
		"analysis": "analysis", "default": "default", "_default": "_default", "a_default_priority": "a_default", "": "",
	} {
		if got := service(queue); got != want {
			t.Errorf("service(%q) = %q, want %q", queue, got, want)
		}
	}
}
