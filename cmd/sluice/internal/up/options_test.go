package up

import (
	"slices"
	"strings"
	"testing"
)

func TestListenAddresses(t *testing.T) {
	for _, tt := range []struct {
		name string
		base string
		n    int
		want []string
		err  string
	}{
		{"one instance", "127.0.0.1:8080", 1, []string{"127.0.0.1:8080"}, ""},
		{"each further one on the next port", "127.0.0.1:8080", 3, []string{"127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082"}, ""},
		{"all addresses of the machine", ":80", 2, []string{":80", ":81"}, ""},
		{"IPv6", "[::1]:80", 2, []string{"[::1]:80", "[::1]:81"}, ""},
		{"the most instances", "a:1", 16, nil, ""},
		{"the last port", "a:65534", 2, []string{"a:65534", "a:65535"}, ""},
		{"no instance", "a:1", 0, nil, "0 instances: want 1 to 16"},
		{"fewer than none", "a:1", -1, nil, "-1 instances: want 1 to 16"},
		{"too many instances", "a:1", 17, nil, "17 instances: want 1 to 16"},
		{"no port", "127.0.0.1", 1, nil, `listen address "127.0.0.1": want host:port`},
		{"a port by name", "a:http", 1, nil, `listen address "a:http" with 1 instance(s): want ports from 1 to 65535`},
		{"port 0, which has no next", "a:0", 1, nil, `listen address "a:0" with 1 instance(s): want ports from 1 to 65535`},
		{"ports beyond the last", "a:65535", 2, nil, `listen address "a:65535" with 2 instance(s): want ports from 1 to 65535`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ListenAddresses(tt.base, tt.n)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Fatalf("ListenAddresses(%q, %d) = %v, %v, want error %q", tt.base, tt.n, got, err, tt.err)
				}
				return
			}
			if err != nil || len(got) != tt.n || tt.want != nil && !slices.Equal(got, tt.want) {
				t.Errorf("ListenAddresses(%q, %d) = %v, %v, want %v", tt.base, tt.n, got, err, tt.want)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		name    string
		out     string
		version string // "" if there is none
		tooOld  bool   // for 2.6
	}{
		{"Debian 12", "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: …", "2.6.12-1+deb12u4", false},
		{"a development version", "HAProxy version 3.5-dev2-1f2b3c4 2026/01/01 - https://haproxy.org/", "3.5-dev2-1f2b3c4", false},
		{"the next major version", "HAProxy version 3.0.11 2025/01/01", "3.0.11", false},
		{"two digits", "HAProxy version 2.10.1 2025/01/01", "2.10.1", false},
		{"a little too old", "HAProxy version 2.5.14 2023/01/01", "2.5.14", true},
		{"much too old", "HAProxy version 1.8.30 2021/01/01", "1.8.30", true},
		{"no number", "HAProxy version unknown 2021/01/01", "unknown", true},
		{"before 2.2 the word had a hyphen", "HA-Proxy version 2.0.1 2019/06/26", "2.0.1", true},
		{"another program", "nginx version: nginx/1.22.1 -", "", false},
		{"nothing", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseVersion(tt.out)
			if got != tt.version || ok != (tt.version != "") {
				t.Fatalf("parseVersion(%q) = %q, %v, want %q", tt.out, got, ok, tt.version)
			}
			if old := isOlder(got, "2.6"); ok && old != tt.tooOld {
				t.Errorf("older(%q, 2.6) = %v, want %v", got, old, tt.tooOld)
			}
		})
	}
}

func TestTailPassesOnAndKeepsTheEnd(t *testing.T) {
	var to strings.Builder
	last := &tail{to: &to}
	for _, s := range []string{strings.Repeat("a", 3000), strings.Repeat("b", 3000), " end\n"} {
		if n, err := last.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write(%d bytes) = %d, %v", len(s), n, err)
		}
	}
	if to.Len() != 6005 {
		t.Errorf("passed on %d bytes, want 6005", to.Len())
	}
	if got, want := last.String(), strings.Repeat("a", 4096-3005)+strings.Repeat("b", 3000)+" end"; got != want {
		t.Errorf("kept %d bytes, want the last %d", len(got), len(want))
	}
}
