package haproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// logLine is a line of the access log. Fields that are null are nil.
type logLine struct {
	Time      string `json:"time"`
	Instance  string `json:"instance"`
	Client    string `json:"client"`
	Method    string `json:"method"`
	Path      string `json:"path"`
	Status    int    `json:"status"`
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason"`
	Cause     string `json:"cause"`
	User      string `json:"user"`
	Class     string `json:"class"`
	Limit     *int   `json:"limit"`
	Remaining *int   `json:"remaining"`
	Retry     *int   `json:"retry"`
	Ms        struct {
		Request  int `json:"request"`
		Queue    int `json:"queue"`
		Connect  int `json:"connect"`
		Response int `json:"response"`
		Data     int `json:"data"`
		Total    int `json:"total"`
	} `json:"ms"`
	End string `json:"end"`
}

// logged has an access log, for clients whose address a PROXY header may say.
var logged = setup{Config: Config{
	Env: []string{accessLog, "SLUICE_RETRY_JITTER=1", "SLUICE_INSTANCE=rack-1"}, Identify: "basic,jwt:sub,header:X-User,ip",
	Classes: []limits.Class{{Name: "LIST", Any: []limits.Match{{Query: []string{"list"}}}}}, Exempt: exempted,
}, edit: withDoors}

// nextLine waits until HAProxy has written a line of its access log since the last one. Anything else that it writes fails the test.
func (r *rig) nextLine(t testing.TB) (l logLine) {
	t.Helper()
	var text string
	testkit.Eventually(t, "a line of the access log", func() error {
		if text = r.proc.Output(); !strings.HasSuffix(text, "\n") {
			return fmt.Errorf("there is %q", text)
		}
		return nil
	})
	r.proc.ClearOutput()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		t.Fatalf("line %.3000q: %v", text, err)
	}
	if d.More() {
		t.Errorf("%q is more than an object", text)
	}
	if keys := keysOf(t, text); len(keys) != 16 {
		t.Errorf("line %q has the keys %q, want each of 16 once", text, keys)
	}
	return l
}

// keysOf are the keys of an object as they stand in it, those of "ms" apart: decoding
// alone overlooks a key that comes twice.
func keysOf(t testing.TB, text string) (keys []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	depth, key := 0, false
	for {
		token, err := d.Token()
		if err == io.EOF {
			return keys
		}
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		switch token {
		case json.Delim('{'):
			depth++
			key = true
			continue
		case json.Delim('}'):
			depth--
			key = true
			continue
		}
		if depth == 1 && key {
			keys = append(keys, fmt.Sprint(token))
		}
		key = !key || depth != 1
	}
}

// told is the part of a line that does not depend on when and where it was written.
func (l logLine) told() string {
	number := func(n *int) string {
		if n == nil {
			return "null"
		}
		return fmt.Sprint(*n)
	}
	why := l.Reason
	if l.Cause != "-" { // none, of a request that was not refused
		why += "/" + l.Cause
	}
	return fmt.Sprintf("%s %s %d %s %s %s %s %s %s %s", l.Method, l.Path, l.Status, l.Verdict, why, l.User, l.Class,
		number(l.Limit), number(l.Remaining), number(l.Retry))
}

