package haproxy

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
)

const slowDown = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`

const accessDenied = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>A limit of 0 refuses this request.</Message></Error>`

// plain are the shipped files and nothing else.
var plain = setup{}

// chosen is an environment with another value for what tests of refusals look at.
var chosen = setup{Config: Config{
	Env: []string{"SLUICE_REFUSE_STATUS=503", "SLUICE_REFUSE_BODY=none", "SLUICE_RETRY_JITTER=5", "SLUICE_RATE_JITTER=4"},
}, edit: func(cfg string) string { // for TestNoWayAroundTheAgent
	return withDoors(strings.Replace(cfg, "    timeout tunnel 1h\n", "    timeout tunnel 1h\n    option abortonclose\n", 1))
}}

// fields are the headers of an answer that tests of refusals compare.
func fields(a answer) map[string]string {
	out := map[string]string{}
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After", "Sluice-Reason", "Cache-Control", "Content-Type"} {
		if v := a.Header.Values(name); v != nil {
			out[name] = strings.Join(v, " ++ ")
		}
	}
	return out
}

// wantRefused compares the fields and the body of a refusal. The policy is "" where the limit is not known.
func wantRefused(t *testing.T, got answer, reason, limit, policy string, least, most int) {
	t.Helper()
	retry := got.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(retry); err != nil || seconds < least || seconds > most {
		t.Errorf("Retry-After = %q, want %d to %d", retry, least, most)
	}
	want := map[string]string{
		"RateLimit": fmt.Sprintf(`"%s";r=0;t=%s`, limit, retry), "Retry-After": retry, "Sluice-Reason": reason,
		"Cache-Control": "no-store", "Content-Type": "text/plain",
	}
	if policy != "" {
		want["RateLimit-Policy"] = fmt.Sprintf(`"%s";%s`, limit, policy)
	}
	body := fmt.Sprintf("Refused (%s): the limit %s is used up. Retry after %s s.\n", reason, limit, retry)
	if reason == "denied" {
		body = fmt.Sprintf("Refused (denied): the limit %s is 0, so that no such request is allowed.\n", limit)
	}
	if got.Status == 503 {
		want["Content-Type"], body = "application/xml", slowDown
		if reason == "denied" {
			body = accessDenied
		}
	}
	if diff := cmp.Diff(want, fields(got)); diff != "" {
		t.Errorf("%d, fields (-want +got):\n%s", got.Status, diff)
	}
	if got.Body != body {
		t.Errorf("body = %q, want %q", got.Body, body)
	}
}

func TestAgentRefusal(t *testing.T) {
	verdicts := map[string]*verdict{
		"rate":       {"request-rate", "GET", 100, 1, 0},
		"all":        {"request-rate", "*", 200, 7, 0},
		"hour":       {"request-rate", "LIST/hour", 20000, 1234, 3600},
		"concurrent": {"concurrent-requests", "*", 10, 2, 0},
		"zero":       {"denied", "tokens/day", 0, 0, 0},
	}
	r := shared(t, usual)
	r.refuseWith(func(q question) *verdict { return verdicts[q.User] })
	for _, status := range []int{429, 503} {
		for _, row := range []struct {
			name, request         string
			reason, limit, policy string
			retry                 int
		}{
			{"request rate", httpGET("/", "X-User: rate"), "request-rate", "GET", "q=100;w=1", 1},
			{"request rate of all classes", httpRequest("POST", "/", "X-User: all", "Content-Length: 0"), "request-rate", "*", "q=200;w=1", 7},
			{"longer window", httpGET("/", "X-User: hour"), "request-rate", "LIST/hour", "q=20000;w=3600", 1234},
			{"requests in progress", httpGET("/", "X-User: concurrent"), "concurrent-requests", "concurrent-requests", `q=10;qu="concurrent-requests"`, 1},
			{"a limit of 0", httpGET("/", "X-User: zero"), "denied", "tokens/day", "", 60},
			{"S3", httpGET("/", "Authorization: AWS rate:sig"), "request-rate", "GET", "q=100;w=1", 1},
		} {
			t.Run(fmt.Sprint(status, " ", row.name), func(t *testing.T) {
				got := r.send(t, strings.Replace(row.request, "\r\n\r\n", fmt.Sprintf("\r\nX-Status: %d\r\n\r\n", status), 1))[0]
				if got.Status != status {
					t.Errorf("status = %d, want %d", got.Status, status)
				}
				wantRefused(t, got, row.reason, row.limit, row.policy, row.retry, row.retry)
			})
		}
	}
	if seen := r.takeSeen(); len(seen) != 0 {
		t.Errorf("%d requests reached the origin, want none", len(seen))
	}
	if got := r.get(t, "X-User: other"); got.Status != 200 || len(fields(got)) != 1 || len(r.takeSeen()) != 1 {
		t.Errorf("another user: %d %v, want 200 from the origin", got.Status, fields(got))
	}
	// A refusal that also names a time to wait is a refusal.
	r.takeTold(t)
	r.answerWith(func(heard) vars { return vars{"reason": "concurrent-requests", "wait": uint32(1000)} })
	if got, asked := r.get(t), r.takeHeard(t); got.Status != 429 || len(asked) != 1 {
		t.Errorf("status = %d after %v, want 429 after one question", got.Status, asked)
	}
}

