package haproxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pgregory.net/rapid"

	settling "github.com/sluice-qos/sluice/internal/agent/costfeed"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// costAgent is the part of an agent that hears what requests did cost.
type costAgent struct {
	reg *prometheus.Registry

	path string // of its socket, or its address
	stop func() // ends the listener

	mu      sync.Mutex
	settled []settling.Correction
	unheard []settling.Question
}

// units are those of most tests, in the order of their names.
var units = []limits.CostUnit{
	{Name: "exports", Estimate: limits.CostSource{Header: "x-rows"}, Actual: limits.CostSource{Header: "x-cost"}},
	{Name: "tokens", Classes: []string{"POST", "SEARCH"}, Estimate: limits.CostSource{JSON: limits.CostPaths{{Names: []string{"max_tokens"}}}}, Actual: limits.CostSource{JSON: limits.CostPaths{{Names: []string{"usage", "total_tokens"}}}}},
}

// costly has requests cost something. An operator's rules refuse requests with a header X-Deny behind the verdict, give up the
// origin soon for requests with X-Late, and have no Lua read the answers to requests with X-Small.
var costly = setup{
	Config: Config{
		Identify: "header:X-User", Costs: units, Classes: []limits.Class{{Name: "SEARCH", Any: []limits.Match{{Methods: []string{"PUT"}}}}},
		Env: []string{"SLUICE_RATELIMIT=all", "SLUICE_RETRY_JITTER=1"},
	},
	edit: func(cfg string) string {
		const behindTheVerdict = "    http-request set-priority-class var(txn.sluice.priority) if { var(txn.sluice.priority) -m found }\n"
		cfg = strings.Replace(cfg, behindTheVerdict, "    http-request deny deny_status 403 if { req.hdr(x-deny) -m found }\n"+
			"    http-request set-timeout server 300ms if { req.hdr(x-late) -m found }\n"+
			"    http-request set-var(txn.test_small) bool(true) if { req.hdr(x-small) -m found }\n"+behindTheVerdict, 1)
		cfg = regexp.MustCompile(`(?m)^ *http-response lua\.sluice_read_body .*$`).ReplaceAllString(cfg, "$0 !{ var(txn.test_small) -m found }")
		return strings.Replace(cfg, "wait-for-body time 30s", "wait-for-body time 3s", 1)
	},
}

// listen hears corrections until the rig ends, or stop is called.
func (c *costAgent) listen(t testing.TB) {
	t.Helper()
	network, address := "unix:", c.path
	if !strings.HasPrefix(address, "/") {
		network = ""
	}
	l, err := daemon.Socket("costs", network+address)
	if err != nil {
		t.Fatal(err)
	}
	c.reg = prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(context.Background())
	s := settling.New(settling.Options{Registerer: c.reg, Apply: func(batch []settling.Correction) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settled = append(c.settled, batch...)
	}, Unheard: func(question settling.Question) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unheard = append(c.unheard, question)
	}})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			panic(err)
		}
	})
	t.Cleanup(c.stop)
}

// resetCosts forgets what was told before, all of which comes before the correction of one more request.
func (r *rig) resetCosts(t *testing.T) {
	t.Helper()
	r.serving(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	r.charge("1")
	r.get(t, "X-User: the-last")
	testkit.Eventually(t, "the last correction", func() error {
		r.costs.mu.Lock()
		defer r.costs.mu.Unlock()
		if n := len(r.costs.settled); n == 0 || r.costs.settled[n-1].User != "the-last" {
			return fmt.Errorf("there are %d", n)
		}
		r.costs.settled, r.costs.unheard = nil, nil
		return nil
	})
}

// charge has the agent charge every request these amounts, "" for nothing.
func (r *rig) charge(amounts ...string) {
	r.answerTold(func(told) vars {
		v := vars{}
		for i, n := range amounts {
			if n != "" {
				v[fmt.Sprintf("charged_%d", i)] = n + "@1764003600"
			}
		}
		return v
	})
}

// wantSettled waits until the corrections of each user and unit add up to these, as "user unit second": change.
func (r *rig) wantSettled(t testing.TB, want map[string]int64) {
	t.Helper()
	c := r.costs
	testkit.Eventually(t, "the corrections", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		got := map[string]int64{}
		for _, s := range c.settled {
			got[fmt.Sprintf("%s %s %d", s.User, s.Unit, s.Second)] += s.Change
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("settled %v, want %v", got, want)
		}
		return nil
	})
}

