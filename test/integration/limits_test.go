package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// A refusal says why and when to come back, and the access log says of each request what became of it and what is left, whether
// HAProxy or the agent decided.
func TestRefusalSaysWhy(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	s := scene.Start(t, cluster.Options{AccessLog: "json", Limits: `
version: 1
default_tier: free
tiers: {free: {requests: {GET: 5}}, hourly: {requests: {GET: {hour: 3}}}, narrow: {concurrent: 1}}
users: {bob: narrow, carol: hourly}
exempt: {users: [probe]}
`})
	in := s.Instances[0]
	check := func(user, reason, policy string, latest int) (checked bool) {
		t.Helper()
		res, body := scene.Get(t, in.Address, user)
		if res.StatusCode == http.StatusOK {
			return false
		}
		for name, want := range map[string]string{"Ratelimit-Policy": policy, "Sluice-Reason": reason, "Cache-Control": "no-store"} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s = %q, want %q", user, name, got, want)
			}
		}
		after := res.Header.Get("Retry-After")
		if n, err := strconv.Atoi(after); err != nil || n < 1 || n > latest {
			t.Errorf("%s: Retry-After = %q, want 1 to %d", user, after, latest)
		}
		if res.StatusCode != http.StatusTooManyRequests || !strings.Contains(body, "Retry after "+after+" s") {
			t.Errorf("%s: %d %q, want 429 and when to retry", user, res.StatusCode, body)
		}
		return true
	}
	known := func() float64 {
		return in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) + in.Metric(t, `sluice_requests_total{limit="GET",verdict="refused"}`)
	}
	testkit.Eventually(t, "the agent refuses alice, and then HAProxy does so by itself", func() error {
		before := known()
		if !check("alice", "request-rate", `"GET";q=5;w=1`, 1) || known() > before {
			return fmt.Errorf("admitted, or the agent was asked")
		}
		return nil
	})
	defer s.Hold(t, "bob", 1)()
	testkit.Eventually(t, "bob is refused", func() error {
		if !check("bob", "concurrent-requests", `"concurrent-requests";q=1;qu="concurrent-requests"`, 3) {
			return fmt.Errorf("admitted")
		}
		return nil
	})

	want := []string{
		"carol 200 allowed - GET/hour 3 2", "carol 200 allowed - GET/hour 3 1", "carol 200 allowed - GET/hour 3 0",
		"carol 429 refused request-rate GET/hour 3 0", "carol 429 refused request-rate GET/hour 3 0", "probe 200 exempt - GET - -",
	}
	for _, line := range want {
		user, _, _ := strings.Cut(line, " ")
		scene.Get(t, in.Address, user)
	}
	var got []string
	testkit.Eventually(t, "the access log has each request", func() error {
		got = nil
		for text := range strings.Lines(in.HAProxy.Output()) {
			var l struct {
				User, Verdict, Reason, Class string
				Status                       int
				Limit, Remaining             *int
			}
			if err := json.Unmarshal([]byte(text), &l); err != nil || l.User == "alice" || l.User == "bob" {
				continue // HAProxy logs its servers as well
			}
			number := func(n *int) string {
				if n == nil {
					return "-"
				}
				return strconv.Itoa(*n)
			}
			got = append(got, fmt.Sprint(l.User, " ", l.Status, " ", l.Verdict, " ", l.Reason, " ", l.Class, " ", number(l.Limit), " ", number(l.Remaining)))
		}
		if len(got) < len(want) {
			return fmt.Errorf("%d lines of %d", len(got), len(want))
		}
		return nil
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access log (-want +got):\n%s", diff)
	}
}

