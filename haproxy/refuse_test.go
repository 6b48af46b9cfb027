package haproxy

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/proctest"
)

const slowDown = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`

// fields are the headers of a refusal that tests compare; Retry-After and t
// depend on the clock after a native one and are checked apart.
func fields(a answer) map[string]string {
	out := map[string]string{}
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After", "Sluice-Reason", "Cache-Control", "Content-Type"} {
		if v := a.Header.Values(name); v != nil {
			out[name] = strings.Join(v, " ++ ")
		}
	}
	return out
}

func TestAgentRefusal(t *testing.T) {
	verdicts := map[string]*verdict{
		"rate":       {"request-rate", "GET", 100, 1},
		"all":        {"request-rate", "*", 200, 7},
		"concurrent": {"concurrent-requests", "*", 10, 2},
	}
	for _, status := range []int{429, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			r := newRig(t, setup{Config: Config{RefuseStatus: status, RetryJitter: 1}}) // no jitter
			r.refuseWith(func(q question) *verdict { return verdicts[q.User] })
			for _, row := range []struct {
				name, request string
				want          map[string]string
				body          string
			}{
				{
					"request rate", httpGET("/", "X-User: rate"),
					map[string]string{"RateLimit-Policy": `"GET";q=100;w=1`, "RateLimit": `"GET";r=0;t=1`, "Retry-After": "1", "Sluice-Reason": "request-rate"},
					"Refused (request-rate): the limit GET is used up. Retry after 1 s.\n",
				},
				{
					"request rate of all classes", httpRequest("POST", "/", "X-User: all", "Content-Length: 0"),
					map[string]string{"RateLimit-Policy": `"*";q=200;w=1`, "RateLimit": `"*";r=0;t=7`, "Retry-After": "7", "Sluice-Reason": "request-rate"},
					"Refused (request-rate): the limit * is used up. Retry after 7 s.\n",
				},
				{
					"requests in progress", httpGET("/", "X-User: concurrent"),
					map[string]string{
						"RateLimit-Policy": `"concurrent-requests";q=10;qu="concurrent-requests"`, "RateLimit": `"concurrent-requests";r=0;t=1`,
						"Retry-After": "1", "Sluice-Reason": "concurrent-requests",
					},
					"Refused (concurrent-requests): the limit concurrent-requests is used up. Retry after 1 s.\n",
				},
				{
					"HEAD has no body", httpRequest("HEAD", "/", "X-User: rate"),
					map[string]string{"RateLimit-Policy": `"GET";q=100;w=1`, "RateLimit": `"GET";r=0;t=1`, "Retry-After": "1", "Sluice-Reason": "request-rate"},
					"",
				},
				{
					"S3", httpGET("/", "Authorization: AWS rate:sig"),
					map[string]string{"RateLimit-Policy": `"GET";q=100;w=1`, "RateLimit": `"GET";r=0;t=1`, "Retry-After": "1", "Sluice-Reason": "request-rate"},
					map[int]string{429: "Refused (request-rate): the limit GET is used up. Retry after 1 s.\n", 503: slowDown}[status],
				},
			} {
				t.Run(row.name, func(t *testing.T) {
					got := r.send(t, row.request)[0]
					row.want["Cache-Control"] = "no-store"
					row.want["Content-Type"] = "text/plain"
					if row.body == slowDown {
						row.want["Content-Type"] = "application/xml"
					}
					if got.Status != status || got.Body != row.body {
						t.Errorf("answer = %d %q, want %d %q", got.Status, got.Body, status, row.body)
					}
					if diff := cmp.Diff(row.want, fields(got)); diff != "" {
						t.Errorf("fields (-want +got):\n%s", diff)
					}
					if seen := r.takeSeen(); len(seen) != 0 {
						t.Errorf("%d requests reached the origin, want none", len(seen))
					}
				})
			}
			if got := r.get(t, "X-User: other"); got.Status != 200 || len(fields(got)) != 1 || len(r.takeSeen()) != 1 {
				t.Errorf("another user: %d %v, want 200 from the origin", got.Status, fields(got))
			}
		})
	}
}

func TestNativeRefusal(t *testing.T) {
	r := newRig(t, setup{})
	hour := time.Now().Add(time.Hour)
	r.teach(t, "block", "bob", hour, 10)
	r.teach(t, "block", "both", hour, 10)
	for _, row := range []struct {
		name, request string
		reason        string // allowed when empty
		limit, policy string
	}{
		{"class", httpGET("/", "X-User: alice"), "request-rate", `"GET"`, `"GET";q=100;w=1`},
		{"other class of the same user", httpRequest("PUT", "/", "X-User: alice", "Content-Length: 0"), "", "", ""},
		{"other user", httpGET("/", "X-User: alic"), "", "", ""},
		{"all classes", httpRequest("PUT", "/", "X-User: carol", "Content-Length: 0"), "request-rate", `"*"`, `"*";q=200;w=1`},
		{"limit not known", httpGET("/", "X-User: unknown"), "request-rate", `"GET"`, ""},
		{"blocked", httpGET("/", "X-User: bob"), "concurrent-requests", `"concurrent-requests"`, `"concurrent-requests";q=10;qu="concurrent-requests"`},
		{"blocked and throttled", httpGET("/", "X-User: both"), "concurrent-requests", `"concurrent-requests"`, `"concurrent-requests";q=10;qu="concurrent-requests"`},
		{"deadline passed", httpGET("/", "X-User: late"), "", "", ""},
		{"class and user do not run together", httpGET("/", "X-User: GET|alice"), "", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			// Throttle entries end after 5 s, whatever their deadline: teach them for each row.
			for key, limit := range map[string]int{"GET|alice": 100, "*|carol": 200, "GET|unknown": 0, "GET|both": 100} {
				r.teach(t, "throttle", key, hour, limit)
			}
			r.teach(t, "throttle", "GET|late", time.Now().Add(-time.Second), 100)
			r.teach(t, "block", "late", time.Now().Add(-time.Second), 10)
			got := r.send(t, row.request)[0]
			asked, seen := len(r.takeAsked(t)), len(r.takeSeen())
			if row.reason == "" {
				if got.Status != 200 || asked != 1 || seen != 1 {
					t.Errorf("status %d, agent asked %d times, origin %d; want 200, 1 and 1", got.Status, asked, seen)
				}
				return
			}
			if got.Status != 429 || asked != 0 || seen != 0 {
				t.Errorf("status %d, agent asked %d times, origin %d; want 429 and neither", got.Status, asked, seen)
			}
			retry, low, high := got.Header.Get("Retry-After"), 3000, 3600 // the hour that was taught
			if row.reason == "concurrent-requests" {
				low, high = 1, 3 // TestRetryJitter
			}
			var seconds int
			if _, err := fmt.Sscan(retry, &seconds); err != nil || seconds < low || seconds > high {
				t.Errorf("Retry-After = %q, want %d to %d", retry, low, high)
			}
			want := map[string]string{
				"Retry-After": retry, "RateLimit": row.limit + ";r=0;t=" + retry, "Sluice-Reason": row.reason,
				"Cache-Control": "no-store", "Content-Type": "text/plain",
			}
			if row.policy != "" {
				want["RateLimit-Policy"] = row.policy
			}
			if diff := cmp.Diff(want, fields(got)); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

// Keys are cut at no length that a canonical name can have.
func TestNativeRefusalOfLongNames(t *testing.T) {
	r := newRig(t, setup{})
	long := strings.Repeat("n", 99)
	for end, want := range map[string]int{"a": 429, "b": 429, "c": 200} {
		r.teach(t, "block", long+"a", time.Now().Add(time.Hour), 1)
		r.teach(t, "throttle", "OPTIONS|"+long+"b", time.Now().Add(time.Hour), 1)
		if got := r.send(t, httpRequest("OPTIONS", "/", "X-User: "+long+end))[0]; got.Status != want {
			t.Errorf("status for the name that ends in %s = %d, want %d", end, got.Status, want)
		}
	}
}

func TestExemptPaths(t *testing.T) {
	r := newRig(t, setup{})
	r.teach(t, "block", "bob", time.Now().Add(time.Hour), 1)
	for path, exempt := range map[string]bool{
		"/-/healthy": true, "/healthz": true, "/healthz?verbose": true, "/readyz": true,
		"/": false, "/healthz/": false, "/healthzz": false, "/x/healthz": false, "//healthz": false, "/HEALTHZ": false, "/x?/healthz": false,
	} {
		t.Run(path, func(t *testing.T) {
			r.send(t, httpGET(path, "X-User: alice"))
			if asked := r.takeAsked(t); (len(asked) == 0) != exempt {
				t.Errorf("asked %v, want exempt = %v", asked, exempt)
			}
			want := map[bool]int{true: 200, false: 429}[exempt]
			if got := r.send(t, httpGET(path, "X-User: bob"))[0]; got.Status != want {
				t.Errorf("status of a blocked user = %d, want %d", got.Status, want)
			}
		})
	}
}

func TestOriginSeesNoSluiceHeaders(t *testing.T) {
	r := newRig(t, setup{})
	for _, path := range []string{"/", "/healthz"} {
		r.send(t, httpGET(path, "Sluice-Reason: fake", "sluice-user: eve", "X-Sluice: stays"))
		seen := r.takeSeen()
		if len(seen) != 1 {
			t.Fatalf("%d requests reached the origin, want 1", len(seen))
		}
		h := seen[0].Header
		if h.Get("Sluice-Reason") != "" || h.Get("Sluice-User") != "" || h.Get("X-Sluice") != "stays" || h.Get("X-Forwarded-For") != client {
			t.Errorf("%s: origin got %v, want X-Sluice and X-Forwarded-For but no Sluice-*", path, h)
		}
	}
}

func refuseBad(q question) *verdict {
	if q.User == "bad" {
		return &verdict{"request-rate", "GET", 100, 1}
	}
	return nil
}

func TestKeepAliveAndPipelining(t *testing.T) {
	r := newRig(t, setup{})
	r.refuseWith(refuseBad)
	// All on one connection, so that nothing of a request may stay for the next.
	answers := r.send(t,
		httpGET("/1", "X-User: good"), httpGET("/2", "X-User: bad"), httpGET("/3"), httpGET("/healthz", "X-User: bad"),
		httpGET("/4", "Authorization: AWS good:sig"), httpGET("/5", "X-User: bad"),
	)
	var status []int
	for _, a := range answers {
		status = append(status, a.Status)
	}
	if diff := cmp.Diff([]int{200, 429, 200, 200, 200, 429}, status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	want := []question{{"good", "GET"}, {"bad", "GET"}, {client, "GET"}, {"good", "GET"}, {"bad", "GET"}}
	if diff := cmp.Diff(want, r.takeAsked(t)); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestHTTP2(t *testing.T) {
	r := newRig(t, setup{edit: func(cfg string) string {
		return strings.Replace(cfg, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, `bind "${SLUICE_BIND-127.0.0.1:8080}" proto h2`, 1)
	}})
	r.refuseWith(refuseBad)
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &h2}
	defer transport.CloseIdleConnections()
	for user, want := range map[string]int{"good": 200, "bad": 429} {
		ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", user)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, resp)
		if got.Status != want || resp.ProtoMajor != 2 {
			t.Errorf("%s over HTTP/%d: %d, want %d over HTTP/2", user, resp.ProtoMajor, got.Status, want)
		}
		if diff := cmp.Diff([]question{{user, "GET"}}, r.takeAsked(t)); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if want == 429 && got.Header.Get("RateLimit") != `"GET";r=0;t=1` {
			t.Errorf("RateLimit = %q", got.Header.Get("RateLimit"))
		}
	}
}

// However many questions wait for their verdicts, none is given up and passes.
func TestManyQuestionsAtOnce(t *testing.T) {
	const requests = 400
	r := newRig(t, setup{Config: Config{VerdictTimeout: proctest.Patience}})
	var waiting sync.WaitGroup
	waiting.Add(requests)
	r.refuseWith(func(question) *verdict {
		waiting.Done()
		waiting.Wait()
		return &verdict{"request-rate", "GET", 1, 1}
	})
	status := make(chan int, requests)
	for range requests {
		go func() {
			conn, err := net.Dial("tcp", r.addr)
			if err != nil {
				status <- 0
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(proctest.Patience))
			fmt.Fprint(conn, httpGET("/"))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				status <- 0
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
	}
	got := map[int]int{}
	for range requests {
		got[<-status]++
	}
	if want := map[int]int{429: requests}; !cmp.Equal(got, want) {
		t.Errorf("answers by status = %v, want %v", got, want)
	}
	r.takeAsked(t)
}

func TestFailsOpen(t *testing.T) {
	t.Run("no agent", func(t *testing.T) {
		r := newRig(t, setup{noAgent: true})
		r.teach(t, "block", "bob", time.Now().Add(time.Hour), 1)
		for range 5 {
			if got := r.get(t, "X-User: alice"); got.Status != 200 {
				t.Fatalf("status = %d, want 200", got.Status)
			}
		}
		if got := r.get(t, "X-User: bob"); got.Status != 429 {
			t.Errorf("status of a blocked user = %d, want 429", got.Status)
		}
		proctest.Eventually(t, "the agent's server is down", func() error { return r.agentIs(t, "DOWN") })
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			t.Errorf("status with the agent's server down = %d, want 200", got.Status)
		}

		r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 1} })
		r.listen(t, filepath.Join(r.dir, "spoa.sock"))
		proctest.Eventually(t, "the agent is asked again when it returns", func() error {
			if got := r.get(t, "X-User: alice"); got.Status != 429 {
				return fmt.Errorf("status = %d, want 429", got.Status)
			}
			return nil
		})
	})
	t.Run("agent that accepts and says nothing", func(t *testing.T) {
		r := newRig(t, setup{noAgent: true, Config: Config{VerdictTimeout: 30 * time.Millisecond, CheckTimeout: 100 * time.Millisecond}})
		l, err := net.Listen("unix", filepath.Join(r.dir, "spoa.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		proctest.Eventually(t, "the agent's server is down", func() error { return r.agentIs(t, "DOWN") })
	})
}

// agentIs compares the state of the agent's server.
func (r *rig) agentIs(t testing.TB, want string) error {
	t.Helper()
	if got := r.stat(t, "sluice_agent", "agent", 17); !strings.HasPrefix(got, want) {
		return fmt.Errorf("the agent is %q, want %s", got, want)
	}
	return nil
}

// stat is a column of "show stat" for a proxy's server; "" when there is none.
func (r *rig) stat(t testing.TB, proxy, server string, column int) string {
	t.Helper()
	for line := range strings.Lines(r.cli(t, "show stat")) {
		if f := strings.Split(line, ","); len(f) > column && f[0] == proxy && f[1] == server {
			return f[column]
		}
	}
	return ""
}

// The agent finds the tables behind the socket that SLUICE_PEER names, on a
// unix socket as on TCP.
func TestPeer(t *testing.T) {
	for name, addr := range map[string]string{"TCP": proctest.FreeAddr(t), "unix": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{Config: Config{Peer: addr}})
			network := "tcp"
			if addr == "" {
				network, addr = "unix", filepath.Join(r.dir, "peer.sock")
			}
			conn := dial(t, network, addr)
			defer conn.Close()
			fmt.Fprintf(conn, "HAProxyS 2.1\n%s\n%s %d 1\n", LocalPeer, AgentPeer, os.Getpid())
			reply := make([]byte, 4)
			if _, err := conn.Read(reply); err != nil || string(reply) != "200\n" {
				t.Errorf("handshake answered %q, %v, want 200", reply, err)
			}
			for _, table := range []string{"throttle", "block", "active"} {
				if out := r.cli(t, "show table sluice/"+table); !strings.Contains(out, "# table: sluice/"+table+", type: string, size:") {
					t.Errorf("show table sluice/%s = %q", table, out)
				}
			}
		})
	}
}