// counted is a counter or a gauge of the listener.
func (c *costAgent) counted(t testing.TB, name string) float64 {
	t.Helper()
	families, err := c.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// post is a POST of a body.
func post(body, contentType string, header ...string) string {
	header = append(header, "Content-Type: "+contentType, fmt.Sprintf("Content-Length: %d", len(body)))
	return httpRequest("POST", "/", header...) + body
}

// The agent is told which units there are, and what a request itself says that it will cost.
func TestEstimates(t *testing.T) {
	c := shared(t, costly)
	const kind = "application/json"
	for _, row := range []struct{ name, request, exports, tokens string }{
		{"nothing", httpGET("/"), "", ""},
		{"a header", httpGET("/", "X-Rows: 250"), "250", ""},
		{"a header with blanks", httpGET("/", "x-rows:  \t250 "), "250", ""},
		{"zero", httpGET("/", "X-Rows: 0"), "0", ""},
		{"the most", httpGET("/", "X-Rows: 1000000000000"), "1000000000000", ""},
		{"what is no cost, which the agent finds out", httpGET("/", "X-Rows: -1"), "-1", ""},
		{"the last field of the name", httpGET("/", "X-Rows: 1", "X-Rows: 2, 3"), "2, 3", ""},
		{"a long word", httpGET("/", "X-Rows: "+strings.Repeat("9", 30_000)), "99999999999999", ""},
		{"an empty header", httpGET("/", "X-Rows:"), "", ""},
		{"a body", post(`{"model":"a","max_tokens":300,"messages":[]}`, kind), "", "300"},
		{"a body and a header", post(`{"max_tokens":300}`, kind, "X-Rows: 7"), "7", "300"},
		{"a body with a charset", post(`{"max_tokens":300}`, "application/JSON; charset=utf-8"), "", "300"},
		{"a problem", post(`{"max_tokens":300}`, "application/problem+json"), "", "300"},
		{"the most of a body", post(`{"max_tokens":1000000000000}`, kind), "", "1000000000000"},
		{"more than the most of a body", post(`{"max_tokens":1000000000001}`, kind), "", ""},
		{"less than nothing in a body", post(`{"max_tokens":-5}`, kind), "", ""},
		{"digits as a text in a body", post(`{"max_tokens":"300"}`, kind), "", "300"},
		{"a text in a body", post(`{"max_tokens":"many"}`, kind), "", ""},
		{"elsewhere in a body", post(`{"a":{"max_tokens":300}}`, kind), "", ""},
		{"another type", post(`{"max_tokens":300}`, "text/plain"), "", ""},
		{"no JSON", post(`max_tokens=300`, kind), "", ""},
		{"an empty body", post(``, kind), "", ""},
		{"larger than a buffer", post(`{"max_tokens":300,"a":"`+strings.Repeat("a", 300<<10)+`"}`, kind), "", ""},
		{"a class that costs nothing", strings.Replace(post(`{"max_tokens":300}`, kind), "POST", "PATCH", 1), "", ""},
		{"a path of which origins may make another class", strings.Replace(post(`{"max_tokens":300}`, kind), "POST /", "PATCH /a%2Fb", 1), "", "300"},
		{"parameters of a segment", strings.Replace(post(`{"max_tokens":300}`, kind), "POST /", "PATCH /a;b/c", 1), "", "300"},
		{"the folder above", strings.Replace(post(`{"max_tokens":300}`, kind), "POST /", "PATCH /a/.%2E/c", 1), "", "300"},
		{"an encoded letter and an empty segment", strings.Replace(post(`{"max_tokens":300}`, kind), "POST /", "PATCH /%61//c", 1), "", ""},
		{"an operation class", strings.Replace(post(`{"max_tokens":300}`, kind), "POST", "PUT", 1), "", "300"},
		{"in chunks", httpRequest("POST", "/", "Content-Type: "+kind, "Transfer-Encoding: chunked") + "8\r\n{\"max_to\r\n0c\r\nkens\": 300 }\r\n0\r\n\r\n", "", "300"},
	} {
		if got := c.send(t, row.request); got[0].Status != 200 {
			t.Errorf("%s: status %d", row.name, got[0].Status)
		}
		told := c.takeTold(t)
		if len(told) != 1 || told[0].Units != "exports tokens" || told[0].Costs != [2]string{row.exports, row.tokens} {
			t.Errorf("%s: the agent was told %+v, want units exports and tokens, and %q %q", row.name, told, row.exports, row.tokens)
		}
	}
}

// A body that does not come is not waited for without end. Meanwhile the request is in progress.
func TestEstimateOfASlowBody(t *testing.T) {
	t.Parallel()
	c := shared(t, costly)
	whole := post(`{"max_tokens":300}`, "application/json", "X-User: slow")
	slow := c.begin(t, whole[:len(whole)-3])
	inProgress := func(want int) {
		t.Helper()
		testkit.Eventually(t, "requests in progress", func() error {
			if got := c.active(t)["slow"].Cur; got != want {
				return fmt.Errorf("%d, want %d", got, want)
			}
			return nil
		})
	}
	inProgress(1)
	if got := slow.answer(); got.Status != http.StatusRequestTimeout {
		t.Errorf("status = %d, want 408", got.Status)
	}
	if told := c.takeTold(t); len(told) != 0 {
		t.Errorf("the agent was asked %+v, want nothing", told)
	}
	inProgress(0)
}

// Who is refused, or is not charged, is answered before their body comes, and asked about once.
func TestBodiesThatNobodyReads(t *testing.T) {
	t.Parallel()
	c := newRig(t, costly)
	c.before = func(q told) vars {
		if q.User == "refused" {
			return vars{"reason": "concurrent-requests", "limit": uint32(2)}
		}
		return nil
	}
	whole := post(`{"max_tokens":300}`, "application/json", "X-User: refused", "Expect: 100-continue")
	if got := c.begin(t, whole[:len(whole)-3]).answer(); got.Status != http.StatusTooManyRequests {
		t.Errorf("status = %d, want 429", got.Status)
	}
	if got := c.send(t, post(`{"max_tokens":300}`, "application/json", "X-User: free")); got[0].Status != 200 {
		t.Errorf("status = %d, want 200", got[0].Status)
	}
	if told := c.takeTold(t); len(told) != 2 || told[0].User != "refused" || told[1].User != "free" || told[1].Costs != [2]string{} {
		t.Errorf("the agent was asked %+v, want once about each, without a cost", told)
	}
}

// What answers say in a header, by their status, or not at all.
func TestSettledByHeaders(t *testing.T) {
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		if cost, told := q.Header["Tell"]; told {
			w.Header()["X-Cost"] = cost
		}
		if status := q.Header.Get("Status"); status != "" {
			n := 0
			fmt.Sscan(status, &n)
			w.WriteHeader(n)
		}
	}))
	c.charge("100")
	want := map[string]int64{}
	for _, row := range []struct {
		user   string
		change int64
		header []string
	}{
		{"less", -60, []string{"Tell: 40"}},
		{"more", 900, []string{"Tell: 1000"}},
		{"nothing", -100, []string{"Tell: 0"}},
		{"just as much", 0, []string{"Tell: 100"}},
		{"silent", 0, nil},
		{"a word", 0, []string{"Tell: much"}},
		{"too much", 0, []string{"Tell: 1000000000001"}},
		{"below nothing", 0, []string{"Tell: -5"}},
		{"failed", -100, []string{"Status: 400"}},
		{"failed badly", -100, []string{"Status: 503"}},
		{"failed and told", -70, []string{"Status: 500", "Tell: 30"}},
		{"no body", -99, []string{"Status: 204", "Tell: 1"}},
		{"not modified", -99, []string{"Status: 304", "Tell: 1"}},
		{"moved", 0, []string{"Status: 302"}},
		{"Ann \"Lee\" \\ ö", -60, []string{"Tell: 40"}},
	} {
		c.get(t, append(row.header, "X-User: "+row.user)...)
		if row.change != 0 {
			want[row.user+" exports 1764003600"] = row.change
		}
	}
	head := c.send(t, httpRequest("HEAD", "/", "X-User: head", "Tell: 10"))
	if head[0].Status != 200 {
		t.Errorf("HEAD: %d", head[0].Status)
	}
	want["head exports 1764003600"] = -90
	c.wantSettled(t, want)

	// Who was not charged is not settled, whatever the answer says.
	c.answerTold(func(told) vars { return nil })
	c.get(t, "X-User: free", "Tell: 40")
	c.charge("100")
	c.get(t, "X-User: last", "Tell: 40")
	want["last exports 1764003600"] = -60
	c.wantSettled(t, want)
}

