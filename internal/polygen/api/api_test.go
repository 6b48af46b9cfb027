package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// echo answers with what it was asked.
type echo struct{ asked string }

func (e *echo) Users(by api.Sort, n int) api.Users {
	e.asked = fmt.Sprintf("users by %s, %d", by, n)
	return api.Users{Sort: by, Users: []api.Summary{}}
}

func (e *echo) UnknownUsers(by api.Sort, n int) api.UnknownUsers {
	e.asked = fmt.Sprintf("unknown users by %s, %d", by, n)
	return api.UnknownUsers{Sort: by, Users: []api.Unknown{}}
}

// shown is how the fake notes a user.
func shown(who api.Who) string {
	if who.IsKey {
		return fmt.Sprintf("key %q", who.User)
	}
	return fmt.Sprintf("%q", who.User)
}

func (e *echo) User(who api.Who) api.User {
	e.asked = strings.TrimPrefix("user "+shown(who), map[bool]string{true: "user "}[who.IsKey])
	return api.User{Name: api.Name{User: who.User}}
}

func (e *echo) Instances() api.Instances {
	e.asked = "instances"
	return api.Instances{Instances: []api.Instance{}}
}

func (e *echo) Jobs(_ context.Context, n int) api.Jobs {
	e.asked = fmt.Sprintf("jobs of %d users", n)
	return api.Jobs{Users: []api.UserJobs{}}
}

func (e *echo) Job(_ context.Context, id int64) (api.Job, error) {
	e.asked = fmt.Sprintf("job %d", id)
	switch id {
	case 404:
		return api.Job{}, api.ErrNoJob
	case 503:
		return api.Job{}, fmt.Errorf("%w: really", api.ErrNoWorker)
	}
	return api.Job{}, nil
}

func (e *echo) Watch(q api.Question) (<-chan *api.Message, func(), error) {
	e.asked = fmt.Sprintf("watch %d by %s, user %q, a key: %v", q.N, q.Sort, q.User, q.IsKey)
	return nothing, func() { e.asked += ", stopped" }, nil
}

func (e *echo) Policies(f api.Filter) (<-chan *api.Message, func(), error) {
	e.asked = fmt.Sprintf("policies %s of %q", f.Kinds, f.User)
	return nothing, func() { e.asked += ", stopped" }, nil
}

func (e *echo) History(who api.Who) api.History {
	e.asked = "history of " + shown(who)
	return api.History{}
}

func (e *echo) Events(_ context.Context, who api.Who) (api.Events, error) {
	e.asked = "events of " + shown(who)
	if who.User == "nobody" {
		return api.Events{}, fmt.Errorf("%w: really", api.ErrUnavailable)
	}
	return api.Events{}, nil
}

// nothing is a stream that has ended.
var nothing = func() <-chan *api.Message {
	c := make(chan *api.Message)
	close(c)
	return c
}()

// apiError is the answer to a request that fails.
type apiError struct{ Error string }

// gated is a gate with a token file.
func gated(t *testing.T, tokens string) (g *daemon.Gate, path string) {
	t.Helper()
	path = t.TempDir() + "/tokens"
	replaceFile(t, path, tokens)
	g, err := daemon.NewGate(daemon.Access{TokenFile: path}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	testkit.Must(t, err)
	return g, path
}

// replaceFile replaces a file at once.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	testkit.Must(t, os.Rename(path+".new", path))
}

const (
	annsToken = "0123456789abcdef-ann"
	bobsToken = "0123456789abcdef-bob"
)

func handler(source API) http.Handler {
	live, _ := source.(Live)
	return daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return nil }, Routes: Routes(source, live, nil)})
}

// A pathCase is a request, what the daemon is asked for it, and the error in the answer.
type pathCase struct {
	name, method, path string
	status             int
	asked              string
	err                string
}

