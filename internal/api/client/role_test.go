package client

import (
	"testing"

	"github.com/sluice-qos/sluice/internal/api"
)

func TestRole(t *testing.T) {
	for want, f := range map[string]api.From{
		"leading":                             {Leading: true},
		"following":                           {},
		`cut off ("redis cannot be reached")`: {Degraded: "redis cannot be reached: dial tcp 127.0.0.1:6379: connect: connection refused"},
		`cut off ("\x1b[2J")`:                 {Degraded: "\x1b[2J"},
	} {
		if got := DescribeRole(f); got != want {
			t.Errorf("role(%+v) = %q, want %q", f, got, want)
		}
	}
}