// A request whose verdict is not heard in time is asked about once more, and passes if nothing is heard then either. The agent
// hears which questions that were, and what the answer says is charged as if nothing had been: what the late verdicts say
// counts for nothing.
func TestSettledWithoutAVerdict(t *testing.T) {
	t.Parallel()
	c := newRig(t, setup{Config: Config{Identify: "header:X-User", Costs: units, Env: []string{"SLUICE_VERDICT_TIMEOUT=100ms", "SLUICE_CREDIT=off", "SLUICE_LATE_TIMEOUT=100ms"}}, serve: func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if cost := q.Header.Get("Tell"); cost != "" {
			w.Header().Set("X-Cost", cost)
		}
		if q.Header.Get("Status") != "" {
			w.WriteHeader(500)
		}
		_, _ = io.WriteString(w, completion)
	}})
	late := make(chan struct{})
	c.answerTold(func(told) vars {
		<-late
		return vars{"charged_0": "100@1764003600", "charged_1": "1000@1764003600"}
	})
	// The class of what the second unit costs is POST.
	earliest := time.Now().Add(-testkit.Patience).Unix() // The clock of a HAProxy that does not run stands still.
	for _, raw := range []string{
		httpGET("/", "X-User: ann", "Tell: 40"),
		post("{}", "application/json", "X-User: ben", "Tell: 30"),
		httpGET("/", "X-User: silent"),
		httpGET("/", "X-User: failed", "Status: 500"),
	} {
		c.send(t, raw)
	}
	close(late)
	testkit.Eventually(t, "the corrections", func() error {
		c.costs.mu.Lock()
		defer c.costs.mu.Unlock()
		got := map[string]int64{}
		for _, s := range c.costs.settled {
			got[s.User+" "+s.Unit] += s.Change
			if s.Second < earliest {
				t.Errorf("corrected in second %d, want %d or later", s.Second, earliest)
			}
		}
		if want := map[string]int64{"ann exports": 40, "ben exports": 30, "ben tokens": 29}; !maps.Equal(got, want) {
			return fmt.Errorf("settled %v, want %v", got, want)
		}
		return nil
	})
	var unheard []settling.Question
	testkit.Eventually(t, "two questions about each request", func() error {
		c.costs.mu.Lock()
		defer c.costs.mu.Unlock()
		unheard = slices.Clone(c.costs.unheard)
		if len(unheard) != 8 {
			return fmt.Errorf("heard nothing of %v", unheard)
		}
		return nil
	})
	for i, user := range []string{"ann", "ben", "silent", "failed"} {
		first, second := unheard[2*i], unheard[2*i+1]
		if first.User != user || second.User != user || second.ID != first.ID+1<<32 {
			t.Errorf("heard nothing of %v and %v, want two questions about %s", first, second, user)
		}
	}
	// A machine that is busy gives up some before the agent has them.
	for _, q := range c.takeTold(t) {
		if asked := (settling.Question{ID: q.ID, User: q.User}); !slices.Contains(unheard, asked) {
			t.Errorf("heard nothing of %v, want of %v as well", unheard, asked)
		}
	}
	// What is heard is not. A question that a busy machine gives up shows nothing: the next user's is another one.
	c.charge("100")
	users := 0
	testkit.Eventually(t, "a verdict that is heard", func() error {
		users++
		user := fmt.Sprint("heard-", users)
		c.get(t, "X-User: "+user, "Tell: 40")
		var last settling.Correction
		testkit.Eventually(t, "a correction", func() error {
			c.costs.mu.Lock()
			defer c.costs.mu.Unlock()
			if last = c.costs.settled[len(c.costs.settled)-1]; last.User != user {
				return fmt.Errorf("settled %v last, want one of %s", last, user)
			}
			return nil
		})
		c.costs.mu.Lock()
		defer c.costs.mu.Unlock()
		if gaveUp := slices.ContainsFunc(c.costs.unheard, func(q settling.Question) bool { return q.User == user }); gaveUp || last.Change != -60 {
			return fmt.Errorf("settled %v, the question was given up: %t; want -60 and that it was not", last, gaveUp)
		}
		return nil
	})
}

