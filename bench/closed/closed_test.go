package closed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Three clients at an origin that takes all of them: three requests run at once, nearly
// all of the time.
func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o, done := NewOrigin(3), make(chan struct{})
	go func() { defer close(done); o.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	testkit.Eventually(t, "three run at once, and one of them ends", func() error { // a slow machine may not come to it
		o.Begin()
		r := Run(ctx, Spec{
			Addresses: []string{l.Addr().String()}, User: "a", Clients: 3, Retry: time.Millisecond, Duration: 500 * time.Millisecond,
			Work: func(*rand.Rand) time.Duration { return 20 * time.Millisecond },
		})
		if r.Failed > 0 || len(r.Statuses) > 1 || len(r.Statuses) == 1 && r.Statuses[200] == 0 {
			t.Errorf("report = %+v, want answers of 200 only", r)
		}
		c := o.Counts()
		if c.Most > 3 || c.Active != 0 || c.Mean < 0 || c.Mean > 3 {
			t.Errorf("counts = %+v, want 3 at most, none left, a mean up to 3", c)
		}
		points := o.Points()
		if len(points) != 1+2*r.Statuses[200] {
			t.Errorf("%d points of %d requests, want two each and the beginning", len(points), r.Statuses[200])
		}
		for i, p := range points {
			if p.Active < 0 || p.Active > 3 || i > 0 && p.At.Before(points[i-1].At) {
				t.Fatalf("point %d is %+v", i, p)
			}
		}
		if c.Most < 3 || c.Mean == 0 || len(c.Gaps) == 0 {
			return fmt.Errorf("counts = %+v, want three at most, and gaps: requests that ended while three ran", c)
		}
		return nil
	})
	if o.Begin(); o.Counts().Most != 0 || len(o.Points()) != 1 {
		t.Errorf("after Begin: %+v", o.Counts())
	}
}

// An origin alone: what a request without a number gets, and the time in between.
func TestOriginRefusesWhatItDoesNotKnow(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o, done := NewOrigin(1), make(chan struct{})
	go func() { defer close(done); o.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("GET /nap HTTP/1.0\r\n\r\n"))
	answer := make([]byte, 12)
	_, _ = conn.Read(answer)
	if string(answer) != "HTTP/1.0 400" {
		t.Errorf("answered %q, want 400", answer)
	}
}