// checkPaths sends the requests. Each answer but a stream is JSON.
func checkPaths(t *testing.T, cases []pathCase) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			e := &echo{}
			w := httptest.NewRecorder()
			handler(e).ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, nil))
			var failed apiError
			headers := map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
			if w.Header().Get("Content-Type") != "text/event-stream" {
				headers["Content-Type"] = "application/json"
				if err := json.Unmarshal(w.Body.Bytes(), &failed); err != nil {
					t.Errorf("the answer is no JSON: %v: %s", err, w.Body)
				}
			}
			if w.Code != tt.status || e.asked != tt.asked || failed.Error != tt.err {
				t.Errorf("%s %.60s = %d, asked %.90q, error %q, want %d, %.90q, %q", tt.method, tt.path, w.Code, e.asked, failed.Error, tt.status, tt.asked, tt.err)
			}
			for header, want := range headers {
				if got := w.Header().Get(header); got != want {
					t.Errorf("%s: %s, want %s", header, got, want)
				}
			}
		})
	}
}

func TestAPI(t *testing.T) {
	checkPaths(t, []pathCase{
		{"top users", "GET", "/api/v1/users", 200, "users by rate, 100", ""},
		{"in another order", "GET", "/api/v1/users?sort=concurrent&n=1", 200, "users by concurrent, 1", ""},
		{"by bytes down", "GET", "/api/v1/users?sort=down", 200, "users by down, 100", ""},
		{"by bytes up", "GET", "/api/v1/users?sort=up&n=1000", 200, "users by up, 1000", ""},
		{"the last heard of", "GET", "/api/v1/users?sort=recent", 200, "users by recent, 100", ""},
		{"by cost", "GET", "/api/v1/users?sort=cost:tokens&n=3", 200, "users by cost:tokens, 3", ""},
		{"by the cost of unknown users", "GET", "/api/v1/unknown-users?sort=cost:tokens", 400, "", `unknown sort "cost:tokens" (valid: recent, active)`},
		{"an order of another list", "GET", "/api/v1/users?sort=active", 400, "", `unknown sort "active" (valid: rate, refused, concurrent, down, up, recent, cost:UNIT)`},
		{"too many", "GET", "/api/v1/users?n=1001", 400, "", `n="1001": want a number from 1 to 1000`},
		{"none", "GET", "/api/v1/users?n=0", 400, "", `n="0": want a number from 1 to 1000`},
		{"no number", "GET", "/api/v1/users?n=all", 400, "", `n="all": want a number from 1 to 1000`},
		{"a user", "GET", "/api/v1/users/alice", 200, `user "alice"`, ""},
		{"the headers alone", "HEAD", "/api/v1/users/alice", 200, `user "alice"`, ""},
		{"a name with a slash", "GET", "/api/v1/users/a%2Fb", 200, `user "a/b"`, ""},
		{"a name of dots", "GET", "/api/v1/users/%2E%2E", 200, `user ".."`, ""},
		{"a name that is no UTF-8", "GET", "/api/v1/users/%ff%00", 200, `user "\xff\x00"`, ""},
		{"a name as long as a header", "GET", "/api/v1/users/" + strings.Repeat("x", 16<<10), 200, `user "` + strings.Repeat("x", 16<<10) + `"`, ""},
		{"and longer", "GET", "/api/v1/users/" + strings.Repeat("x", 16<<10+1), 400, "", "a user's name of 16385 bytes: want 1 to 16384"},
		{"by key", "GET", "/api/v1/users/~AB?by=key", 200, `key "~AB"`, ""},
		{"by name", "GET", "/api/v1/users/~AB?by=name", 200, `user "~AB"`, ""},
		{"by something else", "GET", "/api/v1/users/~AB?by=x", 400, "", `unknown by "x" (valid: name, key)`},
		{"unknown users", "GET", "/api/v1/unknown-users", 200, "unknown users by recent, 100", ""},
		{"the most active", "GET", "/api/v1/unknown-users?sort=active&n=3", 200, "unknown users by active, 3", ""},
		{"instances", "GET", "/api/v1/instances", 200, "instances", ""},
		{"jobs", "GET", "/api/v1/jobs", 200, "jobs of 100 users", ""},
		{"jobs of few", "GET", "/api/v1/jobs?n=3", 200, "jobs of 3 users", ""},
		{"jobs of too many", "GET", "/api/v1/jobs?n=1001", 400, "", `n="1001": want a number from 1 to 1000`},
		{"a job", "GET", "/api/v1/jobs/4711", 200, "job 4711", ""},
		{"a job that is not there", "GET", "/api/v1/jobs/404", 404, "job 404", "no such job"},
		{"a job whose workers are away", "GET", "/api/v1/jobs/503", 503, "job 503", "no worker of background jobs answers: really"},
		{"no job", "GET", "/api/v1/jobs/x", 400, "", `"x" is no id of a job: want a positive number`},
		{"a job that cannot be", "GET", "/api/v1/jobs/0", 400, "", `"0" is no id of a job: want a positive number`},
		{"of a job nothing", "GET", "/api/v1/jobs/1/x", 404, "", "no such path (valid: " + strings.Join(apiPaths, ", ") + ")"},
		{"jobs cannot be changed", "DELETE", "/api/v1/jobs/1", 405, "", "method DELETE is not allowed: use GET"},
		{"nothing else", "GET", "/api/v1/x", 404, "", "no such path (valid: " + strings.Join(apiPaths, ", ") + ")"},
		{"a name with a bare slash", "GET", "/api/v1/users/a/b", 400, "", `"a/b" is no user's name: want it with a slash as %2F, and every other byte escaped that needs it`},
		{"a slash alone", "GET", "/api/v1/users/%2F", 200, `user "/"`, ""},
		{"nobody", "GET", "/api/v1/users/", 400, "", "a user's name of 0 bytes: want 1 to 16384"},
		{"nothing can be changed", "POST", "/api/v1/users/alice", 405, "", "method POST is not allowed: use GET"},
		{"nor deleted", "DELETE", "/api/v1/users", 405, "", "method DELETE is not allowed: use GET"},
	})
}