// The second answer holds, whatever it is: a request that was asked about once more does not pass as one that nobody heard of.
func TestVerdictsAboutLateCosts(t *testing.T) {
	t.Parallel()
	c := newRig(t, setup{Config: Config{Identify: "header:X-User", Costs: units, Env: []string{"SLUICE_VERDICT_TIMEOUT=100ms", "SLUICE_LATE_TIMEOUT=1m"}}, serve: func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "40")
	}})
	// The first question about each user waits until the second one has its answer. HAProxy draws ids below this one; the second
	// question's is above. A machine that is busy gives up the first one before the agent has it.
	const again = 1 << 32
	asked, done := map[string][]int64{}, make(chan struct{})
	var mu sync.Mutex
	c.answerTold(func(q told) vars {
		mu.Lock()
		asked[q.User] = append(asked[q.User], q.ID%again)
		mu.Unlock()
		if q.Message != "start-message" || q.ID < 0 || q.Units != "exports tokens" || q.Costs[0] != "7" {
			t.Errorf("asked %+v, want the same under another id", q)
		}
		switch {
		case q.ID < again:
			<-done
			return vars{"charged_0": "1@1"}
		case q.User == "ann":
			return vars{"charged_0": "100@1764003600"}
		}
		return overCost(q)
	})
	for user, status := range map[string]int{"ann": 200, "ben": 429} {
		if got := c.get(t, "X-User: "+user, "X-Rows: 7"); got.Status != status {
			t.Errorf("%s: status %d, want %d", user, got.Status, status)
		}
	}
	close(done)
	c.wantSettled(t, map[string]int64{"ann exports 1764003600": -60})
	testkit.Eventually(t, "the questions", func() error {
		c.costs.mu.Lock()
		defer c.costs.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		if len(c.costs.unheard) != 2 {
			return fmt.Errorf("heard nothing of %v, want of a question about each of %v", c.costs.unheard, asked)
		}
		for _, q := range c.costs.unheard {
			if ids := slices.Compact(asked[q.User]); !slices.Equal(ids, []int64{q.ID}) {
				t.Errorf("asked about %s under %v, and heard nothing of %d; want one id, and another one above it", q.User, ids, q.ID)
			}
		}
		return nil
	})
}

