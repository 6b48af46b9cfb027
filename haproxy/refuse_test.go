package haproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
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
	"github.com/sluice-qos/sluice/pkg/limits"
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
		"rate":       {"request-rate", "GET", 100, 1, 0},
		"all":        {"request-rate", "*", 200, 7, 0},
		"hour":       {"request-rate", "LIST/hour", 20000, 1234, 3600},
		"concurrent": {"concurrent-requests", "*", 10, 2, 0},
	}
	for _, status := range []int{429, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			r := newRig(t, setup{Config: Config{RefuseStatus: status, Env: []string{"SLUICE_RETRY_JITTER=1"}}}) // no jitter
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
					"longer window", httpGET("/", "X-User: hour"),
					map[string]string{"RateLimit-Policy": `"LIST/hour";q=20000;w=3600`, "RateLimit": `"LIST/hour";r=0;t=1234`, "Retry-After": "1234", "Sluice-Reason": "request-rate"},
					"Refused (request-rate): the limit LIST/hour is used up. Retry after 1234 s.\n",
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
					"Refused (request-rate): the limit GET is used up. Retry after 1 s.\n",
				},
			} {
				t.Run(row.name, func(t *testing.T) {
					got := r.send(t, row.request)[0]
					row.want["Cache-Control"] = "no-store"
					row.want["Content-Type"] = "text/plain"
					if status == 503 {
						row.want["Content-Type"] = "application/xml"
						if row.body != "" {
							row.body = slowDown
						}
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

// Of the limits of a request that are reached, its verb's is named, then its
// operation's, then that of all. Windows that are longer than a second are named, too.
func TestNativeRefusalOfOperationsAndWindows(t *testing.T) {
	r := newRig(t, setup{Config: Config{Classes: []limits.Class{{Name: "LIST", Any: []limits.Match{{Query: []string{"list"}}}}}}})
	end := time.Now().Add(50 * time.Minute)
	teach := func(t *testing.T) { // again and again, for the table forgets
		for _, e := range []struct {
			key           string
			limit, window int
		}{
			{"LIST|op", 30, 60}, {"GET|verb", 7, 3600}, {"LIST|verb", 30, 60}, {"*|verb", 9, 0}, {"*|all", 9, 3600}, {"LIST|both", 30, 1}, {"*|both", 9, 60},
			{"*|odd", 9, 7}, {"GET|unknown", 0, 60}, {"|none", 5, 0}, {"-|none", 5, 0},
			{"LIST|blocked", 30, 60},
		} {
			r.teachWindow(t, e.key, end, e.limit, e.window)
		}
		r.teach(t, "block", "blocked", end, 10)
	}
	for _, row := range []struct {
		name, request, limit, policy string // allowed if there is no limit
	}{
		{"operation", httpGET("/?list", "X-User: op"), "LIST/minute", `"LIST/minute";q=30;w=60`},
		{"no operation", httpGET("/", "X-User: op"), "", ""},
		{"no operation, no key", httpGET("/", "X-User: none"), "", ""},
		{"verb before operation", httpGET("/?list", "X-User: verb"), "GET/hour", `"GET/hour";q=7;w=3600`},
		{"operation before all", httpRequest("PUT", "/?list", "X-User: verb", "Content-Length: 0"), "LIST/minute", `"LIST/minute";q=30;w=60`},
		{"all of the verb's user", httpRequest("PUT", "/", "X-User: verb", "Content-Length: 0"), "*", `"*";q=9;w=1`},
		{"all", httpGET("/?list", "X-User: all"), "*/hour", `"*/hour";q=9;w=3600`},
		{"second, then minute", httpGET("/?list", "X-User: both"), "LIST", `"LIST";q=30;w=1`},
		{"minute of all", httpGET("/", "X-User: both"), "*/minute", `"*/minute";q=9;w=60`},
		{"window without a name", httpGET("/", "X-User: odd"), "*", `"*";q=9;w=7`},
		{"limit not known", httpGET("/", "X-User: unknown"), "GET/minute", ""},
		{"too many in progress besides", httpGET("/?list", "X-User: blocked"), "concurrent-requests", `"concurrent-requests";q=10;qu="concurrent-requests"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			teach(t)
			got := r.send(t, row.request)[0]
			if row.limit == "" {
				if got.Status != 200 {
					t.Errorf("status = %d, want 200", got.Status)
				}
				return
			}
			reason, least, most := "request-rate", 2000, 3000 // the fifty minutes that were taught
			if row.limit == "concurrent-requests" {
				reason, least, most = row.limit, 1, 3
			}
			retry := got.Header.Get("Retry-After")
			want := map[string]string{
				"Retry-After": retry, "RateLimit": fmt.Sprintf(`"%s";r=0;t=%s`, row.limit, retry), "Sluice-Reason": reason,
				"Cache-Control": "no-store", "Content-Type": "text/plain",
			}
			if row.policy != "" {
				want["RateLimit-Policy"] = row.policy
			}
			if diff := cmp.Diff(want, fields(got)); got.Status != 429 || diff != "" {
				t.Errorf("%d, fields (-want +got):\n%s", got.Status, diff)
			}
			if body := fmt.Sprintf("Refused (%s): the limit %s is used up. Retry after %s s.\n", reason, row.limit, retry); got.Body != body {
				t.Errorf("body = %q, want %q", got.Body, body)
			}
			var seconds int
			if _, err := fmt.Sscan(retry, &seconds); err != nil || seconds < least || seconds > most {
				t.Errorf("Retry-After = %q, want %d to %d", retry, least, most)
			}
		})
	}
	r.takeHeard(t)
}

// An entry of throttle that the agent does not repeat is forgotten after 5 s, however
// long its window is.
func TestThrottleIsForgotten(t *testing.T) {
	r := newRig(t, setup{})
	r.teachWindow(t, "GET|alice", time.Now().Add(time.Hour), 1, 3600)
	out := r.cli(t, "show table sluice/throttle")
	_, left, found := strings.Cut(out, "exp=")
	var ms int
	if _, err := fmt.Sscan(left, &ms); err != nil || !found || ms > 5000 {
		t.Errorf("show table says %q, want an entry with 5 s left", out)
	}
}

func TestRateJitter(t *testing.T) {
	for _, jitter := range []int{0, 1, 4} {
		t.Run(fmt.Sprint(jitter), func(t *testing.T) {
			r := newRig(t, setup{Config: Config{Env: []string{fmt.Sprint("SLUICE_RATE_JITTER=", jitter)}}})
			r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 10, 0} })
			seen := map[string]bool{}
			// Each of five values fails to turn up in 100 with a probability of 2e-10.
			for range 100 {
				got := r.get(t)
				retry := got.Header.Get("Retry-After")
				seen[retry] = true
				if want := `"GET";r=0;t=` + retry; got.Header.Get("RateLimit") != want {
					t.Fatalf("RateLimit = %s, want %s, the same time", got.Header.Get("RateLimit"), want)
				}
			}
			want := map[string]bool{}
			for i := range jitter + 1 {
				want[fmt.Sprint(10+i)] = true
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("Retry-After (-want +got):\n%s", diff)
			}
		})
	}
}

// Keys are cut at no length that they can have: 126 bytes of user, 32 of class.
func TestNativeRefusalOfLongNames(t *testing.T) {
	const endpoint = "abcdefghijklmnopqrstuvwx"
	class := strings.Repeat("C", 32)
	r := newRig(t, setup{Config: Config{Env: []string{"SLUICE_ENDPOINT=" + endpoint}, Classes: []limits.Class{{Name: class, Any: []limits.Match{{}}}}}})
	long := strings.Repeat("n", 99)
	key := func(end string) string { return limits.EndpointKey(endpoint, limits.Key(long+end)) }
	if n := len(class + "|" + key("a")); n != 159 {
		t.Fatalf("the longest key has %d bytes, want 159", n)
	}
	for end, want := range map[string]int{"a": 429, "b": 429, "c": 200} {
		r.teach(t, "block", key("a"), time.Now().Add(time.Hour), 1)
		r.teach(t, "throttle", class+"|"+key("b"), time.Now().Add(time.Hour), 1)
		if got := r.get(t, "X-User: "+long+end); got.Status != want {
			t.Errorf("status for the name that ends in %s = %d, want %d", end, got.Status, want)
		}
	}
	for table, want := range map[string]string{"block": key("a"), "throttle": class + "|" + key("b"), "active": key("c")} {
		if out := r.cli(t, "show table sluice/"+table); !strings.Contains(out, "key="+want+" ") {
			t.Errorf("show table sluice/%s = %q, want the key %s", table, out, want)
		}
	}
	if h := r.takeHeard(t); len(h) != 1 || h[0].User != key("c") || h[0].Op != class {
		t.Errorf("the agent heard %+v, want user %s and op %s", h, key("c"), class)
	}
}

// Health checks skip everything, for a chain that does not read S3 requests: only GET and
// HEAD of the listed paths, without a query and a body.
func TestHealthChecks(t *testing.T) {
	r := newRig(t, setup{Config: Config{Identify: "header,ip"}, edit: moreHealthChecks})
	r.teach(t, "block", "bob", time.Now().Add(time.Hour), 1)
	r.teach(t, "block", client, time.Now().Add(time.Hour), 1)
	for _, row := range []struct {
		name, request string
		check         bool
	}{
		{"GET", httpGET("/healthz", "X-User: bob"), true},
		{"without a name", httpGET("/-/healthy"), true},
		{"HEAD", httpRequest("HEAD", "/readyz", "X-User: bob"), true},
		{"an announced body of nothing", httpGET("/health", "X-User: bob", "Content-Length: 0"), true},
		{"a query", httpGET("/healthz?verbose", "X-User: bob"), false},
		{"an empty query", httpGET("/healthz?", "X-User: bob"), false},
		{"a body", httpGET("/healthz", "X-User: bob", "Content-Length: 1") + "x", false},
		{"a body in chunks", httpGET("/healthz", "X-User: bob", "Transfer-Encoding: chunked") + "1\r\nx\r\n0\r\n\r\n", false},
		{"POST", httpRequest("POST", "/healthz", "X-User: bob", "Content-Length: 0"), false},
		{"PUT", httpRequest("PUT", "/health", "X-User: bob", "Content-Length: 1") + "x", false},
		{"DELETE", httpRequest("DELETE", "/healthz", "X-User: bob"), false},
		{"a method of one's own", httpRequest("GETX", "/healthz", "X-User: bob"), false},
		{"a slash more", httpGET("/healthz/", "X-User: bob"), false},
		{"another path", httpGET("/healthzz", "X-User: bob"), false},
		{"a path below", httpGET("/x/healthz", "X-User: bob"), false},
		{"two slashes", httpGET("//healthz", "X-User: bob"), false},
		{"capital letters", httpGET("/HEALTHZ", "X-User: bob"), false},
		{"in the query", httpGET("/x?/healthz", "X-User: bob"), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := map[bool]int{true: 200, false: 429}[row.check]
			if got := r.send(t, row.request)[0]; got.Status != want {
				t.Errorf("status of a blocked user = %d, want %d", got.Status, want)
			}
			if asked := r.takeAsked(t); len(asked) != 0 {
				t.Errorf("asked %v, want nothing", asked)
			}
		})
	}

	// A body that is still on its way is one, too.
	conn := dial(t, "tcp", r.addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, httpGET("/healthz", "X-User: bob", "Content-Length: 9")); err != nil {
		t.Fatal(err)
	}
	if got, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || got.StatusCode != 429 {
		t.Errorf("answer before the body is there = %v, %v, want 429", got, err)
	}
}

// moreHealthChecks is for tests that make more health checks than a second may have.
func moreHealthChecks(cfg string) string {
	return strings.Replace(cfg, "table_http_req_rate(sluice_health) lt 10", "table_http_req_rate(sluice_health) lt 1000", 1)
}

// Of an address there are ten health checks a second; more are requests like any other. An IPv6 host
// has as many as an IPv4 one.
func TestHealthChecksAreBounded(t *testing.T) {
	r := newRig(t, setup{
		Config: Config{Identify: "header,ip"},
		edit: func(cfg string) string {
			// The address comes from a PROXY header, which a test can write. A longer second, so that the test may be slow.
			cfg = strings.Replace(cfg, "http_req_rate(1s)", "http_req_rate(1h)", 1)
			return strings.Replace(cfg, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, `bind "${SLUICE_BIND-127.0.0.1:8080}" accept-proxy`, 1)
		},
	})
	for _, row := range []struct{ name, proxy string }{
		{"IPv4", "TCP4 192.0.2.7 192.0.2.1 4000 80"},
		{"IPv6", "TCP6 2001:db8:1:2::%d 2001:db8::1 4000 80"},
		{"another address", "TCP4 192.0.2.8 192.0.2.1 4000 80"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for i := range 12 {
				proxy := row.proxy
				if strings.Contains(proxy, "%d") {
					proxy = fmt.Sprintf(proxy, i+1)
				}
				if got := r.send(t, "PROXY "+proxy+"\r\n"+httpGET("/healthz", "X-User: alice"))[0]; got.Status != 200 {
					t.Errorf("check %d: status = %d, want 200", i, got.Status)
				}
			}
			if diff := cmp.Diff([]question{{"alice", "GET"}, {"alice", "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("12 checks asked (-want +got):\n%s", diff)
			}
		})
	}
}

// A chain that reads S3 requests has no health checks: each path is a bucket.
func TestNoHealthChecksWithS3(t *testing.T) {
	for _, chain := range []string{"auto", "s3", "header,s3,ip"} {
		r := newRig(t, setup{Config: Config{Identify: chain}})
		r.get(t) // connects to the agent
		r.takeAsked(t)
		for _, path := range strings.Fields(healthPaths) {
			r.send(t, httpGET(path, "Authorization: AWS AKID:sig"))
			if diff := cmp.Diff([]question{{"AKID", "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("%s: %s asked (-want +got):\n%s", chain, path, diff)
			}
		}
	}
}

func TestOriginSeesNoSluiceHeaders(t *testing.T) {
	r := newRig(t, setup{Config: Config{Identify: "header,ip"}})
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
		return &verdict{"request-rate", "GET", 100, 1, 0}
	}
	return nil
}

func TestKeepAliveAndPipelining(t *testing.T) {
	r := newRig(t, setup{Config: Config{Identify: "header,basic,ip"}})
	r.refuseWith(refuseBad)
	// All on one connection, so that nothing of a request may stay for the next.
	answers := r.send(t,
		httpGET("/1", "X-User: good"), httpGET("/2", "X-User: bad"), httpGET("/3"), httpGET("/healthz", "X-User: bad"),
		httpGET("/4", basic("good:x")), httpGET("/5", "X-User: bad"),
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
		return &verdict{"request-rate", "GET", 1, 1, 0}
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

		r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 1, 0} })
		r.listen(t, filepath.Join(r.dir, "spoa.sock"))
		proctest.Eventually(t, "the agent is asked again when it returns", func() error {
			if got := r.get(t, "X-User: alice"); got.Status != 429 {
				return fmt.Errorf("status = %d, want 429", got.Status)
			}
			return nil
		})
	})
	t.Run("agent that accepts and says nothing", func(t *testing.T) {
		r := newRig(t, setup{noAgent: true, Config: Config{VerdictTimeout: 30 * time.Millisecond, Env: []string{"SLUICE_CHECK_TIMEOUT=100ms"}}})
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