// What the limit file says of verbs, classes, patterns, bursts, hours, days, anonymous and exempt users holds on two instances
// together.
func TestLimitFile(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	zone, err := time.LoadLocation("Asia/Kathmandu")
	testkit.Must(t, err)
	// The day begins twelve hours from now: none ends meanwhile.
	starts := time.Now().In(zone).Add(12 * time.Hour).Truncate(time.Minute)
	s := scene.Start(t, cluster.Options{Instances: 2, Identify: "header:X-User,ip", Limits: fmt.Sprintf(`
version: 1
windows: {time_zone: %s, day_starts: "%s"}
default_tier: free
anonymous_tier: guest
classes: s3
exempt: {users: ["mon-*"], paths: ["/static/*"]}
tiers:
  free: {requests: {GET: {hour: 6}, LISTOBJECTSV2: {hour: 3}, "*": {hour: 8}}}
  pro: {requests: {GET: {hour: 12}}}
  guest: {requests: {"*": {hour: 1}}}
  bursty: {requests: {GET: {second: 20, burst: 100}}}
  hourly: {requests: {GET: {second: 1000, hour: 100}}}
  daily: {requests: {GET: {day: 7, month: 1k}}}
users:
  "team-*": pro
  team-x: free
  bob: bursty
  carol: hourly
  dave: daily
`, zone, starts.Format("15:04"))})
	for _, tt := range []struct {
		name, method, path, user string
		admitted                 int
		limit                    string // that refuses the next request; "" for none
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
		{"a day", "GET", "/bucket/key", "dave", 7, "GET/day"},
	} {
		admitted := 0
		testkit.Eventually(t, tt.name, func() error {
			// The last tokens may lie with the other instance for a moment.
			if admitted += s.Admitted(t, tt.method, tt.path, tt.user, min(10, tt.admitted-admitted)); admitted < tt.admitted {
				return fmt.Errorf("%d admitted, want %d", admitted, tt.admitted)
			}
			return nil
		})
		for i := range 10 {
			res, _ := scene.Do(t, tt.method, s.Addresses()[i%2]+tt.path, tt.user)
			policy, _, _ := strings.Cut(res.Header.Get("RateLimit-Policy"), ";")
			if (res.StatusCode != http.StatusOK) != (tt.limit != "") || tt.limit != "" && policy != strconv.Quote(tt.limit) {
				t.Errorf("%s: %d after %d, by %s, want it refused by %q", tt.name, res.StatusCode, admitted, policy, tt.limit)
			}
		}
	}

	// The rest of the day is refused by each HAProxy alone, which knows how long that is.
	for _, in := range s.Instances {
		testkit.Eventually(t, "HAProxy refuses dave by itself", func() error {
			const refused = `sluice_requests_total{limit="GET/day",verdict="refused"}`
			before := in.Metric(t, refused)
			res, _ := scene.Get(t, in.Address, "dave")
			retry, err := strconv.Atoi(res.Header.Get("Retry-After"))
			if left := int(time.Until(starts).Seconds()); err != nil || retry < left-1 || retry > left+3 || res.Header.Get("RateLimit-Policy") != `"GET/day";q=7;w=86400` {
				t.Errorf("%d %v, want it refused by a day that is over in %d s", res.StatusCode, res.Header, left)
			}
			if in.Metric(t, refused) != before {
				return fmt.Errorf("the agent was asked")
			}
			return nil
		})
	}

	// A burst is what was left unused in the seconds before, and no more.
	const seconds = 3
	r := s.Offer(t, "even", 400, seconds*time.Second, scene.GETs("bob"))
	scene.CheckAnswered(t, r)
	touched := len(r.Ratios(20, 0).Rows) // one second more than the load lasts, or two on a slow machine
	if got, least, most := len(r.Admitted().Results), seconds*20*95/100+95, touched*20+100; got < least || got > most {
		t.Errorf("%d admitted in %d s with a burst of 100, want %d to %d", got, seconds, least, most)
	}

	// An agent that dies takes along what it has leased of an hour, and nothing comes back with it.
	used := len(s.Offer(t, "even", 50, time.Second, scene.GETs("carol")).Admitted().Results)
	if used < 45 {
		t.Errorf("%d of 50 requests admitted, of an hour's 100", used)
	}
	s.Instances[0].Agent.Kill()
	s.Instances[0].StartAgent(t)
	s.Instances[0].AwaitReady(t)
	used += len(s.Offer(t, "even", 200, time.Second, scene.GETs("carol")).Admitted().Results)
	if used < 85 || used > 100 {
		t.Errorf("%d requests admitted, of an hour's 100, want 85 at least and 100 at most", used)
	}
	left := func() int { return int(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)).Seconds()) }
	most := left() + 2
	res, _ := scene.Get(t, s.Instances[1].Address, "carol")
	if retry, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || retry < left()-1 || retry > most {
		t.Errorf("Retry-After = %q, want the %d s that the hour has left", res.Header.Get("Retry-After"), left())
	}
}

