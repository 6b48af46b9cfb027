package limitfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const schemaPath = "../../../config/limits.schema.json"

// TestSchemaIsCurrent: go generate ./pkg/limits/limitfile writes the file.
func TestSchemaIsCurrent(t *testing.T) {
	got := writeSchema(t)
	if *update {
		testkit.Must(t, os.WriteFile(schemaPath, got, 0o644))
	}
	want, err := os.ReadFile(schemaPath)
	testkit.Must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("config/limits.schema.json is not current; run go generate ./pkg/limits/limitfile (-file +schemafile_test.go):\n%s", diff)
	}
}

// TestSchemaRefusesOtherFields: every mapping says what may be in it, and every
// field has words that an editor can show.
func TestSchemaRefusesOtherFields(t *testing.T) {
	var walk func(path string, s *schema)
	walk = func(path string, s *schema) {
		// False, or what others there may be: workers has users, beside any names of tiers.
		if a := s.AdditionalProperties; s.Properties != nil && (a == nil || a.Not == nil && a.Type == "") {
			t.Errorf("%s: additionalProperties = %v, want false, or a type", path, s.AdditionalProperties)
		}
		for name, p := range s.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description in words", path, name)
			}
			walk(path+"."+name, p)
		}
		for i, a := range s.AnyOf {
			walk(fmt.Sprintf("%s[%d]", path, i), a)
		}
		for name, d := range s.Defs {
			walk("$defs."+name, d)
		}
	}
	walk("$", schemaFile())
}

// blind are the bad files whose error the schema cannot see, and why.
var blind = map[string]string{
	"bad-alias.yaml":                "JSON has no aliases",
	"bad-tag.yaml":                  "JSON has no tags",
	"bad-tag-nested.yaml":           "JSON has no tags",
	"bad-tag-over-limit.yaml":       "JSON has no tags",
	"bad-duplicate.yaml":            "a name is there twice",
	"bad-several-documents.yaml":    "a schema sees one document",
	"bad-jobs-service.yaml":         "which services there are",
	"bad-workers-others.yaml":       "which tiers and services there are",
	"bad-default-tier-unknown.yaml": "which tiers there are",
	"bad-only-comments.yaml":        "there is no document",
	"bad-anonymous-tier.yaml":       "which tiers there are",
	"bad-unreadable.yaml":           "which tiers there are",
	"bad-class-conditions.yaml":     "how many conditions there are together",
	"bad-class-unknown.yaml":        "which classes there are",
	"bad-costs-class.yaml":          "which classes there are",
	"bad-costs-estimate.yaml":       "which number is the larger one",
	"bad-costs-hop.yaml":            "which headers are about one connection",
	"bad-costs-none.yaml":           "which units there are",
	"bad-costs-unit.yaml":           "which units there are",
	"bad-pattern.yaml":              "which patterns match nobody",
	"bad-until-day.yaml":            "which years have a 29th of February",
	"bad-yaml-at.yaml":              "not YAML",
	"bad-yaml-bracket.yaml":         "not YAML",
	"bad-yaml-colon.yaml":           "not YAML",
	"bad-yaml-indent.yaml":          "not YAML",
	"bad-yaml-nested-value.yaml":    "not YAML",
	"bad-yaml-quote.yaml":           "not YAML",
	"bad-yaml-star-alias.yaml":      "not YAML",
	"bad-yaml-star-block.yaml":      "not YAML",
	"bad-yaml-star-unquoted.yaml":   "not YAML",
	"bad-user-name.yaml":            "names that YAML does not read as text become text",
}

