package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// tool does what it is told, and remembers it.
type tool struct {
	done    string // the last act
	refused int
	err     error // of all
}

func (h *tool) act(a api.OverrideRequest) {
	h.done = fmt.Sprintf("%s %q key=%v for %v because %q: %s", a.Action, a.User, a.IsKey, a.For, a.Reason, a.Limits)
}

func (h *tool) Overrides() api.Overrides {
	return api.Overrides{From: sampleFrom, Overrides: []api.UserOverride{sampleOverride}, Capacity: 7}
}

func (h *tool) Override(_ context.Context, a api.OverrideRequest) (api.Override, error) {
	h.act(a)
	return api.Override{From: sampleFrom, UserOverride: sampleOverride}, h.err
}

func (h *tool) RemoveOverride(_ context.Context, a api.OverrideRequest) (api.Override, error) {
	h.act(a)
	return api.Override{From: sampleFrom, UserOverride: sampleOverride}, h.err
}

func (h *tool) Unblock(_ context.Context, a api.OverrideRequest) (api.Unblocked, error) {
	h.act(a)
	return api.Unblocked{From: sampleFrom, Name: sampleOverride.Name, Sent: true, InProgress: 7, Max: 8, Note: "x"}, h.err
}

var (
	sampleFrom     = api.From{Polygen: "one", Leading: true, Version: "v", Time: sampleTime, Degraded: "redis cannot be reached"}
	sampleOverride = api.UserOverride{Name: api.Name{User: "alice", Href: "/x"}, Limits: json.RawMessage(`"pro"`), Reason: "x", By: "ops",
		Since: sampleTime, Until: sampleTime, Problem: "x"}
)

func (h *tool) Refuse(api.OverrideRequest, error) { h.refused++ }

func (h *tool) ask(method, path, body string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, v := range header {
		r.Header[name] = v
	}
	w := httptest.NewRecorder()
	daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: Routes(sample{}, nil, h)}).ServeHTTP(w, r)
	return w
}