// An origin that cannot be reached has cost nothing; a file may say that failures cost their estimate. The agent's address may be
// one of loopback.
func TestSettledWithoutAnOrigin(t *testing.T) {
	t.Parallel()
	costs := []limits.CostUnit{{Name: "calls"}, {Name: "exports", Actual: limits.CostSource{Header: "x-cost"}}, {Name: "tries", Failed4xx: true, Failed5xx: true}}
	c := newRig(t, setup{Config: Config{Env: []string{"SLUICE_ORIGIN=127.0.0.1:1", "SLUICE_COSTS=" + testkit.FreeAddr(t)}, Identify: "header:X-User", Costs: costs}})
	c.charge("50", "100", "200")
	if got := c.get(t, "X-User: ann"); got.Status != 503 {
		t.Errorf("status %d, want 503", got.Status)
	}
	c.wantSettled(t, map[string]int64{"ann calls 1764003600": -50, "ann exports 1764003600": -100})
}

// zipped is a body that is compressed.
func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// What answers say in their bodies. The client gets every byte.
func TestSettledByBodies(t *testing.T) {
	filler := strings.Repeat("lorem ipsum ", 200_000)
	const stream = "text/event-stream"
	answers := map[string]struct {
		change       int64
		kind, coding string
		status       int
		pieces       []string
	}{
		"whole":               {-979, "application/json", "", 200, []string{`{"id":"x","usage":{"total_tokens":21}}`}},
		"pieces":              {-979, "application/json; charset=utf-8", "", 200, []string{`{"id":"x","usage":{"total_to`, `kens":2`, `1`, `}}`}},
		"large":               {234, "application/json", "", 200, []string{`{"a":"` + filler + `","usage":{"total_tokens":1234}}`}},
		"dense":               {-993, "application/json", "", 200, []string{`{"a":[` + strings.Repeat(`{"k":"v","n":1},`, 60_000) + `1],"usage":{"total_tokens":7}}`}},
		"stream":              {-979, stream, "", 200, []string{"data: {\"x\":1,\"usage\":null}\n\n", "data: {\"usage\":{\"total_", "tokens\":21}}\n\n", "data: [DONE]\n\n"}},
		"stream that goes on": {-985, stream, "", 200, []string{"data: {\"usage\":{\"total_tokens\":5}}\n\n", "data: {\"usage\":{\"total_tokens\":9}}\n\n", "data: {\"usage\":{\"total_tokens\":15}}\n\n"}},
		"lines":               {-998, "application/x-ndjson", "", 200, []string{"{\"a\":1}\n{\"usage\":{\"total_tokens\":2}}\n"}},
		"silent":              {0, "application/json", "", 200, []string{`{"usage":null}`}},
		"more than the most":  {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":1000000000001}}`}},
		"the most":            {999999999000, "application/json", "", 200, []string{`{"usage":{"total_tokens":1000000000000}}`}},
		"estimated":           {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":1000}}`}},
		"fraction":            {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":21.5}}`}},
		"exponent":            {-979, "application/json", "", 200, []string{`{"usage":{"total_tokens": 2.1e1}}`}},
		"text":                {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":"21"}}`}},
		"true":                {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":true}}`}},
		"negative":            {0, "application/json", "", 200, []string{`{"usage":{"total_tokens":-21}}`}},
		"octal":               {-990, "application/json", "", 200, []string{`{"usage":{"total_tokens":010}}`}},
		"twice":               {-998, "application/json", "", 200, []string{`{"usage":{"total_tokens":1,"total_tokens":2}}`}},
		"documents":           {-998, "application/json", "", 200, []string{"{\"usage\":{\"total_tokens\":1}}\n{\"usage\":{\"total_tokens\":2}}"}},
		"elsewhere":           {0, "application/json", "", 200, []string{`{"x":{"usage":{"total_tokens":5}},"usage":[{}]}`}},
		"in a text":           {-979, "application/json", "", 200, []string{`{"x":"\"usage\":{\"total_tokens\":5}","usage":{"total_tokens" : 21 }}`}},
		"a mark of the order": {-979, "application/json", "", 200, []string{"\xEF\xBB\xBF{\"usage\":{\"total_tokens\":21}}"}},
		"another type":        {0, "text/plain", "", 200, []string{`{"usage":{"total_tokens":21}}`}},
		"not compressed":      {-979, "application/json", "Identity", 200, []string{`{"usage":{"total_tokens":21}}`}},
		"compressed":          {0, "application/json", "gzip", 200, []string{zipped(`{"usage":{"total_tokens":21}}`)}},
		"empty":               {0, "application/json", "", 200, nil},
		"failed":              {-1000, "application/json", "", 500, []string{`{"error":"x"}`}},
		"failed and told":     {-979, "application/json", "", 429, []string{`{"usage":{"total_tokens":21}}`}},
	}
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		a := answers[q.Header.Get("X-User")]
		w.Header().Set("Content-Type", a.kind)
		if a.coding != "" {
			w.Header().Set("Content-Encoding", a.coding)
		}
		w.WriteHeader(a.status)
		for i, piece := range a.pieces {
			if i > 0 {
				time.Sleep(20 * time.Millisecond) // so that HAProxy sees them apart
			}
			_, _ = io.WriteString(w, piece)
			if i+1 < len(a.pieces) { // else the body comes with the headers
				w.(http.Flusher).Flush()
			}
		}
	}))
	c.charge("", "1000")
	want := map[string]int64{}
	for user, a := range answers {
		got := c.send(t, post("{}", "application/json", "X-User: "+user))[0]
		if got.Status != a.status || got.Body != strings.Join(a.pieces, "") {
			t.Errorf("%s: status %d and %d bytes, want %d and all of them", user, got.Status, len(got.Body), a.status)
		}
		if a.change != 0 {
			want[user+" tokens 1764003600"] = a.change
		}
	}
	c.wantSettled(t, want)
	testkit.Eventually(t, "the unreadable answer", func() error {
		if n := c.costs.counted(t, "sluice_settle_unreadable_answers_total"); n != 1 {
			return fmt.Errorf("%v unreadable answers, want 1", n)
		}
		return nil
	})
}

// A small document takes no call of Lua but that which settles it.
func TestSmallDocumentsAreReadByHAProxy(t *testing.T) {
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, completion)
	}))
	c.charge("", "1000")
	c.get(t, "X-User: ann", "X-Small: 1")
	c.wantSettled(t, map[string]int64{"ann tokens 1764003600": -971})
}