func TestAccessLog(t *testing.T) {
	r := shared(t, logged)
	answers := map[string]vars{
		"told":        {"class": "GET/minute", "limit": uint32(60), "remaining": uint32(41)},
		"last":        {"class": "concurrent-requests", "limit": uint32(2), "remaining": uint32(0)},
		"staff":       {"verdict": "exempt"},
		"rehearsed":   {"verdict": "dry-run", "class": "GET", "limit": uint32(10), "remaining": uint32(0)},
		"rate":        {"reason": "request-rate", "cause": "own-count", "class": "GET", "limit": uint32(100), "retry": uint32(1)},
		"concurrent":  {"reason": "concurrent-requests", "cause": "pool", "limit": uint32(10)},
		"spendthrift": overCost(told{}),
		"patient":     {"class": "concurrent-requests", "limit": uint32(3), "remaining": uint32(1)},
		"surplus":     {"others": limits.OthersKey, "class": "GET", "limit": uint32(9), "remaining": uint32(4)},
	}
	r.answerWith(func(h heard) vars {
		if !h.Log {
			t.Errorf("the agent heard %+v, want it to be asked what remains", h)
		}
		if h.User == "patient" && h.Message == "start-message" {
			return vars{"wait": uint32(1000), "limit": uint32(3)}
		}
		if h.User == "queued" {
			return vars{"others": limits.OthersKey, "wait": uint32(1000), "limit": uint32(3)}
		}
		return answers[h.User]
	})
	hour := time.Now().Add(time.Hour)
	r.teach(t, "block", "bob", hour, 10)
	r.teach(t, "block", "carol", hour, 0)
	for _, row := range []struct{ name, request, want string }{
		{"nothing to say", httpGET("/a?secret=1", "X-User: alice"), `GET /a 200 allowed - alice GET null null null`},
		{"what remains", httpGET("/", "X-User: told"), `GET / 200 allowed - told GET/minute 60 41 null`},
		{"nothing remains", httpGET("/", "X-User: last"), `GET / 200 allowed - last concurrent-requests 2 0 null`},
		{"an operation", httpGET("/?list", "X-User: alice"), `GET / 200 allowed - alice LIST null null null`},
		{"another method", httpRequest("PROPFIND", "/", "X-User: alice"), `PROPFIND / 200 allowed - alice OTHER null null null`},
		{"no path", httpRequest("OPTIONS", "*", "X-User: alice"), `OPTIONS - 200 allowed - alice OPTIONS null null null`},
		{"exempt by path", httpGET("/status", "X-User: alice"), `GET /status 200 exempt - ~exempt GET null null null`},
		{"exempt by the limit file", httpGET("/", "X-User: staff"), `GET / 200 exempt - staff GET null null null`},
		{"refused in a dry run", httpGET("/", "X-User: rehearsed"), `GET / 200 dry-run - rehearsed GET 10 0 null`},
		{"allowed after it waited", httpGET("/", "X-User: patient"), `GET / 200 allowed - patient concurrent-requests 3 1 null`},
		{"one name of too many", httpGET("/", "X-User: surplus"), `GET / 200 allowed - surplus GET 9 4 null`},
		{"one name of too many, which waited", httpGET("/", "X-User: queued"), `GET / 200 allowed - queued GET 3 null null`},
		{"refused by the agent", httpGET("/", "X-User: rate"), `GET / 429 refused request-rate/own-count rate GET 100 0 1`},
		{"refused with a status of our own choice", httpGET("/", "X-User: rate", "X-Status: 503"), `GET / 503 refused request-rate/own-count rate GET 100 0 1`},
		{"refused by the agent for those in progress", httpGET("/", "X-User: concurrent"), `GET / 429 refused concurrent-requests/pool concurrent concurrent-requests 10 0 1`},
		{"refused for what requests cost", httpGET("/", "X-User: spendthrift"), `GET / 429 refused cost/pool spendthrift tokens/minute 500000000000 0 42`},
		{"refused natively", httpGET("/", "X-User: bob"), `GET / 429 refused concurrent-requests/block-table bob concurrent-requests 10 0 1`},
		{"refused natively by a limit that is not known", httpGET("/", "X-User: carol"), `GET / 429 refused concurrent-requests/block-table carol concurrent-requests null 0 1`},
		{"refused by another rule", httpGET("/own", "X-User: alice"), `GET /own 403 - - - - null null null`},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.send(t, row.request)
			l := r.nextLine(t)
			if l.told() != row.want {
				t.Errorf("line = %s\nwant   %s", l.told(), row.want)
			}
			at, err := time.Parse("2006-01-02T15:04:05.000Z", l.Time)
			if since := time.Since(at); err != nil || since < -time.Second || since > testkit.Patience {
				t.Errorf("time = %s, %v ago (%v), want now", l.Time, since, err)
			}
			if l.Instance != "rack-1" || l.Client != client || l.Ms.Total < 0 || len(l.End) != 2 {
				t.Errorf("instance %q, client %q, end %q and %d ms in all, want rack-1, %s, two letters and a time", l.Instance, l.Client, l.End, l.Ms.Total, client)
			}
		})
	}
	if tables := r.cli(t, "show table sluice/active"); !strings.Contains(tables, "key="+limits.OthersKey+" ") || strings.Contains(tables, "key=surplus") {
		t.Errorf("table active has other keys than the one that too many names share:\n%s", tables)
	}
	until := time.Now().Add(time.Minute)
	r.teachWindow(t, "LIST|dave", until, 30, 60) // now, for the table forgets
	r.send(t, httpGET("/?list", "X-User: dave"))
	l := r.nextLine(t)
	if l.Retry == nil || *l.Retry < int(time.Until(until).Seconds())-1 || *l.Retry > 60 {
		t.Errorf("retry after a native refusal = %v, want the minute that was taught", l.Retry)
	}
	l.Retry = nil
	if want := "GET / 429 refused request-rate/throttle-table dave LIST/minute 30 0 null"; l.told() != want {
		t.Errorf("line of a native refusal = %s, want %s", l.told(), want)
	}
	// The client's address is the one that limits of addresses go by: from the PROXY protocol, or set by a rule of the operator's.
	r.answerTold(nil)
	for _, row := range []struct{ address, request, want string }{
		{"192.0.2.7", httpGET("/"), "192.0.2.7"},
		{"2001:db8::7", httpGET("/"), "2001:db8::7"},
		{"10.0.0.1", httpGET("/", "X-Forwarded-For: 192.0.2.8"), "192.0.2.8"},
		{"192.0.2.9", httpGET("/", "X-Forwarded-For: 192.0.2.8"), "192.0.2.9"},
		{"192.0.2.10", httpGET("/own"), "192.0.2.10"},
		{"192.0.2.11", "GET / no version\r\n\r\n", "192.0.2.11"},
	} {
		r.sendFrom(t, row.address, row.request)
		if l := r.nextLine(t); l.Client != row.want {
			t.Errorf("line of %q from %s has the client %q, want %s", row.request, row.address, l.Client, row.want)
		}
	}
}