// A table refuses the keys that it names until their time, and the agent is not asked. Of the limits of a request that are
// reached, its verb's is named, then its operation's, then that of all requests.
func TestNativeRefusal(t *testing.T) {
	r := shared(t, usual)
	end := time.Now().Add(50 * time.Minute)
	put := func(target, user string) string {
		return httpRequest("PUT", target, "X-User: "+user, "Content-Length: 0")
	}
	const blocked, denied = `q=10;qu="concurrent-requests"`, "denied"
	for _, row := range []struct{ name, request, limit, policy string }{ // allowed if there is no limit
		{"class", httpGET("/", "X-User: alice"), "GET", "q=100;w=1"},
		{"other class of the same user", put("/", "alice"), "", ""},
		{"other user", httpGET("/", "X-User: alic"), "", ""},
		{"all classes", put("/", "carol"), "*", "q=200;w=1"},
		{"limit not known", httpGET("/", "X-User: unknown"), "GET", ""},
		{"a limit of 0", httpGET("/", "X-User: zero"), "GET/minute", denied},
		{"blocked", httpGET("/", "X-User: bob"), "concurrent-requests", blocked},
		{"blocked and throttled", httpGET("/", "X-User: both"), "concurrent-requests", blocked},
		{"deadline passed", httpGET("/", "X-User: late"), "", ""},
		{"class and user do not run together", httpGET("/", "X-User: GET|alice"), "", ""},
		{"operation", httpGET("/?list", "X-User: op"), "LIST/minute", "q=30;w=60"},
		{"no operation", httpGET("/", "X-User: op"), "", ""},
		{"no operation, no key", httpGET("/", "X-User: none"), "", ""},
		{"verb before operation", httpGET("/?list", "X-User: verb"), "GET/hour", "q=7;w=3600"},
		{"operation before all", put("/?list", "verb"), "LIST/minute", "q=30;w=60"},
		{"all of the verb's user", put("/", "verb"), "*", "q=9;w=1"},
		{"all", httpGET("/?list", "X-User: all"), "*/hour", "q=9;w=3600"},
		{"second, then minute", httpGET("/?list", "X-User: two"), "LIST", "q=30;w=1"},
		{"minute of all", httpGET("/", "X-User: two"), "*/minute", "q=9;w=60"},
		{"a day of 23 hours", httpGET("/", "X-User: day"), "GET/day", "q=1000;w=82800"},
		{"a day of 25 hours", put("/", "day"), "*/day", "q=2000;w=90000"},
		{"February", httpGET("/", "X-User: month"), "*/month", "q=1000000000;w=2419200"},
		{"window without a name", httpGET("/", "X-User: odd"), "*", "q=9;w=7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, e := range []struct { // each time, because the table forgets
				key           string
				limit, window int
			}{
				{"GET|alice", 100, 0}, {"*|carol", 200, 0}, {"GET|unknown", 0, 0}, {"GET|zero", 0, 60}, {"GET|both", 100, 0},
				{"LIST|op", 30, 60}, {"GET|verb", 7, 3600}, {"LIST|verb", 30, 60}, {"*|verb", 9, 0}, {"*|all", 9, 3600},
				{"LIST|two", 30, 1}, {"*|two", 9, 60}, {"*|odd", 9, 7}, {"GET|day", 1000, 82800}, {"*|day", 2000, 90000},
				{"*|month", 1e9, 2419200}, {"|none", 5, 0}, {"-|none", 5, 0},
			} {
				r.teachWindow(t, e.key, end, e.limit, e.window)
			}
			for _, user := range []string{"bob", "both"} {
				r.teach(t, "block", user, end, 10)
			}
			r.teach(t, "throttle", "GET|late", time.Now().Add(-time.Second), 100)
			r.teach(t, "block", "late", time.Now().Add(-time.Second), 10)
			got := r.send(t, row.request)[0]
			asked, seen := len(r.takeAsked(t)), len(r.takeSeen())
			if row.limit == "" {
				if got.Status != 200 || asked != 1 || seen != 1 {
					t.Errorf("status %d, agent asked %d times, origin %d; want 200, 1 and 1", got.Status, asked, seen)
				}
				return
			}
			if got.Status != 429 || asked != 0 || seen != 0 {
				t.Errorf("status %d, agent asked %d times, origin %d; want 429 and neither", got.Status, asked, seen)
			}
			switch row.policy {
			case blocked:
				wantRefused(t, got, row.limit, row.limit, row.policy, 1, 1)
			case denied:
				wantRefused(t, got, denied, row.limit, "", 60, 60)
			default:
				wantRefused(t, got, "request-rate", row.limit, row.policy, 2000, 3000) // the fifty minutes that were taught
			}
		})
	}
	// An entry of throttle that the agent does not repeat is forgotten after 5 s, however long its window is.
	_, left, found := strings.Cut(r.cli(t, "show table sluice/throttle key GET|verb"), "exp=")
	var ms int
	if _, err := fmt.Sscan(left, &ms); err != nil || !found || ms > 5000 {
		t.Errorf("show table says %q, want an entry with at most 5 s left", left)
	}
}

