package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	polygen "github.com/sluice-qos/sluice/internal/polygen/api"
)

// fake is a server that says what the test wants, when the test wants it.
type fake struct {
	*httptest.Server

	mu       sync.Mutex
	live     api.Live
	history  api.History
	jobs     api.Jobs
	policies []api.Event
	token    string
	down     bool          // it answers 503
	changed  chan struct{} // closed at the next answer
	dropped  chan struct{} // closed to end all streams
	open     int           // streams of live answers
	asked    []string      // queries of live answers
}

func startFake(t testing.TB) *fake {
	f := &fake{changed: make(chan struct{}), dropped: make(chan struct{}), live: quiet(), jobs: api.Jobs{Users: []api.UserJobs{}, Workers: []api.JobWorker{}}}
	mux := http.NewServeMux()
	mux.Handle("/", polygen.Page())
	mux.HandleFunc("GET /api/v1/live", f.serveLive)
	mux.HandleFunc("GET /api/v1/policies", f.servePolicies)
	mux.HandleFunc("GET /api/v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		if !f.allowed(w, r) {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.jobs.From = f.live.From
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(f.jobs)
	})
	mux.HandleFunc("GET /api/v1/history/", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(f.history)
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		f.drop()
		f.Close()
	})
	return f
}

func (f *fake) host() string { return strings.TrimPrefix(f.URL, "http://") }

// set changes what is said, and says it.
func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live.Time = f.live.Time.Add(time.Second)
	change(f)
	close(f.changed)
	f.changed = make(chan struct{})
}

// drop ends all streams.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.dropped)
	f.dropped = make(chan struct{})
}

func (f *fake) streams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func (f *fake) lastAsked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return ""
	}
	return f.asked[len(f.asked)-1]
}

// wasAsked reports whether a query for live answers ended so. One that the page has
// given up may arrive after the one that followed.
func (f *fake) wasAsked(end string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.asked, func(query string) bool { return strings.HasSuffix(query, end) })
}

func (f *fake) allowed(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, why := 0, ""
	switch {
	case f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token:
		status, why = http.StatusUnauthorized, "a token is wanted"
	case f.down:
		status, why = http.StatusServiceUnavailable, "too many streams"
	default:
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": %q}`, why)
	return false
}

// serveStream sends what next returns, now and after each change.
func (f *fake) serveStream(w http.ResponseWriter, r *http.Request, next func() string) {
	if !f.allowed(w, r) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		f.mu.Lock()
		text, changed, dropped := next(), f.changed, f.dropped
		f.mu.Unlock()
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-dropped:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fake) serveLive(w http.ResponseWriter, r *http.Request) {
	count := func(by int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open += by
		if by > 0 {
			f.asked = append(f.asked, r.URL.RawQuery)
		}
	}
	if f.allowed(httptest.NewRecorder(), r) {
		count(1)
		defer count(-1)
	}
	f.serveStream(w, r, func() string { return ": a comment\r\nevent: live\r\ndata: " + encode(f.live) + "\r\n\r\n" })
}

func (f *fake) servePolicies(w http.ResponseWriter, r *http.Request) {
	sent := 0
	f.serveStream(w, r, func() (text string) {
		for ; sent < len(f.policies); sent++ {
			text += fmt.Sprintf("event: %s\ndata: %s\n\n", f.policies[sent].Kind, encode(f.policies[sent]))
		}
		return text
	})
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types can be encoded
	}
	return string(text)
}

// quiet is a cluster in which nobody is limited.
func quiet() api.Live {
	at := time.Now().UTC().Truncate(time.Second)
	return api.Live{
		From:   api.From{Polygen: "polygen-1", Leading: true, Version: "3f9a1c77d2e84b05", Time: at},
		Totals: api.Totals{Users: 1, Rate: 12.5, Down: 3 << 20, Seen: 1, Capacity: 100_000},
		Sort:   api.ByRate,
		Users: []api.Summary{{
			Name: name("alice"), Tier: "free", Known: true, State: api.OK, Rate: 12.5, Seen: at,
			Near: &api.Near{Limit: "GET", Max: 100, Used: 12, Window: 1, Mode: "enforce"},
		}},
		Limited:   []api.Summary{},
		Instances: []api.Instance{{Name: "instance-1", Version: "3f9a1c77d2e84b05", Current: true}, {Name: "instance-2", Version: "3f9a1c77d2e84b05", Current: true}},
	}
}

func name(user string) api.Name { return api.Name{User: user, Href: api.Path(user)} }
