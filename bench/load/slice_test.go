package load

import (
	"errors"
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
	s, err := NewSlicer([]string{addr(a), addr(b)}, 6, Users("GET", "/", "allowed", "refused", "gone"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	answers, refused := 0, 0
	for range 3 { // each slice opens again what the one before has lost
		r, err := s.Run(10 * time.Millisecond)
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
	for _, tt := range []struct {
		name        string
		addresses   []string
		connections int
	}{
		{"no address", nil, 1},
		{"fewer connections than addresses", []string{"127.0.0.1:1", "127.0.0.1:2"}, 1},
		{"too many connections", []string{"127.0.0.1:1"}, MaxConns + 1},
	} {
		if _, err := NewSlicer(tt.addresses, tt.connections, Users("GET", "/")); err == nil {
			t.Errorf("%s: NewSlicer() = nil error", tt.name)
		}
	}
	s, err := NewSlicer([]string{"192.0.2.1:80"}, 1, Users("GET", "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Run(time.Millisecond); !errors.Is(err, ErrNotLoopback) {
		t.Errorf("Run() to another machine = %v, want %v", err, ErrNotLoopback)
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
	s, err := NewSlicer([]string{addr(server)}, 2, func(int) Request { return Request{Method: "POST", Body: []byte(body)} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, err := s.Run(10 * time.Millisecond); err != nil || r.Answers < 2 {
		t.Errorf("%d answers, %v; want one on each connection at least", r.Answers, err)
	}
	select {
	case got := <-other:
		t.Errorf("a body was %s; want %q", got, body)
	default:
	}
}
