package scene

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
)

// MiB is so many bytes.
const MiB = 1 << 20

// The band of a rate, as fractions of the limit, over two seconds and more. BenchmarkLoadBandwidth measures how exact a rate
// is; a busy machine delivers late what HAProxy let through in time, or not all of it.
const leastRate, mostRate = 0.6, 1.15

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
	CheckRateBetween(t, r, what, from, to, leastRate*want, mostRate*want)
}

// CheckRateBetween is CheckRate with a band.
func CheckRateBetween(t testing.TB, r transfer.Report, what string, from, to time.Duration, least, most float64) {
	t.Helper()
	for _, e := range r.Errors {
		t.Error(e)
	}
	got := r.Rate(from, to) / MiB
	if t.Logf("%s: %.2f MiB/s", what, got); got < least || got > most {
		t.Errorf("%s: %.2f MiB/s from %v to %v, want %.2f to %.2f", what, got, from, to, least, most)
	}
}