// Retry-After is drawn at random where no time is known, and moved at random where one is, as the environment says. RateLimit
// has the same time.
func TestJitter(t *testing.T) {
	inProgress, rate := verdict{"concurrent-requests", "*", 10, 77, 0}, verdict{"request-rate", "GET", 1, 10, 0}
	for _, row := range []struct {
		name    string
		setup   setup
		verdict verdict // not asked for where a table refuses
		native  bool
		want    []string
	}{
		{"as shipped", plain, inProgress, false, []string{"1", "2", "3"}},
		{"as shipped, by a table", plain, inProgress, true, []string{"1", "2", "3"}},
		{"as shipped, a rate", plain, rate, false, []string{"10"}},
		{"none, by a table", usual, inProgress, true, []string{"1"}},
		{"five", chosen, inProgress, false, []string{"1", "2", "3", "4", "5"}},
		{"four more, a rate", chosen, rate, false, []string{"10", "11", "12", "13", "14"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := shared(t, row.setup)
			if row.native {
				r.teach(t, "block", "bob", time.Now().Add(time.Hour), 10)
			}
			r.refuseWith(func(question) *verdict { return &row.verdict })
			var raw []string
			for range 200 { // one of five is missing once in 10^18 runs
				raw = append(raw, httpGET("/", "X-User: bob"))
			}
			got := map[string]bool{}
			for _, a := range r.send(t, raw...) {
				retry := a.Header.Get("Retry-After")
				got[retry] = true
				if !strings.HasSuffix(a.Header.Get("RateLimit"), ";r=0;t="+retry) {
					t.Fatalf("RateLimit = %s, want the same time, %s", a.Header.Get("RateLimit"), retry)
				}
			}
			want := map[string]bool{}
			for _, w := range row.want {
				want[w] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("values of Retry-After (-want +got):\n%s", diff)
			}
		})
	}
}

