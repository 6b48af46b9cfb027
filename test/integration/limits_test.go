package integration

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// fixedOrigin answers each request with the same bytes, whenever it comes: a body
// of so many bytes as the path says.
func fixedOrigin(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
		w.Header().Set("Content-Length", strconv.Itoa(n)) // or HAProxy cuts it into chunks as it comes
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String()
}

// conversation sends requests over one connection, one after another, and returns
// every byte that came back.
func conversation(t *testing.T, address, user string) []byte {
	t.Helper()
	var requests []string
	for range 30 {
		requests = append(requests,
			"GET /10 HTTP/1.1\r\nHost: x\r\nX-User: "+user+"\r\n\r\n",
			"PUT /0 HTTP/1.1\r\nHost: x\r\nX-User: "+user+"\r\nContent-Length: 20000\r\n\r\n"+strings.Repeat("y", 20000))
	}
	requests = append(requests, "GET /300000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-User: "+user+"\r\n\r\n")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(proctest.Patience))
	go func() {
		for _, r := range requests {
			if _, err := io.WriteString(conn, r); err != nil {
				return // the reading end tells
			}
		}
	}()
	answers, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(answers), err)
	}
	return answers
}

func dryRunLimits(mode string) string {
	return `
version: 1
mode: ` + mode + `
default_tier: free
tiers:
  free:
    requests: {GET: {hour: 10}, PUT: 5}
    concurrent: 2
    bandwidth: {down: 50kB, up: 50kB}
`
}

// A limit in a dry run changes no byte of any answer, and delays none; what it would
// have done is counted.
func TestDryRunChangesNoAnswer(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	origin := fixedOrigin(t)
	start := func(mode string) *cluster.Instance {
		return cluster.Start(t, cluster.Options{Limits: dryRunLimits(mode), Origin: origin}).Instances[0]
	}
	off, dry := start("off"), start("dry-run")
	const user = "alice"
	want := conversation(t, off.Address, user)
	refused := func(limit string) float64 { return dry.Metric(t, `sluice_dry_run_refused_total{limit="`+limit+`"}`) }
	before := refused("GET/hour")
	got := conversation(t, dry.Address, user)
	// What is held back has an entry in the table of clocks.
	if clocks, err := dry.Tell("show table sluice_clock"); err != nil || !strings.Contains(clocks, " used:0\n") {
		t.Errorf("in a dry run some answers were held back: %v\n%s", err, clocks)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("in a dry run the %d bytes of answers differ from byte %d on:\n%.300q\nwithout limits, %d bytes:\n%.300q", len(got), at, got[at:], len(want), want[at:])
	}
	proctest.Eventually(t, "what would have been refused is counted", func() error {
		if n := refused("GET/hour") - before; n != 21 {
			return fmt.Errorf("%v GETs would have been refused by the hour's limit, want 21 of 31", n)
		}
		return nil
	})
	// Ten at a time, of which two would run.
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if res, _ := do(t, "PATCH", dry.Address, "bob"); res.StatusCode != http.StatusOK {
				t.Errorf("one of ten at a time: %s, want 200", res.Status)
			}
		})
	}
	all.Wait()
	if table, err := dry.Tell("show table sluice/throttle"); err != nil || strings.Contains(table, "|alice") {
		t.Errorf("HAProxy's table of throttles: %s %v, want nobody who is in a dry run", table, err)
	}
	if n := dry.Metric(t, `sluice_requests_total{limit="GET/hour",verdict="refused"}`); n != 0 {
		t.Errorf("%v requests refused in a dry run", n)
	}
}

