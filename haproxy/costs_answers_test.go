package haproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// overCost is the agent's refusal of a request whose user has used up what they may cost.
func overCost(told) vars {
	return vars{
		"reason": "cost", "cause": "pool", "class": "tokens/minute", "unit": "tokens", "limit": "500000000000", "window": uint32(60), "retry": uint32(42),
	}
}

// A refusal because of what requests cost names the unit, the window and when it ends, in every form of answer.
func TestCostRefusals(t *testing.T) {
	for _, s := range []setup{usual, usualBeside} {
		r := shared(t, s)
		r.answerTold(overCost)
		for _, row := range []struct {
			header string
			status int
			want   string
		}{
			{"X-Body: plain", 429, "Refused (cost): the limit tokens/minute is used up. Retry after 42 s.\n"},
			{"X-Body: problem", 429, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"Refused (cost): the limit tokens\/minute is used up. Retry after 42 s.","violated-policies":["tokens\/minute"],"limit":"tokens\/minute","retry":42}`},
			{"X-Status: 503", 503, slowDown},
			{"X-Body: none", 429, ""},
		} {
			got := r.get(t, "X-User: ann", row.header)
			if got.Status != row.status || got.Body != row.want {
				t.Errorf("beside %t, %s: %d %q, want %d %q", s.beside, row.header, got.Status, got.Body, row.status, row.want)
			}
			for name, want := range map[string]string{
				"RateLimit-Policy": `"tokens/minute";q=500000000000;w=60;qu="tokens"`, "RateLimit": `"tokens/minute";r=0;t=42`,
				"Retry-After": "42", "Sluice-Reason": "cost", "Cache-Control": "no-store",
			} {
				if got := got.Header.Get(name); got != want {
					t.Errorf("beside %t, %s: %s = %q, want %q", s.beside, row.header, name, got, want)
				}
			}
		}
	}
}

// With SLUICE_RATELIMIT=all the answers to allowed requests say what is left.
func TestRateLimitOnAllowedAnswers(t *testing.T) {
	for _, row := range []struct {
		name   string
		answer vars
		want   map[string]string
	}{
		{"by the second", vars{"class": "GET", "limit": uint32(60), "remaining": uint32(41)}, map[string]string{"RateLimit-Policy": `"GET";q=60;w=1`, "RateLimit": `"GET";r=41`}},
		{"by the minute", vars{"class": "*/minute", "window": uint32(60), "limit": uint32(60), "remaining": uint32(0)}, map[string]string{"RateLimit-Policy": `"*/minute";q=60;w=60`, "RateLimit": `"*/minute";r=0`}},
		{"by the hour", vars{"class": "GET/hour", "window": uint32(3600), "limit": uint32(60), "remaining": uint32(1)}, map[string]string{"RateLimit-Policy": `"GET/hour";q=60;w=3600`, "RateLimit": `"GET/hour";r=1`}},
		{"in progress", vars{"class": "concurrent-requests", "limit": uint32(9), "remaining": uint32(8)}, map[string]string{"RateLimit-Policy": `"concurrent-requests";q=9;qu="concurrent-requests"`, "RateLimit": `"concurrent-requests";r=8`}},
		{"a cost", vars{"class": "tokens/day", "window": uint32(86400), "unit": "tokens", "limit": "500000000000", "remaining": "499999999999"}, map[string]string{"RateLimit-Policy": `"tokens/day";q=500000000000;w=86400;qu="tokens"`, "RateLimit": `"tokens/day";r=499999999999`}},
		{"nothing known", nil, nil},
		{"a dry run would have refused", vars{"verdict": "dry-run", "class": "GET", "limit": uint32(60), "remaining": uint32(0)}, nil},
		{"refused", overCost(told{}), map[string]string{"RateLimit-Policy": `"tokens/minute";q=500000000000;w=60;qu="tokens"`, "RateLimit": `"tokens/minute";r=0;t=42`}},
	} {
		for name, s := range map[string]setup{"ours": costly, "beside": usualBeside, "as shipped": usual} {
			r := shared(t, s)
			r.answerTold(func(told) vars { return row.answer })
			a := r.get(t, "X-User: ann")
			got, want := map[string]string{}, row.want
			for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
				if values := a.Header.Values(field); len(values) > 0 {
					got[field] = strings.Join(values, " + ")
				}
			}
			all := name != "as shipped"
			if want == nil || !all && row.name != "refused" {
				want = map[string]string{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, row.name, diff)
			}
			if told := r.takeTold(t); len(told) != 1 || told[0].Log != all {
				t.Errorf("%s, %s: the agent was told %+v, want log %t", name, row.name, told, all)
			}
		}
	}
}

// What the first answer said of a limit is not in what the second one says: its window, its unit.
func TestRateLimitOfTheSecondAnswer(t *testing.T) {
	for want, limit := range map[string]vars{
		`"GET";q=60;w=1`:                {"class": "GET", "limit": uint32(60), "remaining": uint32(5)},
		`"tokens";q=50;w=1;qu="tokens"`: {"class": "tokens", "unit": "tokens", "limit": uint32(50), "remaining": uint32(5)},
	} {
		r := newRig(t, costly)
		r.before = func(told) vars {
			return vars{"charge": uint32(1), "class": "exports/minute", "window": uint32(60), "unit": "exports", "limit": uint32(60), "remaining": uint32(41)}
		}
		r.answerTold(func(told) vars { return limit })
		body := `{"max_tokens": 7}`
		a := r.send(t, httpRequest("POST", "/", "X-User: ann", "Content-Type: application/json", fmt.Sprint("Content-Length: ", len(body)))+body)[0]
		if got := a.Header.Get("RateLimit-Policy"); got != want {
			t.Errorf("RateLimit-Policy = %s, want %s", got, want)
		}
	}
}

// Requests by credit are told how many tickets are left of their second: of their class, and of all.
func TestRateLimitByCredit(t *testing.T) {
	for _, s := range []setup{costly, logging} { // with the access log no rules admit by method
		r := shared(t, s.with(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("RateLimit", `"theirs";r=1`) }))
		r.teachRow(t, generation, 0, 0)
		r.lend(t, "ann", credit(50, map[string]uint32{"*": 1000, "GET": 500}))
		testkit.Eventually(t, "two requests by credit in a second", func() error {
			r.takeTold(t)
			answers := r.send(t, httpGET("/", "X-User: ann"), httpGET("/", "X-User: ann"), httpRequest("PUT", "/", "X-User: ann", "Content-Length: 0"))
			if asked := r.takeTold(t); len(asked) > 0 {
				return fmt.Errorf("asked about %d", len(asked))
			}
			var left [3]int
			for i, a := range answers[:2] {
				values := strings.Join(a.Header.Values("RateLimit"), ", ")
				var get int
				if _, err := fmt.Sscanf(values, `"*";r=%d, "GET";r=%d`, &left[i], &get); err != nil || get >= 500 || left[i] >= 1000 {
					t.Fatalf("RateLimit %q: %v, want what is left of all and of GET", values, err)
				}
			}
			values := strings.Join(answers[2].Header.Values("RateLimit"), ", ")
			if _, err := fmt.Sscanf(values, `"*";r=%d`, &left[2]); err != nil || strings.Contains(values, ",") {
				t.Fatalf("RateLimit %q of a PUT, want what is left of all", values)
			}
			if left[1] != left[0]-1 || left[2] != left[1]-1 {
				return fmt.Errorf("left %v, want one less each time", left)
			}
			return nil
		})
	}
}

// Costs work the same in a configuration of somebody's own.
func TestCostsBeside(t *testing.T) {
	c := shared(t, usualBeside.with(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "40")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"total_tokens":21}}`)
	}))
	c.charge("100", "1000")
	if got := c.send(t, post(`{"max_tokens":7}`, "application/json", "X-User: ann", "X-Rows: 5")); got[0].Status != 200 {
		t.Errorf("status %d", got[0].Status)
	}
	c.wantSettled(t, map[string]int64{"ann exports 1764003600": -60, "ann tokens 1764003600": -979})
	if told := c.takeTold(t); len(told) != 1 || told[0].Costs != [2]string{"5", "7"} {
		t.Errorf("the agent was told %+v, want 5 and 7", told)
	}
}

// Many threads settle each for itself, and all of it arrives; bandwidth may be held in the same answers.
func TestCostsOfManyThreads(t *testing.T) {
	t.Parallel()
	c := newRig(t, setup{Config: Config{Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User", Costs: units}, serve: func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("X-Cost", "90")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"total_tokens":21}}`)
	}})
	c.answerTold(func(told) vars {
		return vars{"charged_0": "100@1764003600", "charged_1": "1000@1764003600", "down": uint32(1 << 20)}
	})
	const clients, each = 16, 25
	done := make(chan error, clients)
	for range clients {
		go func() {
			for range each {
				req, _ := http.NewRequest(http.MethodPost, "http://"+c.addr+"/", strings.NewReader("{}"))
				req.Header.Set("X-User", "ann")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					done <- err
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			done <- nil
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	c.wantSettled(t, map[string]int64{"ann exports 1764003600": -10 * clients * each, "ann tokens 1764003600": -979 * clients * each})
}
