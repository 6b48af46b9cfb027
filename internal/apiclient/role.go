package apiclient

import (
	"strings"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
)

func DescribeRole(f api.From) string {
	if f.Degraded != "" {
		why, _, _ := strings.Cut(f.Degraded, ": ")
		// As the page says it: what others know is missing, or all is old.
		if strings.HasPrefix(why, "polygen") {
			return "incomplete (" + terminal.QuoteName(why) + ")"
		}
		return "cut off (" + terminal.QuoteName(why) + ")"
	}
	if f.Leading {
		return "leading"
	}
	return "following"
}
