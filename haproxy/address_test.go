package haproxy

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// addressed has all limits of addresses, for clients whose address a PROXY header says. An answer's request says by the header
// X-Lease in which second it was admitted: what the origin sees a moment later may be in the next one by its own clock.
var addressed = setup{
	Config: Config{
		Identify: "s3,header:X-User", Exempt: exempted, Env: []string{"SLUICE_THREADS=4", "SLUICE_RETRY_JITTER=1"},
		Addresses: limits.AddressLimits{Requests: 50, Concurrent: 20, FailedAuth: 5, FailedAuthWindow: limits.Hour},
	},
	edit: func(cfg string) string {
		const last = "    http-request sc-set-gpt(5,2) var(txn.sluice_lease),div(4) if sluice_address_spent\n"
		return withDoors(strings.Replace(cfg, last, last+"    http-request set-header X-Lease %[var(txn.sluice_lease)]\n", 1))
	},
	serve: checksSignatures,
}

// fewOfAnAddress has small ones, and counts and logs what they refuse.
var fewOfAnAddress = setup{
	Config: Config{
		Identify: "s3,header:X-User,ip", Exempt: exempted, Env: []string{accessLog, "SLUICE_REFUSE_BODY=problem", "SLUICE_RETRY_JITTER=1"},
		Addresses: limits.AddressLimits{Requests: 3, Concurrent: 2, FailedAuth: 1, FailedAuthWindow: limits.Second},
	},
	edit: withDoors,
}

// from is a request of a client at an address.
func from(address, request string) string {
	kind, here := "TCP4", "192.0.2.1"
	if strings.Contains(address, ":") {
		kind, here = "TCP6", "2001:db8::1"
	}
	return fmt.Sprintf("PROXY %s %s %s 4000 80\r\n%s", kind, address, here, request)
}

// signed is a request with a key id that is known and a signature that the origin of
// these tests takes for good or bad.
func signed(key, signature string) string { return signedGET("/", key, signature) }

func signedGET(path, key, signature string) string {
	return httpGET(path, "Authorization: AWS4-HMAC-SHA256 Credential="+key+"/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature="+signature)
}

// checksSignatures is an origin that answers 403 to signatures that are bad, and 401
// to those that are odd.
func checksSignatures(w http.ResponseWriter, q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	switch auth := q.Header.Get("Authorization"); {
	case strings.HasSuffix(auth, "=bad"):
		w.WriteHeader(http.StatusForbidden)
	case strings.HasSuffix(auth, "=odd"):
		w.WriteHeader(http.StatusUnauthorized)
	}
	fmt.Fprint(w, "origin")
}

