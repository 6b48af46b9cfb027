package haproxy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// HAProxy takes the files without a word, whatever the limit file and the environment say, and so it does the lines in a configuration
// of somebody's own.
func TestRenderedFilesAreValid(t *testing.T) {
	failed := limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute}
	for _, row := range []struct {
		name   string
		config Config
	}{
		{"as shipped", Config{}},
		{"header", Config{Fitted: true, Identify: "header:X-User"}},
		{"places alone", Config{Fitted: true, Identify: "header:X-User", CreditClasses: []string{}}},
		{"basic", Config{Fitted: true, Identify: "basic,header:X-User"}},
		{"auto", Config{Fitted: true}},
		{"s3", Config{Fitted: true, Identify: "s3,jwt:sub,ip"}},
		{"bandwidth by header", Config{Fitted: true, Identify: "header:X-User", Bandwidth: true}},
		{"exempt addresses", Config{Fitted: true, Identify: "ip", Exempt: limits.Exempt{Addresses: []string{"10.0.0.0/8"}}}},
		{"exempt paths", Config{Fitted: true, Identify: "ip", Exempt: limits.Exempt{Paths: []string{"/a"}}}},
		{"exempt folders", Config{Fitted: true, Identify: "ip", Exempt: limits.Exempt{Paths: []string{"/a/*"}}}},
		{"limits of addresses", Config{Fitted: true, Identify: "ip", Bandwidth: true, Addresses: limits.AddressLimits{Requests: 1, Concurrent: 1}}},
		{"failed authentication", Config{Fitted: true, Identify: "ip", Addresses: failed}},
		{"all of that", Config{Exempt: limits.Exempt{Addresses: []string{"::1"}, Paths: []string{"/a", "/a/*"}}, Costs: units, Classes: limits.S3Classes(nil),
			Addresses: limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute, Requests: 1, Concurrent: 1}}},
	} {
		for name, write := range map[string]func(string, Config) (string, []string, error){"ours": Write, "beside": writeBeside(t)} {
			for _, env := range [][]string{nil, {"SLUICE_CREDIT=off"}, {accessLog, "SLUICE_UNREADABLE=deny", "SLUICE_ORIGIN_MAXCONN=5", "SLUICE_RATELIMIT=all"}} {
				t.Run(fmt.Sprint(row.name, " ", name, " ", env), func(t *testing.T) {
					t.Parallel()
					dir := filepath.Join(t.TempDir(), "haproxy")
					file, more, err := write(dir, row.config)
					if err != nil {
						t.Fatal(err)
					}
					if said := check(t, dir, file, slices.Concat(more, env)...); said != "" {
						t.Errorf("haproxy -c says %q, want nothing to say", said)
					}
				})
			}
		}
	}
}

// What a limit file needs is in the configuration for it.
func TestForLimits(t *testing.T) {
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {requests: {PUT: 1}, bandwidth: {down: 1MiB}}}\n"+
		"exempt: {addresses: [10.0.0.0/8]}\nper_address: {concurrent: 5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := ForLimits(set)
	if !c.Fitted || !c.Bandwidth || len(c.CreditClasses) != 1 || len(c.Exempt.Addresses) != 1 || c.Addresses.Concurrent != 5 {
		t.Errorf("ForLimits() = %+v, want class PUT, bandwidth, the exempt address, and 5 of an address", c)
	}
}

// Behind limits of addresses, credit is looked at when the request has a class. The rule that tells which names are keys keeps its condition then, or a client could
// name itself as an exempt user is known in tables.
func TestNamesAreCheckedBesideLimitsOfAddresses(t *testing.T) {
	c := Config{Fitted: true, Identify: "header:X-User", Addresses: limits.AddressLimits{Requests: 1}}
	files, err := files(c)
	if err != nil {
		t.Fatal(err)
	}
	if rule := `set-var(txn.sluice_verbatim) int(1) if { var(txn.sluice_user) -m reg '^[^~\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}\z' }`; !strings.Contains(files["haproxy.cfg"], rule) {
		t.Errorf("haproxy.cfg has no rule %q", rule)
	}
}