// The mode follows the file: what was refused by HAProxy itself is let through.
func TestDryRunFollowsTheLimitFile(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	limits := func(mode string) string {
		return "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: 5, mode: " + mode + "}}, concurrent: {limit: 100, mode: " + mode + "}}}\n"
	}
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limits("enforce")})
	const user = "alice"
	eventually := func(what string, want int) {
		t.Helper()
		proctest.Eventually(t, what, func() error {
			for _, in := range c.Instances {
				if res, _ := get(t, in.Address, user); res.StatusCode != want {
					return fmt.Errorf("%s: %s", in.Name, res.Status)
				}
			}
			return nil
		})
	}
	eventually("the hour is used up", http.StatusTooManyRequests)
	proctest.Eventually(t, "HAProxy refuses by itself", func() error {
		table, err := c.Instances[0].Tell("show table sluice/throttle")
		if err != nil || !strings.Contains(table, "GET|"+user) {
			return fmt.Errorf("%s %v", table, err)
		}
		return nil
	})
	c.SetLimits(t, limits("dry-run"))
	eventually("in a dry run everybody is let through", http.StatusOK)
	c.SetLimits(t, limits("enforce"))
	eventually("enforced again", http.StatusTooManyRequests)
}

// Windows of an hour hold over several instances, an agent that is killed and
// started again, and a user who comes back after a while.
func TestHourlyLimit(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {second: 1000, hour: 300}}}}\n"})
	const user = "alice"
	admitted := 0
	add := func(r *load.Report) { admitted += len(r.Admitted().Results) }
	add(offerOnce(t, c, user, "even", 100, time.Second))
	time.Sleep(4 * time.Second) // until the agents have forgotten the user
	add(offerOnce(t, c, user, "90/10", 100, time.Second))
	below, lost := admitted, busy(t, c, 0)
	c.Instances[0].Agent.Kill()
	c.Instances[0].StartAgent(t)
	c.Instances[0].AwaitReady(t)
	add(offerOnce(t, c, user, "even", 400, 2*time.Second))
	if lost || busy(t, c, 0) {
		return
	}
	if below < 190 {
		t.Errorf("%d admitted of about 200, below the limit", below)
	}
	// A killed agent takes along what it has leased.
	if admitted > 300 || admitted < 290 {
		t.Errorf("%d admitted in an hour, want 300, and 10 fewer at most", admitted)
	}
	left := func() int { return int(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)).Seconds()) }
	most := left() + 2
	res, body := get(t, c.Instances[1].Address, user)
	var retry int
	if _, err := fmt.Sscan(res.Header.Get("Retry-After"), &retry); err != nil || retry < left()-1 || retry > most {
		t.Errorf("Retry-After = %q, want the %d s that the hour has left", res.Header.Get("Retry-After"), left())
	}
	if got, want := res.Header.Get("RateLimit-Policy"), `"GET/hour";q=300;w=3600`; got != want {
		t.Errorf("RateLimit-Policy = %s, want %s (%s)", got, want, body)
	}
}

// A burst is what was left unused in the seconds before, and no more.
func TestBurst(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Instances: instances,
				Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {second: 20, burst: 100}}}}\n"})
			const seconds = 4
			r := offerOnce(t, c, "alice", "even", 400, seconds*time.Second)
			checkAnswered(t, r)
			if busy(t, c, 0) {
				return
			}
			got := len(r.Admitted().Results)
			touched := len(r.Ratios(20, clockSlack).Rows) // seconds: one more than it lasts, or two on a slow machine
			if most := touched*20 + 100; got > most {
				t.Errorf("%d admitted in %d s, want %d at most", got, touched, most)
			}
			if least := seconds*20*97/100 + 95; got < least {
				t.Errorf("%d admitted in %d s, want %d at least", got, seconds, least)
			}
		})
	}
}

// answers sends one request after another, to the addresses in turn, until they are
// refused, and returns how many were not, and the limit that refused. It asks for a
// while longer: the last tokens may lie where the next request does not come, and an
// agent looks for them about once a second. That while is counted in requests, because a
// machine that stands still for as long sends none.
func answers(t *testing.T, method, path, user string, most int, addresses ...string) (admitted int, limit string) {
	t.Helper()
	refused := 0 // since the last that was admitted
	for i := 0; admitted < most && refused < 75; i++ {
		res, _ := do(t, method, addresses[i%len(addresses)]+path, user)
		if res.StatusCode == http.StatusOK {
			admitted, refused, limit = admitted+1, 0, ""
			continue
		}
		policy, _, _ := strings.Cut(res.Header.Get("RateLimit-Policy"), ";")
		limit = strings.Trim(policy, `"`)
		refused++
		time.Sleep(20 * time.Millisecond)
	}
	return admitted, limit
}

