package daemon

import (
	"context"
	"errors"
	"testing"
)

func TestRun(t *testing.T) {
	broken := errors.New("broken")
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tests := []struct {
		name  string
		ended bool // ctx ends before
		loops []func(context.Context) error
		want  error
	}{
		{"nothing to do", false, nil, nil},
		{"one fails: the others are stopped", false, []func(context.Context) error{wait, func(context.Context) error { return broken }}, broken},
		{"finishing is no reason to stop", false, []func(context.Context) error{
			func(context.Context) error { return nil },
			func(ctx context.Context) error { return ctx.Err() },
		}, nil},
		{"the context ends", true, []func(context.Context) error{wait, wait}, nil},
		{"a failure at the end is told", true, []func(context.Context) error{func(ctx context.Context) error { <-ctx.Done(); return broken }}, broken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.ended {
				cancel()
			}
			if err := Run(ctx, tt.loops...); !errors.Is(err, tt.want) || (tt.want == nil) != (err == nil) {
				t.Errorf("Run() = %v, want %v", err, tt.want)
			}
		})
	}
}