// HAProxy reads the same number in small documents as Go's encoding/json, or leaves them to the script. Each has
// a user of its own.
func TestSmallDocumentsAreReadAsByGo(t *testing.T) {
	var texts []string
	for i := range 400 {
		texts = append(texts, rapid.Custom(drawAnswer).Example(i))
	}
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		i, err := strconv.Atoi(strings.TrimPrefix(q.Header.Get("X-User"), "user-"))
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, texts[i])
	}))
	c.charge("", "1000")
	want, found := map[string]int64{}, 0
	for i, text := range texts {
		user := fmt.Sprint("user-", i)
		c.send(t, post("{}", "application/json", "X-User: "+user))
		n, ok := lastNumber(t, text, units[1].Actual.JSON[0].Names)
		if ok {
			found++
		}
		if ok && n != 1000 {
			want[user+" tokens 1764003600"] = n - 1000
		}
	}
	if found < 100 || found > 300 {
		t.Errorf("%d of %d documents say what they cost, want 100 to 300", found, len(texts))
	}
	c.wantSettled(t, want)
}

// What an agent that is away is to be told waits for it, and a connection that it closed is opened anew.
func TestSettledWhenTheAgentIsBack(t *testing.T) {
	t.Parallel()
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "40")
	}))
	c.charge("100")
	c.get(t, "X-User: before")
	want := map[string]int64{"before exports 1764003600": -60}
	c.wantSettled(t, want)
	// What is sent over a connection that the agent has just left is lost. HAProxy closes one that it does not use.
	c.costs.disconnects(t)
	c.costs.stop()
	for i := range 20 {
		user := fmt.Sprintf("user%d", i)
		c.get(t, "X-User: "+user)
		want[user+" exports 1764003600"] = -60
	}
	c.costs.listen(c.lives)
	c.wantSettled(t, want)
	// And when there is nothing more to tell, the connection ends: else the process would not after a reload.
	c.costs.disconnects(t)
}

