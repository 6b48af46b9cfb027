package haproxy

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// exempted is who is exempt in the tests that share a HAProxy.
var exempted = limits.Exempt{
	Addresses: []string{"198.51.100.7", "198.51.101.0/24", "2001:db8:e::/48"},
	Paths:     []string{"/status", "/static/*", "/a*b", "/#x"},
}

// What is exempt by address or path is asked about and counted as one user of its
// own, and no table refuses it.
func TestExempt(t *testing.T) {
	for name, s := range map[string]setup{"as shipped": usual, "fitted": fitted} {
		t.Run(name, func(t *testing.T) { testExempt(t, shared(t, s)) })
	}
}

func testExempt(t *testing.T, r *rig) {
	for _, key := range []string{"alice", limits.ExemptKey} {
		r.teach(t, "block", key, time.Now().Add(time.Hour), 1)
		r.teach(t, "throttle", "*|"+key, time.Now().Add(time.Hour), 1)
	}
	const other = "203.0.113.9"
	asked := 0
	for _, row := range []struct {
		name, address, path string
		exempt              bool
	}{
		{"nothing", other, "/", false},
		{"address", "198.51.100.7", "/", true},
		{"next address", "198.51.100.8", "/", false},
		{"network", "198.51.101.255", "/", true},
		{"next network", "198.51.102.0", "/", false},
		{"mapped address", "::ffff:198.51.100.7", "/", true},
		{"IPv6 network", "2001:db8:e:ffff::1", "/", true},
		{"next IPv6 network", "2001:db8:f::1", "/", false},
		{"path", other, "/status", true},
		{"path with a query", other, "/status?x", true},
		{"path that goes on", other, "/status/", false},
		{"path in other case", other, "/Status", false},
		{"path in the query", other, "/?/status", false},
		{"prefix", other, "/static/a/b.css", true},
		{"prefix alone", other, "/static/", true},
		{"not all of a prefix", other, "/static", false},
		{"prefix elsewhere", other, "/x/static/", false},
		{"a prefix that leads elsewhere", other, "/static/../x", false},
		{"or ends there", other, "/static/..", false},
		{"or stays", other, "/static/./x", false},
		{"or may lead elsewhere", other, "/static//x", false},
		{"with parameters", other, "/static/..;/x", false},
		{"encoded", other, "/static/%2e%2E/x", false},
		{"half encoded", other, "/static/..%2fx", false},
		{"twice encoded", other, "/static/%252e%252e/x", false},
		{"with a backslash", other, "/static/..%5Cx", false},
		{"dots of a name", other, "/static/..a/b..c", true},
		{"other encoded characters", other, "/static/a%20b", true},
		{"a star inside is a star", other, "/a*b", true},
		{"a star inside is not any", other, "/aab", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := r.sendFrom(t, row.address, httpGET(row.path, "X-User: alice"))
			heard, seen := r.takeHeard(t), len(r.takeSeen())
			if !row.exempt {
				if got.Status != 429 || len(heard) != 0 || seen != 0 {
					t.Errorf("status = %d, the agent heard %v, the origin %d; want 429 by a table", got.Status, heard, seen)
				}
				return
			}
			asked++
			if got.Status != 200 || len(heard) != 1 || heard[0].User != limits.ExemptKey || seen != 1 {
				t.Errorf("status = %d, the agent heard %+v, the origin %d; want 200, one question about %s, and 1", got.Status, heard, seen, limits.ExemptKey)
			}
		})
	}
	r.becomes(t, map[string]count{limits.ExemptKey: {0, asked}})
	// Without an agent an exempt request is let in, whatever the tables say.
	r.down(t)
	for path, want := range map[string]int{"/status": 200, "/": 429} {
		if got := r.send(t, httpGET(path, "X-User: alice"))[0]; got.Status != want {
			t.Errorf("without an agent: status of %s = %d, want %d", path, got.Status, want)
		}
	}
}