// problem is the body of a refusal in the form of RFC 9457.
type problem struct {
	Type             string   `json:"type"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	Detail           string   `json:"detail"`
	ViolatedPolicies []string `json:"violated-policies"`
	Limit            string   `json:"limit"`
	Retry            int      `json:"retry"`
}

func theProblem(status int, reason, limit string, retry int) problem {
	return problem{
		Type: "https://iana.org/assignments/http-problem-types#quota-exceeded", Title: "Request cannot be satisfied as assigned quota has been exceeded",
		Status: status, Detail: fmt.Sprintf("Refused (%s): the limit %s is used up. Retry after %d s.", reason, limit, retry),
		ViolatedPolicies: []string{limit}, Limit: limit, Retry: retry,
	}
}

// The environment chooses status and body, and a rule of the frontend's for a request, as text or as a number; what it
// cannot choose is the default.
func TestRefuseBody(t *testing.T) {
	for _, row := range []struct {
		setup      setup
		header     string
		wantStatus int
		want       string
	}{
		{plain, "X: 1", 429, "plain"},
		{usual, "X-Body: problem", 429, "problem"}, {usual, "X-Body: s3", 429, "s3"}, {usual, "X-Body: none", 429, "none"},
		{usual, "X-Status: 503", 503, "s3"},
		{chosen, "X: 1", 503, "none"},
		{chosen, "X-Status: 429", 429, "none"}, {chosen, "X-Status: 429i", 429, "none"}, {chosen, "X-Status: 503", 503, "none"},
		{chosen, "X-Status: 200", 429, "none"}, {chosen, "X-Status: ", 429, "none"},
		{chosen, "X-Body: problem", 503, "problem"}, {chosen, "X-Body: plain", 503, "plain"}, {chosen, "X-Body: s3", 503, "s3"},
		{chosen, "X-Body: auto", 503, "s3"}, {chosen, "X-Body: html", 503, "plain"},
		{chosen, "X-Status: 429\r\nX-Body: auto", 429, "plain"}, {chosen, "X-Status: 429\r\nX-Body: problem", 429, "problem"},
	} {
		r := shared(t, row.setup)
		r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET/minute", 100, 7, 60} })
		// On one connection: a body that must not be there would be seen.
		for i, got := range r.send(t, httpRequest("HEAD", "/", row.header), httpGET("/", row.header), httpRequest("PUT", "/", row.header, "Content-Length: 2")+"xx") {
			retry, err := strconv.Atoi(got.Header.Get("Retry-After"))
			if err != nil || retry < 7 || retry > 11 || got.Header.Get("RateLimit-Policy") != `"GET/minute";q=100;w=60` {
				t.Errorf("%q: answer %d has the fields %v", row.header, i, fields(got))
			}
			text, err := json.Marshal(theProblem(row.wantStatus, "request-rate", "GET/minute", retry))
			if err != nil {
				t.Fatal(err)
			}
			want := map[string][2]string{
				"plain": {"text/plain", fmt.Sprintf("Refused (request-rate): the limit GET/minute is used up. Retry after %d s.\n", retry)},
				"s3":    {"application/xml", slowDown}, "problem": {"application/problem+json", strings.ReplaceAll(string(text), "GET/", `GET\/`)}, "none": {"", ""},
			}[row.want]
			if i == 0 {
				want[1] = ""
			}
			if got.Status != row.wantStatus || got.Header.Get("Content-Type") != want[0] || got.Body != want[1] {
				t.Errorf("%q: answer %d = %d %s %q, want %d %q", row.header, i, got.Status, got.Header.Get("Content-Type"), got.Body, row.wantStatus, want)
			}
		}
	}
}

// Whatever a limit is called, and the user, the document is valid and says so, and
// nothing of the request is in it.
func TestBodiesAreValid(t *testing.T) {
	r := shared(t, usual)
	for _, name := range []string{`a"b\c`, "tab\tbell\x07", "</Error>&amp;", "%[src]", `é ✓`, `",limit":"x`, "\x1b[2J", "}"} {
		for _, reason := range []string{"request-rate", "concurrent-requests"} {
			r.refuseWith(func(question) *verdict { return &verdict{reason, name, 100, 1, 0} })
			limit := name
			if reason == "concurrent-requests" {
				limit = reason
			}
			for _, body := range []string{"problem", "s3"} {
				got := r.send(t, httpGET("/<script>", `X-User: <script>&"'\]}>%[src]`, "Accept: text/html", "X-Body: "+body))[0]
				if strings.Contains(got.Body, "script") {
					t.Errorf("body %q has something of the request", got.Body)
				}
				var xmlDoc struct {
					XMLName xml.Name `xml:"Error"`
					Code    string
				}
				var doc problem
				if body == "s3" {
					if err := xml.Unmarshal([]byte(got.Body), &xmlDoc); err != nil || xmlDoc.Code != "SlowDown" {
						t.Errorf("body %q: %+v, %v, want SlowDown", got.Body, xmlDoc, err)
					}
				} else if err := json.Unmarshal([]byte(got.Body), &doc); err != nil || !cmp.Equal(theProblem(429, reason, limit, 1), doc) {
					t.Errorf("body %q: %v, problem (-want +got):\n%s", got.Body, err, cmp.Diff(theProblem(429, reason, limit, 1), doc))
				}
			}
		}
	}
}