// Requests that nobody was asked about.
func TestAccessLogWithoutTheAgent(t *testing.T) {
	r := shared(t, logged)
	r.down(t)
	r.get(t, "X-User: alice")
	r.awaitLine(t, "GET / 200 agent-silent - alice GET null null null")
	// What HAProxy may admit without an agent is one request a second. A user in a table is refused for that.
	r.teachRow(t, 1, 1, 100)
	r.teach(t, "block", "bob", time.Now().Add(time.Hour), 10)
	r.get(t, "X-User: bob")
	r.awaitLine(t, "refused concurrent-requests/block-table bob")
	testkit.Eventually(t, "a second request in a second", func() error {
		if got := r.get(t, "X-User: carol").Status; got != http.StatusTooManyRequests {
			return fmt.Errorf("status %d", got)
		}
		return nil
	})
	r.awaitLine(t, "refused request-rate/agent-silent carol")
}

// awaitLine waits until a line of the access log says so, among what HAProxy writes besides.
func (r *rig) awaitLine(t testing.TB, want string) {
	t.Helper()
	testkit.Eventually(t, "a line with "+want, func() error {
		var told []string
		for line := range strings.Lines(r.proc.Output()) {
			var l logLine
			if json.Unmarshal([]byte(line), &l) != nil {
				continue // what HAProxy says of its servers
			}
			if told = append(told, l.told()); strings.Contains(l.told(), want) {
				return nil
			}
		}
		return fmt.Errorf("lines %q", told)
	})
}

