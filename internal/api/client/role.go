package client

import (
	"strings"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
)

func DescribeRole(f api.From) string {
	if f.Degraded != "" {
		why, _, _ := strings.Cut(f.Degraded, ": ")
		return "cut off (" + terminal.QuoteName(why) + ")"
	}
	if f.Leading {
		return "leading"
	}
	return "following"
}