const wholeFile = `
version: 1
default_tier: free
anonymous_tier: guest
classes: s3
exempt: {users: ["mon-*"], paths: ["/static/*"]}
tiers:
  free: {requests: {GET: {hour: 6}, LISTOBJECTSV2: {hour: 3}, "*": {hour: 8}}}
  pro: {requests: {GET: {hour: 12}}, endpoints: {uploads: {requests: {GET: {hour: 2}}}}}
  guest: {requests: {"*": {hour: 1}}}
endpoints: [uploads]
users:
  "team-*": pro
  team-x: free
`

// What the file says of verbs, classes, patterns, anonymous and exempt users holds
// through HAProxy, on two instances together.
func TestLimitFileThroughHAProxy(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: wholeFile, Identify: "header:X-User,ip"})
	for _, tt := range []struct {
		name, method, path, user string
		admitted                 int
		limit                    string
	}{
		{"the class is used up before the verb", "GET", "/bucket?list-type=2", "a", 3, "LISTOBJECTSV2/hour"},
		{"then the verb", "GET", "/bucket/key", "a", 3, "GET/hour"},
		{"then all together", "DELETE", "/bucket/key", "a", 2, "*/hour"},
		{"another user", "GET", "/bucket/key", "b", 6, "GET/hour"},
		{"a pattern", "GET", "/bucket/key", "team-a", 12, "GET/hour"},
		{"a name that a pattern would match", "GET", "/bucket/key", "team-x", 6, "GET/hour"},
		{"an exempt user", "GET", "/bucket/key", "mon-1", 50, ""},
		{"an exempt path", "GET", "/static/x", "a", 50, ""},
		{"no name", "GET", "/bucket/key", "", 1, "*/hour"},
	} {
		admitted, limit := answers(t, tt.method, tt.path, tt.user, 50, c.Addresses()...)
		if admitted != tt.admitted || limit != tt.limit {
			t.Errorf("%s: %d admitted, then refused by %q, want %d and %q", tt.name, admitted, limit, tt.admitted, tt.limit)
		}
	}
	// The exempt user has no limit, and so has credit from the next second on: what HAProxy
	// admits by it is counted a little later. Nobody else here can have any.
	proctest.Eventually(t, "exempt requests are measured", func() error {
		exempt, credit := 0.0, 0.0
		for _, in := range c.Instances {
			exempt += in.Metric(t, `sluice_requests_total{limit="",verdict="exempt"}`)
			credit += in.Metric(t, `sluice_requests_total{limit="",verdict="credit"}`)
		}
		if exempt+credit < 100 {
			return fmt.Errorf("%v are counted as exempt and %v as of credit, want 100 at least", exempt, credit)
		}
		return nil
	})
}

