package haproxy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const ownRules = "    # Rules of your own go here."

// withRules puts rules where haproxy.cfg says that one's own go.
func withRules(rules ...string) func(cfg string) string {
	return func(cfg string) string {
		return strings.Replace(cfg, ownRules, "    "+strings.Join(rules, "\n    ")+"\n\n"+ownRules, 1)
	}
}

func TestEndpoint(t *testing.T) {
	const longest = "0bcdefghijklmnopqrstuv-x"
	r := newRig(t, setup{edit: withRules("http-request set-var(txn.sluice_endpoint) req.fhdr(X-Endpoint)")})
	long := strings.Repeat("n", 101)
	for _, row := range []struct{ endpoint, user, want string }{
		{"uploads", "alice", "@uploads/alice"},
		{"a", "a/b", "@a/a/b"},
		{"a-", "alice", "@a-/alice"},
		{longest, long, "@" + longest + "/" + limits.Key(long)},
		{"uploads", "@uploads/alice", "@uploads/" + limits.Key("@uploads/alice")},
		// No endpoint's name: as if there were none.
		{"", "alice", "alice"},
		{"a/a", "b", "b"},
		{"Uploads", "alice", "alice"},
		{"-a", "alice", "alice"},
		{"a b", "alice", "alice"},
		{"a_b", "alice", "alice"},
		{"~exempt", "alice", "alice"},
		{longest + "y", "alice", "alice"},
		{"", "@uploads/alice", limits.Key("@uploads/alice")},
	} {
		t.Run(row.endpoint+" of "+row.user, func(t *testing.T) {
			r.get(t, "X-Endpoint: "+row.endpoint, "X-User: "+row.user)
			if diff := cmp.Diff([]question{{row.want, "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			endpoint := row.endpoint
			if !endpointName.MatchString(endpoint) {
				endpoint = ""
			}
			if want := limits.EndpointKey(endpoint, limits.Key(row.user)); want != row.want {
				t.Errorf("limits.EndpointKey says %q, want %q", want, row.want)
			}
		})
	}
}

// endpointName is what haproxy.cfg takes for the name of an endpoint.
var endpointName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,23}$`)

func TestEndpointOfTheEnvironment(t *testing.T) {
	r := newRig(t, setup{Config: Config{Env: []string{"SLUICE_ENDPOINT=api"}}, edit: withRules("http-request set-var(txn.sluice_endpoint) str(uploads) if { path -m beg /uploads }")})
	for path, want := range map[string]string{"/": "@api/alice", "/uploads": "@uploads/alice"} {
		r.send(t, httpGET(path, "X-User: alice"))
		if diff := cmp.Diff([]question{{want, "GET"}}, r.takeAsked(t)); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", path, diff)
		}
	}
}

// At an endpoint that the limit file does not declare, of which the agent alone knows,
// HAProxy counts the request as one of everywhere.
func TestUndeclaredEndpoint(t *testing.T) {
	g := newGate()
	r := newRig(t, setup{Config: Config{Env: []string{"SLUICE_ENDPOINT=api", "SLUICE_ACCESS_LOG=json"}}, serve: g.ServeHTTP})
	answer := func(with vars) {
		r.answerWith(func(h heard) vars {
			if h.Message == "start-message" && h.User == "@api/alice" {
				return with
			}
			return nil
		})
	}
	answer(vars{"key": "alice"})
	done := r.start("alice")
	g.await(t, 1)
	r.becomes(t, map[string]count{"alice": {1, 1}})
	g.let(1)
	if got := <-done; got.Status != 200 {
		t.Fatalf("status %d, want 200", got.Status)
	}
	r.becomes(t, map[string]count{"alice": {0, 1}})
	r.takeHeard(t)

	// Told to wait, it asks again by the key under which it counts.
	answer(vars{"key": "alice", "wait": uint32(1000), "limit": uint32(1)})
	done = r.start("alice")
	g.await(t, 2)
	if diff := cmp.Diff([]heard{
		{User: "@api/alice", Class: "GET", Message: "start-message", Log: true},
		{User: "alice", Class: "GET", Message: "wait-message", Tracked: 1, Log: true},
	}, r.takeHeard(t)); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	g.let(1)
	<-done

	answer(vars{"key": "alice", "reason": "request-rate", "class": "GET", "limit": uint32(1), "retry": uint32(1)})
	if got := <-r.start("alice"); got.Status != 429 || got.Header.Get("Sluice-Reason") != "request-rate" {
		t.Errorf("refused: status %d, Sluice-Reason %q, want 429 and request-rate", got.Status, got.Header.Get("Sluice-Reason"))
	}
	r.becomes(t, map[string]count{"alice": {0, 2}})
	for i, line := range r.takeLines(t, 0, 3) {
		if line.User != "alice" || line.Endpoint != "api" {
			t.Errorf("line %d of the access log has user %q and endpoint %q, want alice and api", i+1, line.User, line.Endpoint)
		}
	}
}

// README.md's two ways to have several endpoints in one HAProxy, in its own words.
func TestSeveralEndpoints(t *testing.T) {
	readme := map[string]string{
		"two ports of one frontend": `
    bind 127.0.0.1:8080 name api
    bind 127.0.0.1:8081 name uploads
    http-request set-var(txn.sluice_endpoint) so_name
    http-request set-var(txn.sluice_refuse_status) int(503) if { so_name uploads }
`,
		"two frontends": `
    bind 127.0.0.1:8081
    http-request set-var(txn.sluice_endpoint) str(uploads)
    http-request set-var(txn.sluice_refuse_status) int(503)
    http-request set-var(txn.sluice_refuse_body) str(problem)
`,
	}
	for _, lines := range readme {
		if text := readFile(t, "README.md"); !strings.Contains(text, lines) {
			t.Errorf("README.md does not say%s", lines)
		}
	}
	uploads := proctest.FreeAddr(t)
	// rules are README.md's that are not bind lines.
	rules := func(way string) []string {
		_, after, _ := strings.Cut(readme[way], "    http-request")
		return strings.Split(strings.TrimSpace("http-request"+after), "\n    ")
	}
	for _, row := range []struct {
		name string
		edit func(cfg string) string
		body string
		api  string // the key at the first port
	}{
		{"two ports of one frontend", func(cfg string) string {
			cfg = strings.Replace(cfg, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, `bind "${SLUICE_BIND-127.0.0.1:8080}" name api`+"\n    bind "+uploads+" name uploads", 1)
			return withRules(rules("two ports of one frontend")...)(cfg)
		}, "application/xml", "@api/alice"},
		{"two frontends", func(cfg string) string {
			before, rest, _ := strings.Cut(cfg, "frontend http\n")
			frontend, after, _ := strings.Cut(rest, "\n# Whoever was not let through")
			second := regexp.MustCompile(`(?m)^    bind .*$`).ReplaceAllLiteralString(frontend, "    bind "+uploads)
			second = withRules(rules("two frontends")...)(second)
			return before + "frontend http\n" + frontend + "\nfrontend uploads\n" + second + "\n# Whoever was not let through" + after
		}, "application/problem+json", "alice"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, setup{edit: row.edit})
			if out := r.proc.Output(); out != "" {
				t.Errorf("HAProxy said %q, want nothing", out)
			}
			api := r.addr
			for addr, key := range map[string]string{api: row.api, uploads: "@uploads/alice"} {
				r.addr = addr
				got := r.get(t, "X-User: alice")
				if diff := cmp.Diff([]question{{key, "GET"}}, r.takeAsked(t)); got.Status != 200 || diff != "" {
					t.Errorf("%s: status %d, asked (-want +got):\n%s", addr, got.Status, diff)
				}
			}
			// Who is throttled at one is not at the other.
			for _, v := range []struct {
				throttled string
				want      map[string]string // by address
			}{
				{"@uploads/alice", map[string]string{api: "200 ", uploads: "503 " + row.body}},
				{row.api, map[string]string{api: "429 text/plain", uploads: "503 " + row.body}},
			} {
				r.teach(t, "throttle", "*|"+v.throttled, time.Now().Add(time.Hour), 1)
				for addr, want := range v.want {
					r.addr = addr
					got := r.get(t, "X-User: alice")
					kind := got.Header.Get("Content-Type")
					if got.Status == 200 {
						kind = ""
					}
					if is := fmt.Sprint(got.Status, " ", kind); is != want {
						t.Errorf("%s with %s throttled: %s, want %s", addr, v.throttled, is, want)
					}
				}
			}
			r.takeHeard(t)
		})
	}
}