func TestHand(t *testing.T) {
	const good = `{"for":"15m","reason":"launch","limits":{"concurrent":50}}`
	path := "/api/v1/overrides/alice"
	for _, tt := range []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		done                     string // or the error
	}{
		{"an override", "PUT", path, good, nil, 200, `override "alice" key=false for 15m0s because "launch": {"concurrent":50}`},
		{"for an hour unless it says else", "PUT", path, `{"reason":"x","limits":"pro"}`, nil, 200, `override "alice" key=false for 1h0m0s because "x": "pro"`},
		{"the longest", "PUT", path, `{"for":"168h","reason":"x","limits":{}}`, nil, 200, `override "alice" key=false for 168h0m0s because "x": {}`},
		{"longer", "PUT", path, `{"for":"168h1s","reason":"x","limits":{}}`, nil, 400, `for must be a time from 1s to 168h, such as 15m, got "168h1s"`},
		{"shorter than a second", "PUT", path, `{"for":"999ms","reason":"x","limits":{}}`, nil, 400, `for must be a time from 1s to 168h, such as 15m, got "999ms"`},
		{"a number of what", "PUT", path, `{"for":15,"reason":"x","limits":{}}`, nil, 400, "for must be text, got 15"},
		{"no time", "PUT", path, `{"for":"soon","reason":"x","limits":{}}`, nil, 400, `for must be a time from 1s to 168h, such as 15m, got "soon"`},
		{"no reason", "PUT", path, `{"limits":{}}`, nil, 400, "reason must be 1 to 200 printable characters, got 0"},
		{"an empty reason", "PUT", path, `{"reason":" ","limits":{}}`, nil, 400, "reason must be 1 to 200 printable characters, got 1"},
		{"a reason of two lines", "PUT", path, `{"reason":"a\nb","limits":{}}`, nil, 400, "reason must be 1 to 200 printable characters, got 3"},
		{"a long reason", "PUT", path, `{"reason":"` + strings.Repeat("ü", 201) + `","limits":{}}`, nil, 400, "reason must be 1 to 200 printable characters, got 201"},
		{"a reason that is none", "PUT", path, `{"reason":null,"limits":{}}`, nil, 400, "reason must be text, got null"},
		{"no limits", "PUT", path, `{"reason":"x"}`, nil, 400, `limits is missing; write them as in the limit file, such as {"concurrent": 50}`},
		{"an unknown field", "PUT", path, `{"reason":"x","limit":{}}`, nil, 400, `unknown field "limit" (valid: for, reason, limits)`},
		{"a field in other letters", "PUT", path, `{"Reason":"x","limits":{}}`, nil, 400, `unknown field "Reason" (valid: for, reason, limits)`},
		{"a field twice", "PUT", path, `{"reason":"x","reason":"y","limits":{}}`, nil, 400, "reason is there twice"},
		{"no object", "PUT", path, `[]`, nil, 400, "the body must be a JSON object with for, reason, limits"},
		{"no JSON", "PUT", path, `{"reason":x}`, nil, 400, "the body is not JSON: invalid character 'x' looking for beginning of value"},
		{"half of it", "PUT", path, `{"reason":"x"`, nil, 400, "the body is not JSON: EOF"},
		{"more than one", "PUT", path, good + "{}", nil, 400, "something follows the JSON object"},
		{"no UTF-8", "PUT", path, "{\"reason\":\"\xff\"}", nil, 400, "the body is not UTF-8 text"},
		{"no body", "PUT", path, "", http.Header{"Content-Type": {"application/json"}}, 400, "the body must be a JSON object with for, reason, limits"},
		{"a long body", "PUT", path, good + strings.Repeat(" ", 64<<10), nil, 413, "the body is larger than 65536 bytes"},
		{"no type", "PUT", path, good, http.Header{"Content-Type": nil}, 415, "the body must be JSON: send Content-Type: application/json"},
		{"a form's type", "PUT", path, good, http.Header{"Content-Type": {"text/plain"}}, 415, "the body must be JSON: send Content-Type: application/json"},
		{"the type with its letters", "PUT", path, good, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, 200, `override "alice" key=false for 15m0s because "launch": {"concurrent":50}`},
		{"a page of this address", "PUT", path, good, http.Header{"Origin": {"http://example.com"}}, 200, `override "alice" key=false for 15m0s because "launch": {"concurrent":50}`},
		{"a page of another one", "PUT", path, good, http.Header{"Origin": {"http://evil.example"}}, 403, "a page of another origin may not do this"},
		{"a page on another port", "PUT", path, good, http.Header{"Origin": {"http://example.com:8080"}}, 403, "a page of another origin may not do this"},
		{"a page without an origin", "PUT", path, good, http.Header{"Origin": {"null"}}, 403, "a page of another origin may not do this"},
		{"an empty origin", "PUT", path, good, http.Header{"Origin": {""}}, 403, "a page of another origin may not do this"},
		{"nobody", "PUT", "/api/v1/overrides/", good, nil, 400, "a user's name of 0 bytes: want 1 to 16384"},
		{"a bare slash", "PUT", "/api/v1/overrides/a/b", good, nil, 400, `"a/b" is no user's name: want it with a slash as %2F, and every other byte escaped that needs it`},
		{"a name with a slash", "PUT", "/api/v1/overrides/a%2Fb", good, nil, 200, `override "a/b" key=false for 15m0s because "launch": {"concurrent":50}`},
		{"a key", "PUT", path + "?by=key", good, nil, 200, `override "alice" key=true for 15m0s because "launch": {"concurrent":50}`},
		{"removed", "DELETE", path, "", nil, 200, `remove "alice" key=false for 0s because "": `},
		{"removed with the type of a body", "DELETE", path, "", http.Header{"Content-Type": {"application/json"}}, 200, `remove "alice" key=false for 0s because "": `},
		{"removed for a reason", "DELETE", path, `{"reason":"over"}`, nil, 200, `remove "alice" key=false for 1h0m0s because "over": `},
		{"removed with limits", "DELETE", path, good, nil, 400, `unknown field "for" (valid: reason)`},
		{"removed by another page", "DELETE", path, "", http.Header{"Origin": {"http://evil.example"}}, 403, "a page of another origin may not do this"},
		{"unblocked", "POST", "/api/v1/users/alice/unblock", `{"reason":"x"}`, nil, 200, `unblock "alice" key=false for 1h0m0s because "x": `},
		{"one who is called so", "POST", "/api/v1/users/unblock/unblock?by=key", `{"reason":"x"}`, nil, 200, `unblock "unblock" key=true for 1h0m0s because "x": `},
		{"unblocked for no reason", "POST", "/api/v1/users/alice/unblock", `{}`, nil, 400, "reason must be 1 to 200 printable characters, got 0"},
		{"unblocked by a form", "POST", "/api/v1/users/alice/unblock", "reason=x", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 415, "the body must be JSON: send Content-Type: application/json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &tool{}
			w := h.ask(tt.method, tt.path, tt.body, tt.header)
			got := h.done
			if tt.status != 200 {
				got = errorOf(t, w)
			}
			if w.Code != tt.status || got != tt.done {
				t.Errorf("%s %s %.80s = %d %s, want %d %s", tt.method, tt.path, tt.body, w.Code, got, tt.status, tt.done)
			}
			if refused := h.refused == 1; refused != (tt.status != 200) || refused && h.done != "" {
				t.Errorf("%s %s = %d was noted %d times as refused, and did %q", tt.method, tt.path, w.Code, h.refused, h.done)
			}
		})
	}
}