// A connection that is in use all the time lives on, although the agent never says anything: from 3.0 on HAProxy ends one
// on which nothing was heard for as long as its time-out.
func TestSettledOverAConnectionInUse(t *testing.T) {
	t.Parallel()
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "40")
	}))
	c.charge("100")
	want := map[string]int64{"ann exports 1764003600": 0}
	// Longer than lua/costs.lua's time-out of a connection that is not there yet. No pause is one in which it would be closed.
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		c.get(t, "X-User: ann")
		want["ann exports 1764003600"] -= 60
	}
	c.wantSettled(t, want)
	if n := c.costs.counted(t, "sluice_settle_dropped_corrections_total"); n != 0 {
		t.Errorf("%v corrections dropped, want none", n)
	}
}

// A process that a reload has told to end settles the answers that come after it, while it lives.
func TestSettledAfterAReload(t *testing.T) {
	t.Parallel()
	started, answer := make(chan struct{}), make(chan struct{})
	last := make(chan struct{})
	c := newRig(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "40")
		started <- struct{}{}
		if q.Header.Get("X-User") == "last" {
			<-last
		} else {
			<-answer
		}
	}))
	c.charge("100")
	for _, user := range []string{"ann", "last"} {
		c.begin(t, httpGET("/", "X-User: "+user))
		<-started
	}
	if err := c.proc.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of the listener", func() error {
		conn, err := net.Dial("tcp", c.addr)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s is open", c.addr)
		}
		return nil
	})
	close(answer)
	c.wantSettled(t, map[string]int64{"ann exports 1764003600": -60})
	close(last)
}

