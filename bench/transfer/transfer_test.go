package transfer

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// two streams for three seconds: one moves 100 bytes a step, the other 100 from the
// second second on.
func example() Report {
	r := Report{Bytes: [][]int64{make([]int64, 30), make([]int64, 30)}}
	for i := range 30 {
		r.Bytes[0][i] = 100
		if i >= 10 {
			r.Bytes[1][i] = 100
		}
	}
	return r
}

func TestReport(t *testing.T) {
	r := example()
	for _, tt := range []struct {
		name      string
		got, want float64
	}{
		{"rate of the first second", r.Rate(0, time.Second), 1000},
		{"rate of the last two", r.Rate(time.Second, 3*time.Second), 2000},
		{"fairness when both move the same", r.Jain(time.Second, 3*time.Second), 1},
		{"fairness when one moves nothing", r.Jain(0, time.Second), 0.5},
		{"fairness when nothing moves", Report{Bytes: [][]int64{make([]int64, 10)}}.Jain(0, time.Second), 0},
		{"worst second where all are right", r.Worst(time.Second, 3*time.Second, 2000), 0},
		{"worst second where the first is half", r.Worst(0, 3*time.Second, 2000), 0.5},
	} {
		if math.Abs(tt.got-tt.want) > 1e-9 {
			t.Errorf("%s = %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

// Streams without a proxy between: bytes of both directions arrive in both protocols.
func TestRun(t *testing.T) {
	o, err := NewOrigin()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	testkit.Eventually(t, "four streams", func() error { // a slow machine may miss the short one
		r := Run(t.Context(), o, []Stream{
			{Address: o.Addr(), User: "a"},
			{Address: o.Addr(), User: "a", Up: true},
			{Address: o.Addr(), User: "a", Begin: 300 * time.Millisecond, End: 500 * time.Millisecond},
			{Address: "127.0.0.1:1", User: "a"}, // nobody listens
		}, 800*time.Millisecond)
		if len(r.Errors) != 1 {
			return fmt.Errorf("errors = %q, want one, of the address where nobody listens", r.Errors)
		}
		for i, moved := range []bool{true, true, true, false} {
			if got := r.between(i, 0, 800*time.Millisecond); (got > 0) != moved {
				return fmt.Errorf("stream %d moved %d bytes, want some: %v", i, got, moved)
			}
		}
		if early := r.between(2, 0, 200*time.Millisecond); early > 0 {
			return fmt.Errorf("a stream moved %d bytes before it began", early)
		}
		return nil
	})
}