func errorOf(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var failed apiError
	if err := json.Unmarshal(w.Body.Bytes(), &failed); err != nil || failed.Error == "" {
		t.Errorf("the answer is no JSON with an error: %v: %s", err, w.Body)
	}
	return failed.Error
}

func TestHandMethods(t *testing.T) {
	for _, tt := range []struct{ method, path, allow, want string }{
		{"POST", "/api/v1/overrides", "GET, HEAD", "method POST is not allowed: use GET"},
		{"GET", "/api/v1/overrides/alice", "PUT, DELETE", "method GET is not allowed: use PUT or DELETE"},
		{"PATCH", "/api/v1/overrides/alice", "PUT, DELETE", "method PATCH is not allowed: use PUT or DELETE"},
		{"POST", "/api/v1/users/alice", "GET, HEAD", "method POST is not allowed: use GET"},
		{"PUT", "/api/v1/users/alice/unblock", "GET, HEAD", "method PUT is not allowed: use GET"},
	} {
		h := &tool{}
		w := h.ask(tt.method, tt.path, "{}", nil)
		if got := errorOf(t, w); w.Code != 405 || got != tt.want || w.Header().Get("Allow") != tt.allow || h.done != "" {
			t.Errorf("%s %s = %d %s, Allow %s, want 405 %s, %s", tt.method, tt.path, w.Code, got, w.Header().Get("Allow"), tt.want, tt.allow)
		}
	}
}

func TestHandErrors(t *testing.T) {
	for err, status := range map[error]int{
		errors.New("limits: no"):                      400,
		api.ErrNoOverride:                             404,
		fmt.Errorf("%w; 7", api.ErrFull):              409,
		fmt.Errorf("%w: refused", api.ErrUnavailable): 503,
	} {
		for _, method := range []string{"PUT", "DELETE", "POST"} {
			path, body := "/api/v1/overrides/alice", `{"reason":"x","limits":"pro"}`
			switch method {
			case "DELETE":
				body = ""
			case "POST":
				path, body = "/api/v1/users/alice/unblock", `{"reason":"x"}`
			}
			w := (&tool{err: err}).ask(method, path, body, nil)
			if got := errorOf(t, w); w.Code != status || got != err.Error() {
				t.Errorf("%s when %v: %d %s, want %d", method, err, w.Code, got, status)
			}
		}
	}
}

// An operator is named by the token, and by where they came from.
func TestBy(t *testing.T) {
	r := httptest.NewRequest("PUT", "/", nil)
	if got, want := operatorOf(r), daemon.Anonymous+" from 192.0.2.1"; got != want {
		t.Errorf("by() = %q, want %q", got, want)
	}
	r.RemoteAddr = "[2001:db8::1]:99"
	if got, want := operatorOf(r), daemon.Anonymous+" from 2001:db8::1"; got != want {
		t.Errorf("by() = %q, want %q", got, want)
	}
}

// handPath is a path of the document that is about what is done by hand.
func handPath(path string) bool {
	return strings.HasPrefix(path, "/api/v1/overrides") || strings.HasSuffix(path, "/unblock")
}