// At an endpoint of the limit file a user has limits of their own, counted apart. What
// the file does not declare is no way to have them again, and a limit over all endpoints
// bounds what they have in all.
func TestEndpointsAreApart(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	c := cluster.Start(t, cluster.Options{
		Limits: strings.NewReplacer(
			"  guest:", `  slow: {concurrent: 3}
  roaming: {requests: {GET: {hour: 10}}, endpoints: {"*": {requests: {GET: {hour: 15}}}}}
  guest:`,
			"endpoints: [uploads]", "endpoints: [uploads, mirror]",
		).Replace(wholeFile) + "  sleeper: slow\n  roamer: roaming\n",
		// As where the endpoint is taken from what clients write.
		Rules: []string{"http-request set-var(txn.sluice_endpoint) url_param(at)"},
	})
	address := c.Addresses()[0]
	get := func(t *testing.T, user, path, endpoint string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path+"?at="+endpoint, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", user)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.StatusCode
	}
	undeclared := []string{"a", "b", "c", "d"}

	t.Run("a declared one has limits of its own", func(t *testing.T) {
		const user = "team-a"
		for at, want := range map[string]int{"uploads": 2, "": 12} {
			if admitted, limit := answers(t, "GET", "/bucket/key?at="+at, user, 50, address); admitted != want || limit != "GET/hour" {
				t.Errorf("at %q: %d admitted, then refused by %q, want %d and GET/hour", at, admitted, limit, want)
			}
		}
	})
	t.Run("a limit over all endpoints holds beside those of each", func(t *testing.T) {
		for _, tt := range []struct {
			at       string
			admitted int
			limit    string
		}{
			{"uploads", 10, "GET/hour"},
			{"mirror", 5, "@*/GET/hour"},
			{"", 0, "@*/GET/hour"},
		} {
			if admitted, limit := answers(t, "GET", "/bucket/key?at="+tt.at, "roamer", 50, address); admitted != tt.admitted || limit != tt.limit {
				t.Errorf("at %q: %d admitted, then refused by %q, want %d and %s", tt.at, admitted, limit, tt.admitted, tt.limit)
			}
		}
	})
	t.Run("undeclared ones share the request rate of everywhere", func(t *testing.T) {
		admitted := 0
		for i := range 40 {
			if get(t, "team-u", "/bucket/key", undeclared[i%len(undeclared)]) == http.StatusOK {
				admitted++
			}
		}
		if admitted != 12 {
			t.Errorf("%d of 40 admitted at %q, want 12", admitted, undeclared)
		}
	})
	t.Run("and the requests in progress", func(t *testing.T) {
		var statuses [8]int
		var all sync.WaitGroup
		for i := range statuses {
			all.Go(func() { statuses[i] = get(t, "sleeper", "/sleep/5000", undeclared[i%len(undeclared)]) })
		}
		all.Wait()
		admitted := 0
		for _, status := range statuses {
			if status == http.StatusOK {
				admitted++
			}
		}
		if admitted != 3 {
			t.Errorf("%d of %d admitted at once at %q, want 3", admitted, len(statuses), undeclared)
		}
		proctest.Eventually(t, "nothing is in progress", func() error {
			if got := c.Instances[0].Metric(t, "sluice_requests_in_progress"); got != 0 {
				return fmt.Errorf("%v requests in progress", got)
			}
			return nil
		})
		if got := get(t, "sleeper", "/sleep/1", "a"); got != http.StatusOK {
			t.Errorf("status %d when all have ended, want 200: what ended must be heard of", got)
		}
	})
	if got := c.Instances[0].Metric(t, "sluice_undeclared_endpoint_requests_total"); got != 49 {
		t.Errorf("%v requests at undeclared endpoints counted, want 49", got)
	}
	if log := c.Instances[0].Agent.Output(); strings.Count(log, "the limit file does not declare") == 0 {
		t.Errorf("the agent's log does not tell of undeclared endpoints:\n%s", log)
	}
}

// An override that ends does so everywhere without anybody touching the file.
func TestOverrideEndsByItself(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	const limits = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {PUT: {hour: 3}}}}\n"
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limits})
	end := time.Now().Add(5 * time.Second).UTC().Truncate(time.Second)
	c.SetLimits(t, limits+"users: {alice: {requests: {PUT: unlimited}, until: "+end.Format(time.RFC3339)+", comment: moving house}}\n")
	refused := func() bool {
		admitted, _ := answers(t, "PUT", "/x", "alice", 20, c.Addresses()...)
		return admitted < 20
	}
	proctest.Eventually(t, "the override is there", func() error {
		if refused() && time.Now().Before(end) {
			return fmt.Errorf("fewer than 20 PUTs are admitted")
		}
		return nil
	})
	time.Sleep(time.Until(end.Add(time.Second)))
	proctest.Eventually(t, "the override has ended", func() error {
		if !refused() {
			return fmt.Errorf("20 PUTs are admitted")
		}
		return nil
	})
}
