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
		{"none", "version: 1\ndefault_tier: free\ntiers: {free: {}}\n", []string{"*"}},
		{"verbs and all", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {OTHER: 1, GET: 1, PUT: 1, '*': 9}}}\n", []string{"*", "GET", "PUT", "OTHER"}},
		{"operations", "version: 1\ndefault_tier: free\nclasses: {LIST: [{path_prefix: /l/}], BIG: [{path_prefix: /b/}]}\ntiers: {free: {requests: {LIST: 1, POST: 1}}}\n", []string{"*", "POST", "LIST"}},
		{"by the minute", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {minute: 1}}}}\n", []string{"*"}},
		{"more than have room", many, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			set, err := limitfile.Parse("limits.yaml", []byte(row.file))
			if err != nil {
				t.Fatal(err)
			}
			got := CreditClasses(set)
			if row.want == nil {
				if len(got) != maxCreditClasses || got[1] != "GET" || got[2] != "C00" {
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
			if out := check(t, dir, file, env...); strings.Contains(out, "WARNING") || strings.Contains(out, "ALERT") {
				t.Errorf("haproxy -c says %s", out)
			}
			if text := readFile(t, filepath.Join(dir, "haproxy.cfg")); !strings.Contains(text, `str("`+strings.Join(got, " ")+`")`) {
				t.Errorf("%s does not tell the agent of these classes", file)
			}
		})
	}
}

// The rules of one class, as they are written. With operation classes there is no short way.
func TestCreditRules(t *testing.T) {
	cfg, err := Render(Config{CreditClasses: []string{"*", "GET"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"short renewal": "    acl begins       var(txn.sluice_begins) -m int 0:1\n" +
			"    acl renews       var(txn.sluice_begins) -m int 0\n" +
			"    http-request set-var(txn.sluice_begins) sc_inc_gpc(0,0) if end_now !lasting_now !{ stopping } { srv_is_up(sluice_agent/agent) -m int 1 }\n" +
			"    http-request set-var(txn.sluice_begins) int(0) if begins end_now { date(3),sub(txn.sluice_read) gt 2 } { sc_get_gpt(2,0),set-var(txn.sluice_read) -m found } { date(),sub(txn.sluice_read) gt 0 } { str(~),table_gpt0(sluice/credit),set-var(txn.sluice_read) -m int gt 0 } { sc_get_gpt(0,0),sub(txn.sluice_read) eq 0 }\n" +
			"    http-request sc-set-gpt(7,0) sc_get_gpc(1,0),add(txn.sluice_read) if renews { sc_get_gpt(6,0),set-var(txn.sluice_read) -m found }\n" +
			"    http-request sc-set-gpt(9,0) sc_get_gpc(2,0),add(txn.sluice_read) if renews { sc_get_gpt(8,0),set-var(txn.sluice_read) -m found }\n" +
			"    http-request sc-set-gpt(5,0) int(1) if renews\n" +
			"    http-request sc-set-gpt(1,0) date(1) if renews\n" +
			"    http-request set-var(txn.sluice_read) sc_clr_gpc(0,0) if begins\n" +
			"    http-request allow if renews { method GET } { sc_get_gpt(9,0),set-var(txn.sluice_read) -m found } ticket_GET last_now ticket_now here_now place_now there_now { sc_inc_gpc(3,0) -m found }\n",
		"credit classes":        "    set-var proc.sluice_classes str(\"* GET\")\n    set-var proc.sluice_tallies str(\"3 GET HEAD PUT POST DELETE PATCH OPTIONS OTHER\")\n",
		"credit table":          "    stick-table type string len 128 size 200k expire 10m store gpt(12),gpc(11),conn_cur,server_id,bytes_in_cnt,bytes_in_rate(1s),bytes_out_cnt,bytes_out_rate(1s)\n",
		"new tickets":           "    http-request sc-set-gpt(6,0) var(txn.sluice.each_0) if writing\n    http-request sc-set-gpt(8,0) var(txn.sluice.each_1) if writing\n",
		"tickets of verbs":      "    http-request set-var(txn.sluice_over) sc_inc_gpc(2,0),sub(txn.sluice_last),and(4294967295) if { var(txn.sluice_draws) -m str GET } { sc_get_gpt(9,0),set-var(txn.sluice_last) -m found }\n",
		"tickets of operations": "",
		"short tickets": "    acl ticket_GET sc_inc_gpc(2,0),sub(txn.sluice_read),and(4294967295) 2147483648:4294967295 0\n" +
			"    acl ticket_GET int(1),set-var(txn.sluice_over) -m int 0\n" +
			"    http-request allow if { method GET } end_now lasting_now { sc_get_gpt(9,0),set-var(txn.sluice_read) -m found } ticket_GET last_now ticket_now here_now place_now there_now { sc_inc_gpc(3,0) -m found }\n" +
			shortOfAll("HEAD", 4) + shortOfAll("PUT", 5) + shortOfAll("POST", 6) + shortOfAll("DELETE", 7) + shortOfAll("PATCH", 8),
	} {
		if diff := cmp.Diff(want, marked(t, cfg, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	cfg, err = Render(Config{CreditClasses: []string{"*", "GET", "LIST"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := marked(t, cfg, "short tickets"); got != "" {
		t.Errorf("the short way draws no ticket of LIST: %s", got)
	}
	for want, classes := range map[string][]string{
		`haproxy configuration: classes that have tickets ["GET"]: want 1 to 40, the first "*"`:                              {"GET"},
		`haproxy configuration: class that has tickets "a b": want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter`: {"*", "a b"},
	} {
		if _, err := Render(Config{CreditClasses: classes}); err == nil || err.Error() != want {
			t.Errorf("Render with classes %q: %v, want %s", classes, err, want)
		}
	}
}

// shortOfAll is the rule of a method without tickets of its own.
func shortOfAll(method string, counter int) string {
	return fmt.Sprintf("    http-request allow if { method %s } end_now lasting_now last_now ticket_now here_now place_now there_now { sc_inc_gpc(%d,0) -m found }\n", method, counter)
}