// answersOverrides holds what the document says of what is done by hand against what the
// server does.
func (d *document) answersOverrides(t *testing.T) {
	t.Helper()
	const set, why = `{"reason":"x","limits":"pro"}`, `{"reason":"x"}`
	elsewhere := http.Header{"Origin": {"http://evil.example"}}
	form := http.Header{"Content-Type": {"text/plain"}}
	for _, tt := range []struct {
		method, path, body string
		operation          operation
	}{
		{"PUT", "/api/v1/overrides/alice", set, d.Paths["/api/v1/overrides/{user}"].Put},
		{"DELETE", "/api/v1/overrides/alice", why, d.Paths["/api/v1/overrides/{user}"].Delete},
		{"POST", "/api/v1/users/alice/unblock", why, d.Paths["/api/v1/users/{user}/unblock"].Post},
	} {
		seen := map[string]bool{d.unauthorized(t, tt.method, tt.path, tt.operation.Responses): true}
		for _, ask := range []struct {
			body   string
			header http.Header
			err    error
		}{
			{tt.body, nil, nil}, {"{", nil, nil}, {tt.body, elsewhere, nil}, {tt.body, form, nil}, {strings.Repeat(" ", maxBody+1), nil, nil},
			{tt.body, nil, api.ErrNoOverride}, {tt.body, nil, api.ErrFull}, {tt.body, nil, api.ErrUnavailable}, {tt.body, nil, api.ErrNotLeading},
		} {
			full := ask.err != nil && errors.Is(ask.err, api.ErrFull) && tt.method != "PUT"
			missing := errors.Is(ask.err, api.ErrNoOverride) && tt.method != "DELETE"
			if full || missing { // which these never are
				continue
			}
			w := (&tool{err: ask.err}).ask(tt.method, tt.path, ask.body, ask.header)
			code := fmt.Sprint(w.Code)
			seen[code] = true
			r := tt.operation.Responses[code]
			if r == nil {
				t.Errorf("%s %s: the document has no answer %s", tt.method, tt.path, code)
				continue
			}
			var answer any
			testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &answer))
			content, ok := d.response(t, r).Content["application/json"]
			if !ok {
				t.Errorf("%s %s: the document has no JSON for %s", tt.method, tt.path, code)
				continue
			}
			report(t, tt.method+" "+tt.path, d.differences(t, code, content.Schema, answer, true))
		}
		for code := range tt.operation.Responses {
			if !seen[code] {
				t.Errorf("%s %s never answers %s, which the document has", tt.method, tt.path, code)
			}
		}
		body := d.schema(t, tt.operation.RequestBody.Content["application/json"].Schema)
		if got, want := fieldsOf[map[string]api.Action{"PUT": api.SetOverride, "DELETE": api.RemoveOverride, "POST": api.UnblockUser}[tt.method]], len(body.Properties); len(got) != want {
			t.Errorf("%s %s reads %q, the document has %d fields", tt.method, tt.path, got, want)
		}
		for _, field := range fieldsOf[api.SetOverride] {
			if _, ok := body.Properties[field]; !ok && tt.method == "PUT" {
				t.Errorf("%s %s: the document has no %s", tt.method, tt.path, field)
			}
		}
		for _, p := range tt.operation.Parameters {
			d.schema(t, d.parameter(t, p).Schema)
		}
		if tt.operation.OperationID == "" || tt.operation.Summary == "" {
			t.Errorf("%s %s has no name or no summary", tt.method, tt.path)
		}
	}
	list := (&tool{}).ask("GET", "/api/v1/overrides", "", nil)
	var answer any
	testkit.Must(t, json.Unmarshal(list.Body.Bytes(), &answer))
	get := d.Paths["/api/v1/overrides"].Get
	report(t, "GET /api/v1/overrides", d.differences(t, "200", d.response(t, get.Responses["200"]).Content["application/json"].Schema, answer, true))
	d.response(t, get.Responses["403"])
	d.unauthorized(t, "GET", "/api/v1/overrides", get.Responses)
}

// Whatever the body: it is refused, or what is read is in bounds and comes out again.
func FuzzParseAct(f *testing.F) {
	for _, body := range []string{
		`{"for":"15m","reason":"launch","limits":{"concurrent":50}}`, `{"reason":"x"}`, `{}`, `{"reason":"\ud800","limits":"pro"}`,
		`{"for":"1e9h","reason":"x","limits":null}`, `{"reason":"x","limits":[{"a":[1e400]}]} `, `{"reason":"a\u0000"}`, `[`,
	} {
		for i := range 3 {
			f.Add(byte(i), []byte(body))
		}
	}
	actions := []api.Action{api.SetOverride, api.RemoveOverride, api.UnblockUser}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		a := api.OverrideRequest{Action: actions[int(kind)%len(actions)]}
		if parseBody(body, &a) != nil {
			return
		}
		if a.For < time.Second || a.For > 7*24*time.Hour || len([]rune(a.Reason)) > 200 || a.Reason == "" && a.Action != api.RemoveOverride {
			t.Fatalf("parseAct(%q) = for %v, reason %q", body, a.For, a.Reason)
		}
		fields := map[string]any{"for": a.For.String(), "reason": a.Reason, "limits": a.Limits}
		for name := range fields {
			if !strings.Contains(strings.Join(fieldsOf[a.Action], " "), name) {
				delete(fields, name)
			}
		}
		data, err := json.Marshal(fields)
		if err != nil {
			t.Fatalf("parseAct(%q) = %+v, which is no JSON: %v", body, a, err)
		}
		again := api.OverrideRequest{Action: a.Action}
		if err := parseBody(data, &again); err != nil || again.Reason != a.Reason || again.For != a.For {
			t.Fatalf("parseAct(%q) = %+v, read again %+v, %v", data, a, again, err)
		}
	})
}