// Keys are cut at no length that they can have: 100 bytes of user, 32 of class.
func TestNativeRefusalOfLongNames(t *testing.T) {
	long := strings.Repeat("n", 99)
	r := shared(t, usual)
	for end, want := range map[string]int{"a": 429, "b": 429, "c": 200} {
		r.teach(t, "block", long+"a", time.Now().Add(time.Hour), 1)
		r.teach(t, "throttle", longestClass+"|"+long+"b", time.Now().Add(time.Hour), 1)
		if got := r.send(t, httpGET("/long", "X-User: "+long+end))[0]; got.Status != want {
			t.Errorf("status for the name that ends in %s = %d, want %d", end, got.Status, want)
		}
	}
	for table, want := range map[string]string{"block": long + "a", "throttle": longestClass + "|" + long + "b", "active": long + "c"} {
		if out := r.cli(t, "show table sluice/"+table); !strings.Contains(out, "key="+want+" ") {
			t.Errorf("show table sluice/%s = %q, want the key %s", table, out, want)
		}
	}
	if h := r.takeHeard(t); len(h) != 1 || h[0].User != long+"c" || h[0].Op != longestClass {
		t.Errorf("the agent heard %+v, want user %s and op %s", h, long+"c", longestClass)
	}
}

// byHeader is a chain without s3.
var byHeader = setup{Config: Config{Identify: "header,basic,ip"}, edit: withDoors}

func TestOriginSeesNoSluiceHeaders(t *testing.T) {
	r := shared(t, byHeader)
	r.send(t, httpGET("/", "Sluice-Reason: fake", "sluice-user: eve", "X-Sluice: stays"))
	seen := r.takeSeen()
	if len(seen) != 1 {
		t.Fatalf("%d requests reached the origin, want 1", len(seen))
	}
	h := seen[0].Header
	if h.Get("Sluice-Reason") != "" || h.Get("Sluice-User") != "" || h.Get("X-Sluice") != "stays" || h.Get("X-Forwarded-For") != client {
		t.Errorf("origin got %v, want X-Sluice and X-Forwarded-For but no Sluice-*", h)
	}
}

func refuseBad(q question) *verdict {
	if q.User == "bad" {
		return &verdict{"request-rate", "GET", 100, 1, 0}
	}
	return nil
}

