package load

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

func TestSlicerKeepsItsConnectionsBusy(t *testing.T) {
	var first, second, inProgress, most atomic.Int64
	handler := func(count *atomic.Int64) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			count.Add(1)
			for now, before := inProgress.Add(1), most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
			}
			defer inProgress.Add(-1)
			switch r.Header.Get("X-User") {
			case "refused":
				w.WriteHeader(http.StatusTooManyRequests)
			case "gone":
				w.Header().Set("Connection", "close")
			}
		})
	}
	a, b := httptest.NewServer(handler(&first)), httptest.NewServer(handler(&second))
	defer a.Close()
	defer b.Close()
	s, err := NewSlicer(Spec{Targets: []Target{{Address: addr(a)}, {Address: addr(b)}}, Conns: 3, Requests: Users("GET", "/", "allowed", "refused", "gone")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	answers, refused := 0, 0
	for range 3 { // each slice opens again what the one before has lost
		r, err := s.Run(t.Context(), 30*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Times) != r.Answers || r.Answers < 6 || !slices.IsSorted(r.Times) || r.Quantile(1) > r.Elapsed {
			t.Errorf("slice = %+v, want a time for each of at least 6 answers, none longer than the slice", r)
		}
		answers += r.Answers
		refused += r.Others[http.StatusTooManyRequests]
		delete(r.Others, http.StatusTooManyRequests)
		if len(r.Others) > 0 {
			t.Errorf("other answers = %v, want none but 429", maps.Collect(maps.All(r.Others)))
		}
	}
	if served := first.Load() + second.Load(); int(served) != answers || first.Load() < 3 || second.Load() < 3 {
		t.Errorf("served %d and %d, answers %d: want each answered, and both used", first.Load(), second.Load(), answers)
	}
	if want := (answers + 1) / 3; refused != want {
		t.Errorf("%d of %d answers are 429, want %d: every third request", refused, answers, want)
	}
	if most.Load() > 6 {
		t.Errorf("%d requests at a time over 6 connections", most.Load())
	}
}

func TestSlicerRefuses(t *testing.T) {
	for name, s := range map[string]Spec{
		"no address":           {Requests: Users("GET", "/")},
		"too many connections": {Targets: []Target{{Address: "127.0.0.1:1"}}, Conns: MaxConns + 1, Requests: Users("GET", "/")},
		"another machine":      {Targets: []Target{{Address: "192.0.2.1:80"}}, Requests: Users("GET", "/")},
	} {
		if _, err := NewSlicer(s); err == nil {
			t.Errorf("%s: NewSlicer() = nil error", name)
		}
	}
}

// A server that closes connections, or does not answer, is asked again on another connection.
func TestSlicerConnectsAgain(t *testing.T) {
	release := make(chan struct{})
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) % 3 {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}))
	defer server.Close()
	defer close(release)
	s, err := NewSlicer(Spec{Targets: []Target{{Address: addr(server)}}, Conns: 2, Timeout: 20 * time.Millisecond, Requests: Users("GET", "/")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sum := Slice{Failures: map[Failure]int{}}
	for end := time.Now().Add(time.Minute); sum.Answers < 3 || sum.Failures[TimedOut] < 3 || sum.Failures[Closed] < 3; {
		r, err := s.Run(t.Context(), 30*time.Millisecond)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%+v, %v; want three of each", sum, err)
		}
		sum.Answers += r.Answers
		for f, n := range r.Failures {
			sum.Failures[f] += n
		}
	}
}

// A request's body follows its head.
func TestSlicerSendsBodies(t *testing.T) {
	const body = `{"max_tokens": 100}`
	other := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != body {
			select {
			case other <- fmt.Sprintf("%q, %v", got, err):
			default: // one is enough
			}
		}
	}))
	defer server.Close()
	s, err := NewSlicer(Spec{Targets: []Target{{Address: addr(server)}}, Conns: 2, Requests: func(int) Request { return Request{Method: "POST", Body: []byte(body)} }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, err := s.Run(t.Context(), 30*time.Millisecond); err != nil || r.Answers < 2 {
		t.Errorf("%d answers, %v; want one on each connection at least", r.Answers, err)
	}
	select {
	case got := <-other:
		t.Errorf("a body was %s; want %q", got, body)
	default:
	}
}