// A limit in a dry run changes no byte of any answer and delays none; refusals and delays that it would have caused are
// counted.
func TestDryRun(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	fixed := scene.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
		w.Header().Set("Content-Length", strconv.Itoa(n)) // or HAProxy cuts it into chunks as it comes
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
	}))
	in := scene.Start(t, cluster.Options{Origin: fixed, Limits: `
version: 1
default_tier: free
tiers:
  free: {requests: {GET: {hour: 10}, PUT: 5}, concurrent: 2, mode: dry-run}
  none: {requests: {GET: {hour: 10}}, mode: "off"}
users: {no-lim: none}
`}).Instances[0]
	// conversation is every byte that comes back over one connection.
	conversation := func(user string) []byte {
		var requests []string
		for range 30 {
			requests = append(requests,
				"GET /10 HTTP/1.1\r\nHost: x\r\nX-User: "+user+"\r\n\r\n",
				"PUT /0 HTTP/1.1\r\nHost: x\r\nX-User: "+user+"\r\nContent-Length: 20000\r\n\r\n"+strings.Repeat("y", 20000))
		}
		requests = append(requests, "GET /300000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-User: "+user+"\r\n\r\n")
		conn, err := net.Dial("tcp", in.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		go func() { _, _ = io.WriteString(conn, strings.Join(requests, "")) }()
		answers, err := io.ReadAll(conn)
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(answers), err)
		}
		return answers
	}
	if want, got := conversation("no-lim"), conversation("dry-ru"); !bytes.Equal(got, want) {
		t.Errorf("in a dry run the %d bytes of answers differ from the %d without limits:\n%.2000q", len(got), len(want), got)
	}
	scene.AwaitMetric(t, in.Admin, `sluice_dry_run_refused_total{limit="GET/hour"}`, scene.Is(21))
	if n := in.Metric(t, `sluice_requests_total{limit="GET/hour",verdict="refused"}`); n != 0 {
		t.Errorf("%v requests refused in a dry run", n)
	}
	if table, err := in.Tell("show table sluice/throttle"); err != nil || strings.Contains(table, "dry-ru") {
		t.Errorf("HAProxy's table of throttles: %s %v, want no user of a dry run", table, err)
	}
}

// A new limit file is in force on each instance within moments, a broken one changes nothing and is reported with its line
// and column, and an override in it ends by itself.
func TestNewLimitsTakeEffect(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}}}\n"})
	limits := func(get int, more string) string {
		return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: %d}}}\n%s", get, more)
	}
	inForce := func(get int) {
		t.Helper()
		for _, in := range s.Instances {
			testkit.Eventually(t, fmt.Sprintf("limit %d in force on %s", get, in.Name), func() error {
				res, _ := scene.Get(t, in.Address, "probe")
				if got, want := res.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"GET";q=%d;w=1`, get); res.StatusCode != http.StatusTooManyRequests || got != want {
					return fmt.Errorf("%s: %s, want %s", res.Status, got, want)
				}
				return nil
			})
		}
	}
	exact := func(user string, get int) {
		t.Helper()
		r := s.Offer(t, "even", 300, 2*time.Second, scene.GETs(user))
		scene.CheckAnswered(t, r)
		scene.CheckLimit(t, r, user, get, 0.8) // more than the limit before
	}
	p := s.Polygens[0]
	s.SetLimits(t, limits(20, ""))
	inForce(20)
	exact("alice", 20)

	s.SetLimits(t, "version: 1\ntiers: {free: {requests: {get: 1}}}\n")
	scene.AwaitMetric(t, p.Admin, "sluice_limits_valid", scene.Is(0))
	testkit.Eventually(t, "polygen's log says where the file is wrong", func() error {
		if log := p.Output(); !strings.Contains(log, `limits.yaml:2:`) || !strings.Contains(log, "did you mean GET?") {
			return fmt.Errorf("it says %s", log)
		}
		return nil
	})
	exact("bob", 20)

	s.SetLimits(t, limits(15, "users: {carol: {requests: {GET: {second: 15, mode: dry-run}}}}\n"))
	inForce(15)
	exact("dave", 15)
	if refused := s.Offer(t, "even", 100, time.Second, scene.GETs("carol")).Refused().Results; len(refused) > 0 {
		t.Errorf("%d requests were refused in a dry run", len(refused))
	}

	end := time.Now().Add(5 * time.Second).UTC().Truncate(time.Second)
	s.SetLimits(t, limits(15, "users: {erin: {requests: {GET: 60}, until: "+end.Format(time.RFC3339)+", comment: moving house}}\n"))
	admitted := func() int { // in the best of the seconds
		rows := s.Offer(t, "even", 60, 1500*time.Millisecond, scene.GETs("erin")).Ratios(60, 0).Rows
		return slices.MaxFunc(rows, func(a, b load.Row) int { return a.Admitted - b.Admitted }).Admitted
	}
	testkit.Eventually(t, "erin's override is in force", func() error {
		if n := admitted(); n <= 15 && time.Now().Before(end) {
			return fmt.Errorf("%d admitted in a second", n)
		}
		return nil
	})
	time.Sleep(time.Until(end.Add(time.Second)))
	testkit.Eventually(t, "erin's override has ended", func() error {
		if n := admitted(); n > 15 {
			return fmt.Errorf("%d admitted in a second", n)
		}
		return nil
	})
}