// Files without costs have nothing of them.
func TestFilesWithoutCosts(t *testing.T) {
	files, err := files(Config{Fitted: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"haproxy.cfg", "spoe.cfg"} {
		for _, word := range []string{"units=", "cost_0", "charged_0", "sluice_settle", "lua/costs.lua"} {
			if strings.Contains(withoutComments(files[name]), word) {
				t.Errorf("%s has %q", name, word)
			}
		}
	}
}

// Units that no file could name are refused, rather than written.
func TestCostUnitsAreChecked(t *testing.T) {
	good := limits.CostUnit{Name: "tokens"}
	for name, costs := range map[string][]limits.CostUnit{
		"a name":          {{Name: "a b"}},
		"a header":        {{Name: "tokens", Actual: limits.CostSource{Header: "x cost"}}},
		"a key":           {{Name: "tokens", Estimate: limits.CostSource{JSON: limits.CostPaths{{Names: []string{`a"b`}}}}}},
		"a key's dot":     {{Name: "tokens", Actual: limits.CostSource{JSON: limits.CostPaths{{Names: []string{"a.b"}}}}}},
		"a class":         {{Name: "tokens", Classes: []string{"a}"}}},
		"two of a name":   {good, good},
		"another order":   {good, {Name: "exports"}},
		"five of them":    {{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}},
		"a long header":   {{Name: "tokens", Actual: limits.CostSource{Header: strings.Repeat("a", 101)}}},
		"a double hyphen": {{Name: "a--b"}},
	} {
		if _, err := Render(Config{Costs: costs}); err == nil || !strings.Contains(err.Error(), "costs") {
			t.Errorf("%s: %v, want an error of costs", name, err)
		}
	}
	if _, err := Render(Config{Costs: []limits.CostUnit{{Name: "a"}, good}}); err != nil {
		t.Error(err)
	}
}

// disconnects waits until HAProxy has no connection any more by which it settles.
func (c *costAgent) disconnects(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "the end of the connection", func() error {
		if n := c.counted(t, "sluice_settle_connections"); n != 0 {
			return fmt.Errorf("%v connections", n)
		}
		return nil
	})
}
