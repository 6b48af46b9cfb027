// Package grafana tests the dashboards in its folder, which are edited in Grafana and exported as JSON.
package grafana

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/docs"
)

// dashboards are the files, by their names.
func dashboards(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("dashboards: %q, %v", names, err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		if files[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// board is what the tests look at of a dashboard's JSON.
type board struct {
	UID        string
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		Datasource struct{ UID string }
		GridPos    struct{ X, Y, W, H int }
		Targets    []struct{ Expr string }
	}
}

func read(t *testing.T, text []byte) (b board) {
	t.Helper()
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

var name = regexp.MustCompile(`\bsluice_\w+`)

// Every metric that a dashboard asks for is one that Sluice has.
func TestDashboardsAskForMetricsThatExist(t *testing.T) {
	known := docs.Series()
	for file, text := range dashboards(t) {
		b := read(t, text)
		var queries []string
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				queries = append(queries, target.Expr)
			}
		}
		if len(queries) < 4 {
			t.Errorf("%s has %d queries, want more", file, len(queries))
		}
		for _, v := range b.Templating.List {
			queries = append(queries, v.Query)
		}
		for _, q := range queries {
			for _, metric := range name.FindAllString(q, -1) {
				if !slices.Contains(known, metric) {
					t.Errorf("%s asks for %s, which is not a series of Sluice: %s", file, metric, q)
				}
			}
		}
	}
}

// What a dashboard asks is PromQL: Prometheus would take it as a rule.
func TestQueriesAreUnderstood(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	type rule struct {
		Record, Expr string
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$tier", ".*", "$user", "alice")
	var rules []rule
	for _, text := range dashboards(t) {
		for _, p := range read(t, text).Panels {
			for _, target := range p.Targets {
				rules = append(rules, rule{fmt.Sprint("query:", len(rules)), variables.Replace(target.Expr)})
			}
		}
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s\n%s", err, out, file)
	}
}

// Dashboards work in any Grafana: each has a name of its own, asks the data source that
// is chosen, and has no panel that covers another one.
func TestDashboardsAreWhole(t *testing.T) {
	uids := map[string]string{}
	for file, text := range dashboards(t) {
		b := read(t, text)
		if other, taken := uids[b.UID]; taken || b.UID == "" {
			t.Errorf("%s has uid %q, which is %q's; want one of its own", file, b.UID, other)
		}
		uids[b.UID] = file
		covered := map[[2]int]string{}
		ids := map[int]bool{}
		for _, p := range b.Panels {
			if ids[p.ID] || p.ID == 0 {
				t.Errorf("%s: %s has id %d, want one of its own", file, p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.Type != "row" && p.Type != "text" {
				if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
					t.Errorf("%s: %s asks %q %d queries, want some of ${datasource}", file, p.Title, p.Datasource.UID, len(p.Targets))
				}
			}
			if p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: %s ends at column %d, want 24 at most", file, p.Title, p.GridPos.X+p.GridPos.W)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other := covered[at]; other != "" {
						t.Fatalf("%s: %s covers %s", file, p.Title, other)
					}
					covered[at] = p.Title
				}
			}
		}
	}
}