// A client who knows a key's id can send bad signatures: up to the limit they are the
// owner's requests, and then nobody's.
func TestFailedAuthentication(t *testing.T) {
	const allowed = 5
	r := shared(t, addressed)
	r.refuseWith(func(q question) *verdict {
		if q.User == "spent" {
			return &verdict{"request-rate", "GET", 1, 1, 0}
		}
		return nil
	})

	// What HAProxy answers by itself is no failed authentication, nor is success.
	for range allowed + 1 {
		for request, want := range map[string]int{
			signedGET("/own", "key", "bad"): 403, signed("spent", "bad"): 429, signed("key", "good"): 200,
			signedGET("/status", "key", "bad"): 403, signedGET("/static/a", "key", "bad"): 403, // exempt: no user pays
		} {
			if got := r.sendFrom(t, "203.0.113.9", request); got.Status != want {
				t.Fatalf("before any failure: status of %.40q = %d, want %d", request, got.Status, want)
			}
		}
	}
	r.takeHeard(t)

	attack := func(address string, n int) (statuses []int) {
		for i := range n {
			signature := []string{"bad", "odd"}[i%2]
			statuses = append(statuses, r.sendFrom(t, address, signed("key", signature)).Status)
		}
		return statuses
	}
	for _, address := range []string{"203.0.113.9", "2001:db8:1:2::1"} {
		got := attack(address, allowed+20)
		want := append([]int{403, 401, 403, 401, 403}, slices.Repeat([]int{429}, 20)...)
		if !slices.Equal(got, want) {
			t.Errorf("answers to %s = %v, want %v", address, got, want)
		}
		if asked := len(r.takeHeard(t)); asked != allowed {
			t.Errorf("the agent was asked %d times about the owner of the key, want %d", asked, allowed)
		}
	}
	for _, row := range []struct {
		name, address, request string
		want                   int
	}{
		{"a good signature from there", "203.0.113.9", signed("key", "good"), 429},
		{"another key from there", "203.0.113.9", signed("other", "bad"), 429},
		{"the same address as IPv6 has it", "::ffff:203.0.113.9", signed("key", "good"), 429},
		{"the next address", "203.0.113.10", signed("key", "good"), 200},
		{"the same /64", "2001:db8:1:2:ffff:ffff:ffff:ffff", signed("key", "good"), 429},
		{"the next /64", "2001:db8:1:3::1", signed("key", "good"), 200},
		{"the owner", "192.0.2.7", signed("key", "good"), 200},
		{"an exempt path", "203.0.113.9", signedGET("/status", "key", "good"), 200},
		{"an exempt prefix", "203.0.113.9", signedGET("/static/x", "key", "good"), 200},
		{"a prefix that leads elsewhere", "203.0.113.9", signedGET("/static/../x", "key", "good"), 429},
	} {
		if got := r.sendFrom(t, row.address, row.request); got.Status != row.want {
			t.Errorf("%s: status = %d, want %d", row.name, got.Status, row.want)
		}
	}
	if got := attack(exempted.Addresses[0], 3*allowed); slices.Contains(got, 429) {
		t.Errorf("answers to an exempt address = %v, want no 429", got)
	}

	got := r.sendFrom(t, "203.0.113.9", signed("key", "bad"))
	want := map[string]string{
		"RateLimit-Policy": `"failed-authentication";q=5;w=3600`, "RateLimit": `"failed-authentication";r=0;t=3600`,
		"Retry-After": "3600", "Sluice-Reason": "failed-authentication", "Cache-Control": "no-store", "Content-Type": "text/plain",
	}
	if diff := cmp.Diff(want, fields(got)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if want := "Refused (failed-authentication): the limit failed-authentication is used up. Retry after 3600 s.\n"; got.Body != want {
		t.Errorf("body = %q, want %q", got.Body, want)
	}
}

// Behind a proxy that writes a header the address is the one that the proxy names, if
// the operator says that it is theirs.
func TestFailedAuthenticationBehindAProxy(t *testing.T) {
	r := shared(t, addressed)
	send := func(address, client, signature string) int {
		return r.sendFrom(t, address, strings.Replace(signed("key", signature), "\r\n\r\n", "\r\nX-Forwarded-For: "+client+"\r\n\r\n", 1)).Status
	}
	for range addressed.Addresses.FailedAuth {
		if got := send("10.0.0.1", "192.0.2.1", "bad"); got != 403 {
			t.Errorf("status of a bad signature = %d, want 403", got)
		}
	}
	for _, row := range []struct {
		name, address, client string
		want                  int
	}{
		{"the same client", "10.0.0.2", "192.0.2.1", 429},
		{"another client", "10.0.0.1", "192.0.2.2", 200},
		{"a proxy of nobody's who names that client", "203.0.113.9", "192.0.2.1", 200},
		{"a client who pretends to be another", "10.0.0.1", "192.0.2.2, 192.0.2.1", 429},
		{"in a field of its own", "10.0.0.1", "192.0.2.2\r\nX-Forwarded-For: 192.0.2.1", 429},
	} {
		if got := send(row.address, row.client, "good"); got != row.want {
			t.Errorf("%s: status = %d, want %d", row.name, got, row.want)
		}
	}
}

// An address is let in again when its failures are old enough.
func TestFailedAuthenticationEnds(t *testing.T) {
	t.Parallel()
	r := shared(t, fewOfAnAddress.with(checksSignatures))
	testkit.Eventually(t, "a refusal of a good signature right behind a bad one", func() error {
		answers := sendTo(t, "unix", filepath.Join(r.dir, "proxy.sock"), from("192.0.2.1", signed("key", "bad")), signed("key", "good"))
		if got := answers[1].Header.Get("Sluice-Reason"); got != "failed-authentication" {
			return fmt.Errorf("Sluice-Reason = %q", got)
		}
		return nil
	})
	testkit.Eventually(t, "the address is let in again", func() error {
		if got := r.sendFrom(t, "192.0.2.1", signed("key", "good")); got.Status != 200 {
			return fmt.Errorf("status = %d, want 200", got.Status)
		}
		return nil
	})
}

// Of all that four threads of HAProxy are asked for, an address gets in each second
// what its limit says, to the request; what is refused takes nothing from that. On a slow
// machine there may be less to admit: it is all of the limit in seconds in which it refuses.
func TestRequestsOfAnAddress(t *testing.T) {
	t.Parallel()
	const limit, connections = 50, 24
	var mu sync.Mutex
	admitted := map[string]map[int64]int{} // by user and second
	r := shared(t, addressed.with(func(_ http.ResponseWriter, q *http.Request) {
		lease, err := strconv.ParseInt(q.Header.Get("X-Lease"), 10, 64)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Errorf("lease: %v", err)
		}
		user := q.Header.Get("X-User")
		if admitted[user] == nil {
			admitted[user] = map[int64]int{}
		}
		admitted[user][lease/4+1700000000]++
	}))
	refused := map[string]map[int64]bool{} // the seconds in which an address was refused, between sending and answer
	for round := range 2 {
		if round > 0 {
			// A second without any request is part of the load: a lease is not always of the
			// second after the one before.
			time.Sleep(1100 * time.Millisecond)
		}
		address := func(i int) string { return fmt.Sprintf("192.0.2.%d", i%2) } // two addresses, each with a limit of its own
		r.load(t, connections, time.Now().Add(2200*time.Millisecond), address, func(i int) string { return httpGET("/", "X-User: "+address(i)) }, func(i int, sent time.Time, got answer) {
			// HAProxy's second may begin a moment after ours.
			if second := sent.Add(-200 * time.Millisecond).Unix(); got.Status == 429 && second == time.Now().Unix() {
				if refused[address(i)] == nil {
					refused[address(i)] = map[int64]bool{}
				}
				refused[address(i)][second] = true
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	for user, by := range admitted {
		for second, n := range by {
			if n > limit || refused[user][second] && n < limit {
				t.Errorf("%s: %d requests were admitted in second %d of %v, want %d", user, n, second, by, limit)
			}
		}
	}
	if len(admitted) != 2 || len(refused) != 2 {
		t.Errorf("admitted = %v and refused in %v, want two addresses and some seconds", admitted, refused)
	}
}

// The fields of an address's refusals, and who else is refused. The access log has the reason, and HAProxy's own metrics count
// each one.
func TestRequestsOfAnAddressRefused(t *testing.T) {
	g := newGate()
	r := shared(t, fewOfAnAddress.with(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/wait" {
			g.ServeHTTP(w, q)
		}
		checksSignatures(w, q)
	}))
	refused := func(what, reason, policy, log string, send func() answer) {
		t.Helper()
		var got answer
		testkit.Eventually(t, what, func() error {
			if got = send(); got.Header.Get("Sluice-Reason") != reason {
				return fmt.Errorf("%d %v", got.Status, fields(got))
			}
			return nil
		})
		want := map[string]string{
			"RateLimit-Policy": `"` + reason + `";` + policy, "RateLimit": `"` + reason + `";r=0;t=1`,
			"Retry-After": "1", "Sluice-Reason": reason, "Cache-Control": "no-store", "Content-Type": "application/problem+json",
		}
		if diff := cmp.Diff(want, fields(got)); got.Status != 429 || diff != "" {
			t.Errorf("%s: %d, fields (-want +got):\n%s", what, got.Status, diff)
		}
		r.awaitLine(t, log)
	}
	r.teach(t, "block", "blocked", time.Now().Add(time.Hour), 1)
	// A request that a table refuses costs the address nothing, and needs no entry.
	for range 5 {
		if got := r.sendFrom(t, "203.0.113.9", httpGET("/", "X-User: blocked")); got.Header.Get("Sluice-Reason") != "concurrent-requests" {
			t.Errorf("a blocked user: %v, want concurrent-requests", fields(got))
		}
	}
	if out := r.cli(t, "show table sluice_address"); strings.Contains(out, "key=") {
		t.Errorf("after refusals by a table: %s, want no entry", out)
	}
	refused("the fourth request within a second", "address-request-rate", "q=3;w=1",
		"429 refused address-request-rate/address-table alice address-request-rate 3 0 1", func() answer {
			return r.sendFrom(t, "203.0.113.9", httpGET("/", "X-User: alice"))
		})
	for range 5 {
		for address, path := range map[string]string{exempted.Addresses[0]: "/", "203.0.113.9": "/status"} {
			if got := r.sendFrom(t, address, httpGET(path)); got.Status != 200 {
				t.Errorf("an exempt request: status of %s from %s = %d, want 200", path, address, got.Status)
			}
		}
	}
	refused("a request right behind one with a bad signature", "failed-authentication", "q=1;w=1",
		"429 refused failed-authentication/address-table - failed-authentication 1 0 1", func() answer {
			return sendTo(t, "unix", filepath.Join(r.dir, "proxy.sock"), from("192.0.2.1", signed("key", "bad")), signed("key", "good"))[1]
		})
	wait := func() {
		arrived := len(g.arrived())
		go r.sendFrom(t, "192.0.2.3", signedGET("/wait", "key", "good"))
		g.await(t, arrived+1)
	}
	wait()
	wait()
	refused("a third request in progress", "address-concurrent-requests", `q=2;qu="concurrent-requests"`,
		"429 refused address-concurrent-requests/address-table key address-concurrent-requests 2 0 1", func() answer {
			return r.sendFrom(t, "192.0.2.3", signed("key", "good"))
		})
	g.let(2)
	for _, backend := range []string{"sluice_refused_failed_auth", "sluice_refused_address_requests", "sluice_refused_address_concurrent"} {
		if n := r.stat(t, backend, "BACKEND", "hrsp_4xx"); n == "0" || n == "" {
			t.Errorf("HAProxy counts %q answers of backend %s, want some", n, backend)
		}
	}
}

// What an address has in progress is bounded, whatever users its requests belong to. What is
// refused is not in progress.
func TestConcurrentRequestsOfAnAddress(t *testing.T) {
	g := newGate()
	r := shared(t, addressed.with(g.ServeHTTP))
	var running []<-chan answer
	for i := range addressed.Addresses.Concurrent {
		running = append(running, r.start(fmt.Sprint("user-", i)))
		g.await(t, i+1)
	}
	r.takeHeard(t)
	for range 10 {
		if got := r.get(t, "X-User: another"); got.Status != 429 || got.Header.Get("Sluice-Reason") != "address-concurrent-requests" {
			t.Errorf("one more: status = %d %v, want 429 for those in progress", got.Status, fields(got))
		}
	}
	if asked := r.takeHeard(t); len(asked) != 0 {
		t.Errorf("the agent heard %v, want nothing", asked)
	}
	g.let(1)
	awaitAny(t, running)
	testkit.Eventually(t, "room for one more", func() error {
		return r.tryOne(t, g)
	})
	g.let(len(running))
}

// manyOfAnAddress has limits that no test reaches.
var manyOfAnAddress = setup{Config: Config{Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User", Addresses: limits.AddressLimits{Requests: limits.MaxPerSecond}}, edit: telling}

// oneOfAnAddress lets one request of an address be in progress, and remembers ten addresses.
var oneOfAnAddress = setup{
	Config: Config{
		Env: []string{"SLUICE_THREADS=4"}, Identify: "s3,header:X-User",
		Addresses: limits.AddressLimits{Requests: limits.MaxPerSecond, Concurrent: 1, FailedAuth: 1, FailedAuthWindow: limits.Hour},
	},
	edit: func(cfg string) string {
		return withDoors(strings.Replace(cfg, "stick-table type ipv6 size 200k", "stick-table type ipv6 size 10", 1))
	},
}

// Many that begin at the same instant: never more than the limit are at the origin.
func TestConcurrentRequestsOfAnAddressAtOnce(t *testing.T) {
	t.Parallel()
	const limit, clients = 1, 32
	var now, most, served atomic.Int64
	r := shared(t, oneOfAnAddress.with(func(http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		served.Add(1)
		time.Sleep(100 * time.Microsecond) // what a request takes, so that others overlap
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				return
			}
		}
	}))
	r.load(t, clients, time.Now().Add(time.Second), nil, func(int) string { return httpGET("/", "X-User: alice") }, func(int, time.Time, answer) {})
	if most.Load() > limit || served.Load() == 0 {
		t.Errorf("%d requests were served, up to %d at a time, want some, and at most %d at a time", served.Load(), most.Load(), limit)
	}
}

// awaitAny waits until one of them is answered.
func awaitAny(t *testing.T, all []<-chan answer) {
	t.Helper()
	testkit.Eventually(t, "an answer", func() error {
		for _, a := range all {
			select {
			case got := <-a:
				if got.Status != 200 {
					t.Errorf("status = %d, want 200", got.Status)
				}
				return nil
			default:
			}
		}
		return fmt.Errorf("none of %d", len(all))
	})
}

// tryOne sends a request and reports that it was refused.
func (r *rig) tryOne(t *testing.T, g *gate) error {
	before := len(g.arrived())
	done := r.start("another")
	for {
		select {
		case got := <-done:
			return fmt.Errorf("status = %d, want it to be with the origin", got.Status)
		case <-time.After(time.Millisecond):
			if len(g.arrived()) > before {
				return nil
			}
		}
	}
}

// A full table forgets the addresses that it has not heard of for longest, and fails
// no request.
func TestFullTableOfAddresses(t *testing.T) {
	r := shared(t, oneOfAnAddress.with(checksSignatures))
	for i := range 50 {
		address := fmt.Sprintf("192.0.2.%d", i)
		for _, step := range []struct {
			signature string
			want      int
		}{{"bad", 403}, {"good", 429}} {
			if got := r.sendFrom(t, address, signed("key", step.signature)); got.Status != step.want {
				t.Errorf("%s: status with a %s signature = %d, want %d", address, step.signature, got.Status, step.want)
			}
		}
	}
	// Which ones are forgotten first is HAProxy's to choose: since 3.2 it looks at a part of the table.
	forgotten := 0
	for i := range 50 {
		if r.sendFrom(t, fmt.Sprintf("192.0.2.%d", i), signed("key", "good")).Status == 200 {
			forgotten++
		}
	}
	if forgotten < 30 {
		t.Errorf("%d of 50 addresses are forgotten by a table of 10, want most", forgotten)
	}
}