// A daemon without users has no API.
func TestNoAPI(t *testing.T) {
	w := httptest.NewRecorder()
	handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/users", nil))
	if w.Code != 404 {
		t.Errorf("GET /api/v1/users = %d, want 404", w.Code)
	}
}

// Whatever a user is called, the path of that name asks for exactly that user.
func FuzzUserPath(f *testing.F) {
	for _, name := range []string{"alice", "a/b", "..", ".", "%2e", "a b?c#d", "\xff\x00", "~AB", "@a/b", "+", "a%", "/", "//", "ü"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || len(name) > maxName {
			return
		}
		e := &echo{}
		w := httptest.NewRecorder()
		handler(e).ServeHTTP(w, httptest.NewRequest("GET", api.Path(name), nil))
		if want := fmt.Sprintf("user %q", name); e.asked != want || w.Code != 200 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("GET %s = %d %s, asked %s, want %s", api.Path(name), w.Code, w.Body, e.asked, want)
		}
	})
}

// Whatever path and query: the answer is JSON, or a redirect of a path with dots.
func FuzzAPI(f *testing.F) {
	for _, seed := range [][2]string{{"users", "sort=rate&n=3"}, {"users/a", "by=x"}, {"users/%2e%2e", "by=key"}, {"unknown-users", "n=-1"}, {"../x", ""}, {"users//a", ";"}, {"users/%", ""}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		u, err := url.ParseRequestURI("/api/v1/" + path)
		if err != nil {
			return
		}
		u.RawQuery = query
		r := httptest.NewRequest("GET", "/", nil)
		r.URL = u
		w := httptest.NewRecorder()
		handler(&echo{}).ServeHTTP(w, r)
		if redirect := w.Code >= 300 && w.Code < 400; !redirect && strings.HasPrefix(u.Path, "/api/") && !json.Valid(w.Body.Bytes()) {
			t.Errorf("GET %s = %d %s, want JSON", u, w.Code, w.Body)
		}
	})
}
