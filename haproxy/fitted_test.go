package haproxy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// parts are what files that are fitted to a limit file may lack, by expressions of lines.
var parts = map[string]*regexp.Regexp{
	"addresses":  regexp.MustCompile(`acl exempt_here src -f `),
	"paths":      regexp.MustCompile(`acl exempt_here path -m str -f `),
	"either":     regexp.MustCompile(`!exempt_here\b`),
	"folders":    regexp.MustCompile(`acl exempt_below .*\n.*acl path_odd `),
	"below":      regexp.MustCompile(`exempt_below !path_odd\n`),
	"presigned":  regexp.MustCompile(`int\(2\) if \{ var\(txn.sluice_s3_id\)`),
	"unreadable": regexp.MustCompile(`track-sc0 var\(txn.sluice_user\) table sluice_credit if .*txn.sluice_unreadable`),
	"names":      regexp.MustCompile(`track-sc0 var\(txn.sluice_user\) table sluice_credit if .*txn.sluice_user\) -m reg`),
	"field":      regexp.MustCompile(`track-sc0 req.fhdr\("X-User"\) table sluice_credit if \{ req.fhdr\("X-User"\),table_gpt.* !health\n(?s:.*)set-var\(txn.sluice_user\) req.fhdr`),
	"health":     regexp.MustCompile(`track-sc0 var\(txn.sluice_user\) table sluice_credit if .* !health\n(?s:.*)http-request track-sc0 src,ipmask\(32,64\) table sluice_health if health `),
	"held":       regexp.MustCompile(`filter lua.sluice\n`),
	"unheld":     regexp.MustCompile(`set-var proc.sluice_unheld int\(1\)\n`),
	"large":      regexp.MustCompile(`tune.bufsize "\$\{SLUICE_BUFSIZE-65536\}"`),
}

// Files that are fitted to a limit file have what that needs and nothing besides, and HAProxy
// takes them without a word.
func TestFittedFiles(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		config Config
		has    string
	}{
		{"nothing", Config{Identify: "header:X-User"}, "field"},
		{"ip", Config{Identify: "ip"}, "health"},
		{"basic", Config{Identify: "basic,header:X-User"}, "unreadable names health"},
		{"auto", Config{}, "presigned unreadable names health"},
		{"s3", Config{Identify: "s3,ip"}, "unreadable names health"},
		{"bandwidth", Config{Identify: "ip", Bandwidth: true}, "large held health"},
		{"bandwidth by header", Config{Identify: "header:X-User", Bandwidth: true}, "large held health"},
		{"addresses", Config{Identify: "ip", Exempt: limits.Exempt{Addresses: []string{"10.0.0.0/8"}}}, "addresses either health"},
		{"paths", Config{Identify: "ip", Exempt: limits.Exempt{Paths: []string{"/a"}}}, "paths either health"},
		{"folders", Config{Identify: "ip", Exempt: limits.Exempt{Paths: []string{"/a/*"}}}, "folders below health"},
		{"paths and folders", Config{Identify: "ip", Exempt: limits.Exempt{Paths: []string{"/a", "/a/*"}}}, "paths either folders below health"},
		{"users alone", Config{Identify: "ip", Exempt: limits.Exempt{Users: []string{"a"}}}, "health"},
		{"limits of addresses", Config{Identify: "ip", Addresses: limits.AddressLimits{Requests: 1, Concurrent: 1}}, ""},
		{"failed authentication", Config{Identify: "ip", Addresses: limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute}}, ""},
		{"both", Config{Identify: "ip", Addresses: limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute, Requests: 1},
			Exempt: limits.Exempt{Addresses: []string{"::1"}, Paths: []string{"/a/*"}}}, "addresses either folders below"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.config.Fitted = true
			for _, more := range []Config{{}, {Env: []string{"SLUICE_ACCESS_LOG=json"}}, {Env: []string{"SLUICE_CREDIT=off"}}, {Env: []string{"SLUICE_ORIGIN_MAXCONN=5"}}} {
				more.Fitted, more.Identify, more.Exempt, more.Addresses, more.Bandwidth = true, row.config.Identify, row.config.Exempt, row.config.Addresses, row.config.Bandwidth
				file, env, err := Write(filepath.Join(t.TempDir(), "haproxy"), more)
				if err != nil {
					t.Fatal(err)
				}
				out := check(t, "/", file, env...)
				if strings.TrimSpace(strings.Replace(out, "Configuration file is valid", "", 1)) != "" {
					t.Errorf("haproxy -c says %q, want nothing to say", out)
				}
				cfg, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for part, expression := range parts {
					want := strings.Contains(" "+row.has+" ", " "+part+" ")
					if part == "unheld" {
						want = !row.config.Bandwidth
					}
					// With limits of addresses there is no short way.
					if (part == "unreadable" || part == "names") && row.config.Addresses != (limits.AddressLimits{}) {
						want = false
					}
					if part == "either" && row.config.Addresses != (limits.AddressLimits{}) {
						continue // of other rules
					}
					if got := expression.Match(cfg); got != want {
						t.Errorf("%s: %t, want %t", part, got, want)
					}
				}
			}
		})
	}
}

// What a limit file needs is in the configuration for it.
func TestForLimits(t *testing.T) {
	t.Parallel()
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {requests: {PUT: 1}, bandwidth: {down: 1MiB}}}\n"+
		"exempt: {addresses: [10.0.0.0/8]}\nper_address: {concurrent: 5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := ForLimits(set)
	if !c.Fitted || !c.Bandwidth || len(c.CreditClasses) != 2 || len(c.Exempt.Addresses) != 1 || c.Addresses.Concurrent != 5 {
		t.Errorf("ForLimits() = %+v, want classes * and PUT, bandwidth, the exempt address, and 5 of an address", c)
	}
}
