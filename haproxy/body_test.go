package haproxy

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

const plainBody = "Refused (request-rate): the limit GET/minute is used up. Retry after 7 s.\n"

// bodies are a refusal's type and body, by form.
func bodies(t testing.TB, status int) map[string][2]string {
	t.Helper()
	text, err := json.Marshal(theProblem(status, "request-rate", "GET/minute", 7))
	if err != nil {
		t.Fatal(err)
	}
	return map[string][2]string{
		"plain": {"text/plain", plainBody}, "s3": {"application/xml", slowDown},
		"problem": {"application/problem+json", strings.ReplaceAll(string(text), "GET/", `GET\/`)}, "none": {"", ""},
	}
}

func TestRefuseBody(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		status     int    // of the environment
		body       string // of the environment
		wantStatus int
		want       string
	}{
		{0, "", 429, "plain"}, {429, "", 429, "plain"}, {503, "", 503, "s3"},
		{429, "auto", 429, "plain"}, {503, "auto", 503, "s3"},
		{429, "plain", 429, "plain"}, {429, "s3", 429, "s3"}, {429, "problem", 429, "problem"}, {429, "none", 429, "none"},
		{503, "plain", 503, "plain"}, {503, "s3", 503, "s3"}, {503, "problem", 503, "problem"}, {503, "none", 503, "none"},
	} {
		t.Run(fmt.Sprintf("%d %s", row.status, row.body), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{Config: Config{RefuseStatus: row.status, Env: []string{"SLUICE_REFUSE_BODY=" + row.body}}})
			r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET/minute", 100, 7, 60} })
			want := bodies(t, row.wantStatus)[row.want]
			// On one connection, so that a body that must not be there would be seen.
			for i, got := range r.send(t, httpRequest("HEAD", "/"), httpGET("/"), httpRequest("PUT", "/", "Content-Length: 2")+"xx") {
				body := want[1]
				if i == 0 {
					body = ""
				}
				if got.Status != row.wantStatus || got.Header.Get("Content-Type") != want[0] || got.Body != body {
					t.Errorf("answer %d = %d %s %q, want %d %s %q", i, got.Status, got.Header.Get("Content-Type"), got.Body, row.wantStatus, want[0], body)
				}
				if got.Header.Get("Retry-After") != "7" || got.Header.Get("RateLimit-Policy") != `"GET/minute";q=100;w=60` {
					t.Errorf("answer %d has the fields %v", i, fields(got))
				}
			}
		})
	}
}

// A rule of the frontend's chooses for a request, as text or as a number; what it
// cannot choose is the default.
func TestRefuseBodyOfARule(t *testing.T) {
	r := newRig(t, setup{
		Config: Config{RefuseStatus: 503, Env: []string{"SLUICE_REFUSE_BODY=none"}},
		edit: withRules(
			"http-request set-var(txn.sluice_refuse_status) req.fhdr(X-Status) if { req.fhdr(X-Status) -m found }",
			"http-request set-var(txn.sluice_refuse_status) int(429) if { req.fhdr(X-Status) 429i }",
			"http-request set-var(txn.sluice_refuse_body) req.fhdr(X-Body) if { req.fhdr(X-Body) -m found }",
		),
	})
	r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET/minute", 100, 7, 60} })
	for _, row := range []struct {
		header     string
		wantStatus int
		want       string
	}{
		{"X-None: 1", 503, "none"},
		{"X-Status: 429", 429, "none"}, {"X-Status: 429i", 429, "none"}, {"X-Status: 503", 503, "none"}, {"X-Status: 200", 429, "none"},
		{"X-Status: ", 429, "none"},
		{"X-Body: problem", 503, "problem"}, {"X-Body: plain", 503, "plain"}, {"X-Body: s3", 503, "s3"}, {"X-Body: auto", 503, "s3"},
		{"X-Body: none", 503, "none"}, {"X-Body: html", 503, "plain"},
		{"X-Status: 429\r\nX-Body: auto", 429, "plain"}, {"X-Status: 429\r\nX-Body: problem", 429, "problem"},
	} {
		got := r.get(t, row.header)
		want := bodies(t, row.wantStatus)[row.want]
		if got.Status != row.wantStatus || got.Header.Get("Content-Type") != want[0] || got.Body != want[1] {
			t.Errorf("%q: %d %s %q, want %d %s %q", row.header, got.Status, got.Header.Get("Content-Type"), got.Body, row.wantStatus, want[0], want[1])
		}
	}
}

// Whatever a limit is called, and the user, the document is valid and says so, and
// nothing of the request is in it.
func TestBodiesAreValid(t *testing.T) {
	const user = `<script>&"'\]}>%[src]`
	names := []string{`a"b\c`, "tab\tbell\x07", "</Error>&amp;", "%[src]", `é ✓`, `",limit":"x`, "\x1b[2J", "}"}
	for _, body := range []string{"problem", "s3"} {
		t.Run(body, func(t *testing.T) {
			r := newRig(t, setup{Config: Config{Env: []string{"SLUICE_REFUSE_BODY=" + body}, Identify: "header:X-User"}})
			for _, name := range names {
				for _, reason := range []string{"request-rate", "concurrent-requests"} {
					r.refuseWith(func(question) *verdict { return &verdict{reason, name, 100, 7, 0} })
					got := r.send(t, httpGET("/<script>", "X-User: "+user, "Accept: text/html"))[0]
					if strings.Contains(got.Body, "script") {
						t.Errorf("body %q has something of the request", got.Body)
					}
					if body == "s3" {
						var doc struct {
							XMLName xml.Name `xml:"Error"`
							Code    string
						}
						if err := xml.Unmarshal([]byte(got.Body), &doc); err != nil || doc.Code != "SlowDown" {
							t.Errorf("body %q: %+v, %v, want SlowDown", got.Body, doc, err)
						}
						continue
					}
					var doc problem
					if err := json.Unmarshal([]byte(got.Body), &doc); err != nil {
						t.Errorf("body %q: %v", got.Body, err)
						continue
					}
					limit := name
					if reason == "concurrent-requests" {
						limit, doc.Detail, doc.Retry = reason, strings.Replace(doc.Detail, fmt.Sprintf("after %d s", doc.Retry), "after 7 s", 1), 7
					}
					if diff := cmp.Diff(theProblem(429, reason, limit, 7), doc); diff != "" {
						t.Errorf("problem (-want +got):\n%s", diff)
					}
				}
			}
		})
	}
}
