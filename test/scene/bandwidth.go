package scene

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
)

// MiB is so many bytes.
const MiB = 1 << 20

// The band of a rate, as fractions of the limit, over two seconds and more. BenchmarkLoadBandwidth measures how exact a rate
// is; a busy machine delivers late what HAProxy let through in time.
const leastRate, mostRate = 0.75, 1.15

// Streams are so many transfers of a user, dealt out to the instances.
func (s *Scene) Streams(user string, n int, up bool) (streams []transfer.Stream) {
	for i := range n {
		streams = append(streams, transfer.Stream{Address: s.Addresses()[i%len(s.Instances)], User: user, Up: up})
	}
	return streams
}

// Join makes one list of streams of several. The i-th of them are those from at[i] to at[i+1].
func Join(lists ...[]transfer.Stream) (all []transfer.Stream, at []int) {
	for _, l := range lists {
		at = append(at, len(all))
		all = append(all, l...)
	}
	return all, append(at, len(all))
}

// CheckRate fails the test if streams failed, or moved more or less than so many MiB a second.
func CheckRate(t testing.TB, r transfer.Report, what string, from, to time.Duration, want float64) {
	t.Helper()
	CheckRateUpTo(t, r, what, from, to, want, 1)
}

// CheckRateUpTo is CheckRate where up to so many limits may be moved.
func CheckRateUpTo(t testing.TB, r transfer.Report, what string, from, to time.Duration, want, limits float64) {
	t.Helper()
	for _, e := range r.Errors {
		t.Error(e)
	}
	if got := r.Rate(from, to) / MiB; got < leastRate*want || got > mostRate*limits*want {
		t.Errorf("%s: %.2f MiB/s from %v to %v, want %.2f to %.2f", what, got, from, to, leastRate*want, mostRate*limits*want)
	} else {
		t.Logf("%s: %.3f of %v MiB/s", what, got/want, want)
	}
}