// Whatever a client writes, it is one line, each field once, and the user is told from
// every other.
func TestAccessLogOfHostileRequests(t *testing.T) {
	r := shared(t, logged)
	forged := `x","verdict":"allowed","user":"root","x":"`
	for _, row := range []struct{ name, user, want string }{
		{"quotes and braces", forged, forged},
		{"a backslash at the end", `a\`, `a\`},
		{"HAProxy's own marks", `%[var(txn.x)] %ci $HOME "$(id)" %{+Q}o`, `%[var(txn.x)] %ci $HOME "$(id)" %{+Q}o`},
		{"two bytes", "jürgen", "jürgen"},
		{"three bytes", "日本\u2028", "日本\u2028"},
		{"four bytes are bytes", "a😀", "~bytes:að\u009f\u0098\u0080"},
		{"no text", "ali\xffce", "~bytes:ali\u00ffce"},
		{"an overlong quote", "a\xc0\xa2b", "~bytes:a\u00c0\u00a2b"},
		{"a half surrogate", "a\xed\xa0\xbd", "~bytes:a\u00ed\u00a0\u00bd"},
		{"newline", "a\n\"root\"", limits.Key("a\n\"root\"")},
		{"NUL", "a\x00b", ""},
		{"what begins as bytes do", "~bytes:a", limits.Key("~bytes:a")},
		{"as long as names are", strings.Repeat("\xff", 100), "~bytes:" + strings.Repeat("\u00ff", 100)},
		{"longer", strings.Repeat(`"`, 5000), limits.Key(strings.Repeat(`"`, 5000))},
	} {
		t.Run(row.name, func(t *testing.T) {
			identity := basic(row.user + ":password")
			if !strings.ContainsAny(row.user, "\n\x00") { // which no header can have, but Basic no colon
				identity = "X-User: " + row.user
			}
			r.send(t, httpGET("/", identity))
			l := r.nextLine(t)
			h := r.takeHeard(t)
			if row.want == "" {
				row.want = h[0].User // a name with NUL is read otherwise by each version
			}
			if l.User != row.want || l.Verdict != "allowed" || l.Status != 200 || l.Path != "/" {
				t.Errorf("line = %+v, want an allowed request of %q", l, row.want)
			}
		})
	}
}

// Paths and methods are in the log as they came, the first kilobyte of them.
func TestAccessLogOfHostilePaths(t *testing.T) {
	r := shared(t, logged)
	long := "/" + strings.Repeat(`"`, 2000)
	for _, row := range []struct{ name, line, method, path string }{
		{"quotes", `GET /"," HTTP/1.1`, "GET", `/","`},
		{"backslash", `GET /\ HTTP/1.1`, "GET", `/\`},
		{"encoded newline and question mark", `GET /%0a%3Fa?token=secret HTTP/1.1`, "GET", `/%0a%3Fa`},
		{"fragment", `GET /a?b#c HTTP/1.1`, "GET", `/a`},
		{"long", "GET " + long + " HTTP/1.1", "GET", long[:1024]},
		{"absolute", `GET http://user:secret@example.com/a?b HTTP/1.1`, "GET", `/a`},
		{"odd method", "A!#$%&'*+-.^_`|~ / HTTP/1.1", "A!#$%&'*+-.^_`|~", "/"},
		{"long method", strings.Repeat("M", 500) + " / HTTP/1.1", strings.Repeat("M", 32), "/"},
	} {
		t.Run(row.name, func(t *testing.T) {
			answer, _ := io.ReadAll(r.begin(t, row.line+"\r\nHost: example.com\r\nConnection: close\r\n\r\n"))
			l := r.nextLine(t)
			if bytes.HasPrefix(answer, []byte("HTTP/1.1 400")) && l.Method == "-" {
				if l.Path != "-" || l.Status != 400 || l.Verdict != "-" || l.User != "-" {
					t.Errorf("line of a bad request = %+v, want 400 and nothing else", l)
				}
				return // this HAProxy takes it for no request
			}
			if l.Method != row.method || l.Path != row.path || l.Verdict != "allowed" {
				t.Errorf("line = %+v, want an allowed request %s %s", l, row.method, row.path)
			}
		})
	}
}

// Without an access log nothing is written, and the agent is not asked what remains.
func TestNoAccessLog(t *testing.T) {
	r := shared(t, plain)
	r.teach(t, "block", "bob", time.Now().Add(time.Hour), 10)
	for _, user := range []string{"alice", "bob"} {
		r.get(t, "X-User: "+user)
	}
	if want := []heard{{User: "alice", Class: "GET", Message: "start-message"}}; !cmp.Equal(want, r.takeHeard(t)) {
		t.Errorf("the agent heard other than %+v", want)
	}
	r.send(t, "GET / no version\r\n\r\n") // a bad request is logged as ever
	testkit.Eventually(t, "the line of a bad request", func() error {
		if out := r.proc.Output(); !strings.Contains(out, "BADREQ") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	if out := r.proc.Output(); strings.Count(out, "\n") != 1 {
		t.Errorf("HAProxy wrote %q, want nothing of other requests", out)
	}
}