// TestSchemaAgreesWithTheParser: on every good file, on every bad one that it can
// judge, and on the files that are shipped.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	for _, pattern := range filePatterns {
		for _, path := range glob(t, pattern) {
			name := filepath.Base(path)
			if _, ok := blind[name]; ok {
				continue
			}
			t.Run(name, func(t *testing.T) {
				data, err := os.ReadFile(path)
				testkit.Must(t, err)
				_, bad := Parse(name, data)
				var n yaml.Node
				testkit.Must(t, yaml.Unmarshal(data, &n))
				if got := judge(t, toJSON(t, n.Content[0])); (got == nil) != (bad == nil) {
					t.Errorf("the schema says %v, and Parse %v", got, bad)
				}
			})
		}
	}
	for name := range blind {
		if _, err := os.Stat("testdata/" + name); err != nil {
			t.Errorf("the schema need not be blind to it: %v", err)
		}
	}
}

// TestSchemaAgreesOnValues: on values near what is valid.
func TestSchemaAgreesOnValues(t *testing.T) {
	fields := map[string]string{ // by field, a tier with its value at %s
		"requests":      `{requests: %s}`,
		"requests.GET":  `{requests: {GET: %s}}`,
		"concurrent":    `{concurrent: %s}`,
		"bandwidth":     `{bandwidth: %s}`,
		"bandwidth.up":  `{bandwidth: {up: %s}}`,
		"default_share": `{bandwidth: {default_share: %s}}`,
		"over_limit":    `{over_limit: %s}`,
		"wait":          `{over_limit: {concurrent: %s}}`,
		"priority":      `{priority: %s}`,

		"mode":            `{mode: %s}`,
		"requests.second": `{requests: {GET: {second: %s}}}`,
		"requests.burst":  `{requests: {GET: {second: 5, burst: %s}}}`,
		"requests.hour":   `{requests: {GET: {hour: %s, mode: off}}}`,
		"requests.mode":   `{requests: {GET: {second: 5, mode: %s}}}`,
		"concurrent.mode": `{concurrent: {limit: 5, mode: %s}}`,
		"concurrent.max":  `{concurrent: {limit: %s}}`,
		"comment":         `{comment: %s}`,
		"until":           "{}}\nusers: {u: {concurrent: 1, until: %s}",
		"methods":         "{}}\nclasses: {A: {methods: [%s]}",
		"query":           "{}}\nclasses: {A: [{query: [%s]}]",
		"path_prefix":     "{}}\nclasses: {A: {path_prefix: %s}",
		"headers":         "{}}\nclasses: {A: {headers: {X: %s}}",
		"jobs":            `{jobs: %s}`,
		"jobs.total":      `{jobs: {total: %s}}`,
		"jobs.queues":     `{jobs: {queues: %s}}`,
		"jobs.queues.x":   `{jobs: {queues: {x: %s}}}`,
		"jobs.services":   `{jobs: {queues: {%s: 1}}}`,
		"jobs.class":      `{jobs: {class: %s}}`,
		"workers":         "{}}\nworkers: {a: %s",
		"workers.users":   "{}}\nworkers: {users: {b: %s}",
		"workers.name":    "{}}\nworkers: {users: {%s: {default: 2}}",
		"workers.number":  "{}}\nworkers: {a: {default: %s}",
		"costs.t":         "{costs: {t: %s}}}\ncosts: {t: {actual: {header: x}}}\nusers: {u: {}",
		"costs.t.minute":  "{costs: {t: {minute: %s}}}}\ncosts: {t: {actual: {header: x}}}\nusers: {u: {}",
		"costs.t.mode":    "{costs: {t: {day: 5, mode: %s}}}}\ncosts: {t: {actual: {header: x}}}\nusers: {u: {}",
		"unit":            "{}}\ncosts: {t: %s",
		"unit.actual":     "{}}\ncosts: {t: {actual: %s}",
		"unit.estimate":   "{}}\ncosts: {t: {estimate: %s}",
		"unit.default":    "{}}\ncosts: {t: {estimate: {default: %s}}",
		"unit.GET":        "{}}\ncosts: {t: {estimate: {classes: {GET: %s}}}",
		"unit.json":       "{}}\ncosts: {t: {actual: {json: %s}}",
		"unit.paths":      "{}}\ncosts: {t: {estimate: {json: %s, default: 1, unreadable: 5k}}",
		"groups":          "{}}\ngroups: {g: %s}\nusers: {u: {group: g}",
		"unit.header":     "{}}\ncosts: {t: {estimate: {header: %s, default: 1}}",
		"unit.classes":    "{}}\ncosts: {t: {actual: {header: x}, classes: [%s]}",
		"unit.failed":     "{}}\ncosts: {t: {actual: {header: x}, failed: %s}",
		"day_starts":      "{}}\nwindows: {day_starts: %s",
		"month_starts":    "{}}\nwindows: {month_starts: %s",
		"units.services":  "{}}\ncosts: {%s: {actual: {header: x}}",
		"queues":          "{}}\nqueues: {x: %s",
		"queues.services": "{}}\nqueues: {%s: [3, 2, 1]",
		"queues.default":  "{}}\nqueues: {x: {priority: 1, default: %s, scheduled: 0}",
		"queues.list":     "{}}\nqueues: {x: [0, 1, %s]",
		"failed_auth":     "{}}\nfailed_auth: {per_address: %s",
		"address.rate":    "{}}\nper_address: {requests: %s",
		"address.conc":    "{}}\nper_address: {concurrent: %s",
		"exempt.users":    "{}}\nexempt: {users: [%s]",
		"exempt.paths":    "{}}\nexempt: {paths: [%s]",
	}
	names := slices.Sorted(maps.Keys(fields))
	numbers := rapid.OneOf(
		rapid.SampledFrom([]int64{-2048, -2047, -1, 0, 1, 2047, 2048, 30000, 30001, limits.MaxWorkers, limits.MaxWorkers + 1, limits.MaxJobs, limits.MaxJobs + 1, limits.MaxPerSecond, limits.MaxPerSecond + 1, limits.MaxBandwidth, limits.MaxBandwidth + 1}),
		rapid.Int64Range(-3000, 40000))
	values := rapid.OneOf(
		rapid.Map(numbers, func(n int64) string { return fmt.Sprint(n) }),
		// Below 1024 no unit makes a size of more than 1TiB, but TiB.
		rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprint(rapid.IntRange(0, 1023).Draw(t, "number"), rapid.SampledFrom([]string{"kB", "MB", "GB", "KiB", "MiB", "GiB", "mb", "M", "B"}).Draw(t, "unit"))
		}),
		rapid.Custom(func(t *rapid.T) string {
			word := rapid.SampledFrom([]string{"wait ", "wait  ", "", "Wait "}).Draw(t, "word")
			units := []string{"s", "ms", "m", " s", ""}
			if word == "" {
				units = units[:4] // else 1.0 is a whole number to JSON, and none to Parse
			}
			return word + rapid.StringMatching(`(0|1|2|5|10|29|30|31|300|3000|30000|30001)(\.(0|00|000|5|05|005|123|1234|00001)?)?`).Draw(t, "duration") +
				rapid.SampledFrom(units).Draw(t, "unit")
		}),
		// Up to 1000 no suffix makes a cost of more than 1000G.
		rapid.Custom(func(t *rapid.T) string {
			return rapid.StringMatching(`1000|(0|1|7|20|999)(\.(0|5|05|123|1234|123456|1234567|123456789|1234567890))?`).Draw(t, "number") + rapid.SampledFrom([]string{"k", "M", "G", "K", " k", "T"}).Draw(t, "suffix")
		}),
		rapid.SampledFrom([]string{"{actual: {header: x}}", "{estimate: {default: 1}}", "{classes: [GET]}", "{header: x}", "{json: a}", "{json: a, header: b}", "{json: a, default: 1}", "{json: a, header: b, default: 1}", "{classes: {GET: 1}}",
			"{day: 5k}", "[a, b.c]", "[]", "{sum: [a, {path: b, times: 4}]}", "{sum: a}", "{path: a}", "{4xx: estimate, 5xx: free}", "{4xx: 5}", "{week: 5}", "{tokens: 5}", "06:00", `"23:59"`, "24:00", "6:00", "free", "estimate", "usage.total_tokens", "a..b", "a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h.i", `"5"`, `"0"`}),
		rapid.SampledFrom([]string{"unlimited", "refuse", "Unlimited", "1TiB", "wait", "true", "null", "[1]", "{}", "{GET: 1}", "{up: 1}", `"refuse"`, "1.5", `""`, "free",
			"enforce", "dry-run", "off", "Enforce", "{second: 5}", "{second: 5, burst: 1}", "{burst: 1}", "{minute: 5, mode: off}", "2026-12-01", `"2026-12-31T23:59:59.5+02:00"`, "2026-13-01", "2026-12-01T24:00:00Z",
			"GET", "list-type", "a=b", "/", "/a", "/a*", "/a*b", `"/a b"`, `"/a?"`, "X-Y", `" x"`, `"*"`, "priority", "default", "scheduled", "a-b_c", "30/min", "1/s", "0/hour", "01/s", "5/minute", "1000000000/hour", "1000000001/hour", "/min", "3/", "-1/s", "{requests: 5}", "{concurrent: unlimited}", "a--b", "a_", "[3, 2, 1]", "[3, 2]", "[3, 2, 1.5]", "{3, 2, 1}", "{3, 2}", "{3, 2, 10001}", "{priority: 1, default: 0, scheduled: 2}", "{priority: 1, default: 0}", "{default: 1, scheduled: 2}", "{total: 3}", `"a b"`, `"~"`}),
	)
	rapid.Check(t, func(t *rapid.T) {
		field := rapid.SampledFrom(names).Draw(t, "field")
		value := values.Draw(t, "value")
		if strings.HasPrefix(field, "requests") {
			value = strings.ReplaceAll(value, "G", "M") // 7G is more than a limit of requests may have
		}
		if (strings.HasSuffix(field, ".services") || field == "workers.name") && (value == "true" || value == "null") {
			value = strconv.Quote(value) // as a key it is text to JSON, and not to Parse
		}
		source := "version: 1\ndefault_tier: a\ntiers: {a: " + fmt.Sprintf(fields[field], value) + "}\n"
		_, bad := Parse("f", []byte(source))
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(source), &n); err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if got := judge(t, toJSON(t, n.Content[0])); (got == nil) != (bad == nil) {
			t.Errorf("%s: %s: the schema says %v, and Parse %v", field, value, got, bad)
		}
	})
}

// schemaAccepts checks that the schema accepts a file that Parse has accepted.
func schemaAccepts(t *testing.T, data []byte) {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	if err := judge(t, toJSON(t, n.Content[0])); err != nil {
		t.Fatalf("Parse accepts %q, and the schema says %v", data, err)
	}
}

// validator is the schema, ready to judge values.
var validator = sync.OnceValues(func() (*jsonschema.Resolved, error) { return schemaFile().Resolve(nil) })

// judge returns what the schema says of a value.
func judge(t rapid.TB, value any) error {
	t.Helper()
	v, err := validator()
	if err != nil {
		t.Fatal(err)
	}
	return v.Validate(value)
}

// toJSON is a YAML value as an editor gives it to a JSON Schema.
func toJSON(t rapid.TB, n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			object[n.Content[i].Value] = toJSON(t, n.Content[i+1])
		}
		return object
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			list = append(list, toJSON(t, item))
		}
		return list
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool", "!!int", "!!float":
		var value any
		if err := n.Decode(&value); err != nil {
			t.Fatalf("%v", err)
		}
		text, err := json.Marshal(value)
		if err != nil {
			return n.Value // .inf and .nan, which JSON does not have
		}
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatalf("%v", err)
		}
		return value
	}
	return n.Value
}
