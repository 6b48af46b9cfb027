package redisbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// Demand publishes reports of one instance. Redis keeps nothing of them: each one is
// complete, so the next one repairs what a failed call left out. A report without a user or
// with a negative number fails the call before anything is sent.
func (b *Bus) Demand(ctx context.Context, instance string, reports []bandwidth.Report) error {
	if len(reports) == 0 {
		return nil
	}
	// Before anything is sent: polygen takes a message with one wrong number for malformed, and hears nothing of the others.
	for _, r := range reports {
		if err := validateReport(r); err != nil {
			return fmt.Errorf("report demand: %w", err)
		}
	}
	var all []report
	for shard, rest := range byShard(b, reports, func(r bandwidth.Report) string { return r.User }) {
		for len(rest) > 0 {
			var message []byte
			message, rest = demandMessage(instance, rest)
			all = append(all, report{shard, message})
		}
	}
	return b.publishReports(ctx, "demand", "report demand", DemandChannel, all...)
}

// numbers are those of a report, in the order of the message.
func numbers(r bandwidth.Report) [7]int64 {
	return [...]int64{int64(r.Active), r.Moved[0], r.Moved[1], r.Most[0], r.Most[1], r.Share[0], r.Share[1]}
}

func validateReport(r bandwidth.Report) error {
	if r.User == "" {
		return errors.New("no user")
	}
	for _, n := range numbers(r) {
		if n < 0 {
			return fmt.Errorf("number %d is negative", n)
		}
	}
	return nil
}

// demandMessage writes the message of at most maxAsks reports, and returns the others.
func demandMessage(instance string, reports []bandwidth.Report) (message []byte, rest []bandwidth.Report) {
	message = appendText([]byte(wireVersion+" "), instance)
	// A longer message would delay what is published after it.
	n := min(len(reports), maxAsks)
	for _, r := range reports[:n] {
		message = appendText(append(message, ' '), r.User)
		for _, n := range numbers(r) {
			message = strconv.AppendInt(append(message, ' '), n, 10)
		}
	}
	return message, reports[n:]
}
