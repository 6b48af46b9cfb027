package haproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// What is exempt by address or path is asked about and counted as one user of its
// own, and no table refuses it.
func TestExempt(t *testing.T) {
	for _, fitted := range []bool{false, true} {
		t.Run(fmt.Sprintf("fitted %t", fitted), func(t *testing.T) { testExempt(t, fitted) })
	}
}

func testExempt(t *testing.T, fitted bool) {
	r := newRig(t, setup{
		Config: Config{
			Fitted: fitted,
			Env:    []string{"SLUICE_ENDPOINT=uploads"},
			Exempt: limits.Exempt{
				Addresses: []string{"192.0.2.7", "198.51.100.0/24", "2001:db8::/32"},
				Paths:     []string{"/status", "/static/*", "/a*b", "/#x"},
			},
		},
		edit: func(cfg string) string {
			// The address comes from a PROXY header, which a test can write.
			return strings.Replace(cfg, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, `bind "${SLUICE_BIND-127.0.0.1:8080}" accept-proxy`, 1)
		},
	})
	for _, key := range []string{"@uploads/alice", limits.ExemptKey} {
		r.teach(t, "block", key, time.Now().Add(time.Hour), 1)
		r.teach(t, "throttle", "*|"+key, time.Now().Add(time.Hour), 1)
	}
	const other = "TCP4 203.0.113.9 192.0.2.1 4000 80"
	asked := 0
	for _, row := range []struct {
		name, proxy, path string
		exempt            bool
	}{
		{"nothing", other, "/", false},
		{"address", "TCP4 192.0.2.7 192.0.2.1 4000 80", "/", true},
		{"next address", "TCP4 192.0.2.8 192.0.2.1 4000 80", "/", false},
		{"network", "TCP4 198.51.100.255 192.0.2.1 4000 80", "/", true},
		{"next network", "TCP4 198.51.101.0 192.0.2.1 4000 80", "/", false},
		{"mapped address", "TCP6 ::ffff:192.0.2.7 2001:db8::1 4000 80", "/", true},
		{"IPv6 network", "TCP6 2001:db8:ffff::1 2001:db8::1 4000 80", "/", true},
		{"next IPv6 network", "TCP6 2001:db9::1 2001:db8::1 4000 80", "/", false},
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
			got := r.send(t, "PROXY "+row.proxy+"\r\n"+httpGET(row.path, "X-User: alice"))[0]
			heard, seen := r.takeHeard(t), len(r.takeSeen())
			if !row.exempt {
				if got.Status != 429 || len(heard) != 0 || seen != 0 {
					t.Errorf("status = %d, the agent heard %v, the origin %d; want 429 by a table", got.Status, heard, seen)
				}
				return
			}
			want := heard0(limits.ExemptKey, asked)
			asked++
			if got.Status != 200 || len(heard) != 1 || heard[0] != want || seen != 1 {
				t.Errorf("status = %d, the agent heard %+v, the origin %d; want 200, %+v and 1", got.Status, heard, seen, want)
			}
		})
	}
}

// heard0 is the question about a user's GET after so many, of whom none is in progress.
func heard0(user string, tracked int) heard {
	return heard{User: user, Class: "GET", Message: "start-message", Tracked: int64(tracked)}
}

// Without an agent an exempt request is let in, whatever the tables say.
func TestExemptWithoutAnAgent(t *testing.T) {
	r := newRig(t, setup{noAgent: true, Config: Config{Exempt: limits.Exempt{Paths: []string{"/status"}}}})
	r.teach(t, "block", "alice", time.Now().Add(time.Hour), 1)
	for path, want := range map[string]int{"/status": 200, "/": 429} {
		if got := r.send(t, httpGET(path, "X-User: alice"))[0]; got.Status != want {
			t.Errorf("status of %s = %d, want %d", path, got.Status, want)
		}
	}
}