func TestKeepAliveAndPipelining(t *testing.T) {
	r := shared(t, byHeader)
	r.refuseWith(refuseBad)
	// All on one connection, so that nothing of a request may stay for the next.
	answers := r.send(t,
		httpGET("/1", "X-User: good"), httpGET("/2", "X-User: bad"), httpGET("/3"),
		httpGET("/4", basic("good:x")), httpGET("/5", "X-User: bad"),
	)
	var status []int
	for _, a := range answers {
		status = append(status, a.Status)
	}
	if diff := cmp.Diff([]int{200, 429, 200, 200, 429}, status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	want := []question{{"good", "GET"}, {"bad", "GET"}, {client, "GET"}, {"good", "GET"}, {"bad", "GET"}}
	if diff := cmp.Diff(want, r.takeAsked(t)); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestHTTP2(t *testing.T) {
	r := shared(t, usual)
	r.refuseWith(refuseBad)
	for user, want := range map[string]int{"good": 200, "bad": 429} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+r.addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", user)
		resp, err := browser(t, true).Do(req)
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
	r := shared(t, byHeader) // with one thread: before 3.1 the connections of one may keep another one from having any
	var waiting sync.WaitGroup
	waiting.Add(requests)
	r.refuseWith(func(question) *verdict {
		waiting.Done()
		waiting.Wait()
		return &verdict{"request-rate", "GET", 1, 1, 0}
	})
	if got, want := statuses(r.starts("alice", requests), requests), map[int]int{429: requests}; !cmp.Equal(got, want) {
		t.Errorf("answers by status = %v, want %v", got, want)
	}
}

func TestFailsOpen(t *testing.T) {
	r := shared(t, hasty)
	wants := func(user string, want int) {
		t.Helper()
		if got := r.get(t, "X-User: "+user); got.Status != want {
			t.Errorf("status of %s = %d, want %d", user, got.Status, want)
		}
	}
	r.teach(t, "block", "bob", time.Now().Add(time.Hour), 1)
	r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 1, 0} })
	r.die()
	for range 5 {
		wants("alice", 200)
	}
	wants("bob", 429)
	r.down(t)
	wants("alice", 200)
	// The default tier may have no GETs, in the generation of the row, and then not any more.
	for _, row := range []struct{ generation, want int }{{7, 429}, {8, 200}} {
		r.teachRow(t, row.generation, 0, 0)
		if out := r.cli(t, "set table sluice/credit key GET data.gpt0 7"); out != "" {
			t.Fatal(out)
		}
		wants("alice", row.want)
		if got := r.send(t, httpRequest("PUT", "/", "X-User: alice", "Content-Length: 0"))[0]; got.Status != 200 {
			t.Errorf("status of a PUT in generation %d = %d, want 200", row.generation, got.Status)
		}
	}
	r.listen(t, filepath.Join(r.dir, "spoa.sock"))
	testkit.Eventually(t, "the agent is asked again when it returns", func() error {
		if got := r.get(t, "X-User: alice"); got.Status != 429 {
			return fmt.Errorf("status = %d, want 429", got.Status)
		}
		return nil
	})
	// An agent that accepts connections and says nothing.
	r.die()
	r.hang(t)
	wants("alice", 200)
	r.down(t)
	wants("alice", 200)
}

// agentIs compares the state of the agent's server.
func (r *rig) agentIs(t testing.TB, want string) error {
	t.Helper()
	if got := r.stat(t, "sluice_agent", "agent", "status"); !strings.HasPrefix(got, want) {
		return fmt.Errorf("the agent is %q, want %s", got, want)
	}
	return nil
}

// stat is a column of "show stat" for a proxy's server; "" when there is none.
func (r *rig) stat(t testing.TB, proxy, server, column string) string {
	t.Helper()
	lines := strings.Split(r.cli(t, "show stat"), "\n")
	n := slices.Index(strings.Split(lines[0], ","), column)
	for _, line := range lines {
		if f := strings.Split(line, ","); n >= 0 && len(f) > n && f[0] == proxy && f[1] == server {
			return f[n]
		}
	}
	return ""
}

// The agent finds the tables behind the socket that SLUICE_PEER names, on a
// unix socket as on TCP.
func TestPeer(t *testing.T) {
	tcp := testkit.FreeAddr(t)
	for network, r := range map[string]*rig{"tcp": newRig(t, setup{Config: Config{Env: []string{"SLUICE_PEER=" + tcp}}}), "unix": shared(t, plain)} {
		addr := tcp
		if network == "unix" {
			addr = filepath.Join(r.dir, "peer.sock")
		}
		conn := dial(t, network, addr)
		defer conn.Close()
		fmt.Fprintf(conn, "HAProxyS 2.1\n%s\n%s %d 1\n", LocalPeer, AgentPeer, os.Getpid())
		reply := make([]byte, 4)
		if _, err := conn.Read(reply); err != nil || string(reply) != "200\n" {
			t.Errorf("%s: handshake answered %q, %v, want 200", network, reply, err)
		}
		for _, table := range []string{"throttle", "block", "active"} {
			if out := r.cli(t, "show table sluice/"+table); !strings.Contains(out, "# table: sluice/"+table+", type: ") {
				t.Errorf("%s: show table sluice/%s = %q", network, table, out)
			}
		}
	}
}
