package redisbus_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/cost"
	rates "github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Of each limit the pools of two windows are read, of that user alone.
func chargesAreRead(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 2})
	const noon = 1_800_014_400 // a full day and 12 hours
	minute := rates.Cost{Unit: "tokens", Window: rates.Minute, Max: 100}
	day := rates.Cost{Unit: "tokens", Window: rates.Day, Max: 1000}
	pages := rates.Cost{Unit: "pages", Window: rates.Day, Max: 10, Calendar: rates.NewCalendar(time.UTC, 6*time.Hour, 1)}
	pools, seq := cost.Pools{}, uint64(0)
	charge := func(user string, second, n int64, of ...rates.Cost) {
		t.Helper()
		seq++
		ask := cost.Ask{User: user, Seq: seq, Forced: true}
		for _, c := range of {
			ask.Entries = append(ask.Entries, cost.Entry{Unit: c.Unit, Window: c.Window, Start: c.WindowStart(second), Before: c.Previous(second), Limit: c.Max, Change: n})
		}
		if _, err := b.Charge(t.Context(), "a", []cost.Ask{ask}); err != nil {
			t.Fatal(err)
		}
		pools.Take(ask)
	}
	charge("alice", noon-3*86400, 7, day) // too long ago
	charge("alice", noon-86400, 1100, day, pages)
	charge("alice", noon-60, 30, minute)
	charge("alice", noon, 40, minute, day)
	charge("alice", noon, 1, rates.Cost{Unit: "joules", Window: rates.Day, Max: 9}) // not asked for
	charge("bob", noon, 5, minute, pages)

	read := func(user string, of ...rates.Cost) cost.Pools {
		t.Helper()
		got, err := b.Charges(t.Context(), user, slices.Values(of), noon)
		testkit.Must(t, err)
		return got
	}
	want := maps.Clone(pools)
	maps.DeleteFunc(want, func(p cost.Pool, _ cost.Total) bool {
		return p.User != "alice" || p.Unit == "joules" || p.Start < noon-2*86400
	})
	if diff := cmp.Diff(want, read("alice", minute, day, pages)); diff != "" || len(want) != 5 {
		t.Errorf("alice's %d pools (-want +got):\n%s", len(want), diff)
	}
	for user, of := range map[string][]rates.Cost{"nobody": {minute, day}, "alice": nil} {
		if got := read(user, of...); len(got) > 0 {
			t.Errorf("of %s with %d limits: %v, want none", user, len(of), got)
		}
	}

	// Of requests the same, of windows longer than a second.
	get := rates.Rate{Class: "GET", Window: rates.Day}
	ask := func(user string, w rates.Window, start int64, n int) ratelimit.Ask {
		return ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: user, Window: w}, WindowStart: start, Limit: 1000, Debt: n}
	}
	today, _ := get.Bounds(noon)
	_, err := b.Take(t.Context(), "a", []ratelimit.Ask{ask("alice", rates.Day, today, 4), ask("alice", rates.Day, today-86400, 5),
		ask("alice", rates.Day, today-2*86400, 6), ask("alice", rates.Hour, noon, 7), ask("bob", rates.Day, today, 8)})
	testkit.Must(t, err)
	totals, err := b.Totals(t.Context(), "alice", slices.Values([]rates.Rate{{Class: "GET"}, get, {Class: "PUT", Window: rates.Month}}), noon)
	testkit.Must(t, err)
	month, _ := rates.Rate{Window: rates.Month}.Bounds(noon)
	of := func(class string, w rates.Window, second int64, total int) redisbus.UsageEntry {
		return redisbus.UsageEntry{Second: second, Key: ratelimit.Key{Class: class, User: "alice", Window: w}, Total: total}
	}
	if diff := cmp.Diff([]redisbus.UsageEntry{of("GET", rates.Day, today-86400, 5), of("GET", rates.Day, today, 4),
		of("PUT", rates.Month, (*rates.Calendar)(nil).Previous(rates.Month, noon), 0), of("PUT", rates.Month, month, 0)}, totals); diff != "" {
		t.Errorf("alice's requests (-want +got):\n%s", diff)
	}

	// What another version wrote is an error, not a number.
	for _, key := range s.do(t, "KEYS", "*:cost:day:*").([]any) {
		for field := range s.hash(t, key.(string)) {
			s.do(t, "HSET", key, field, "12 x")
		}
	}
	if got, err := b.Charges(t.Context(), "alice", slices.Values([]rates.Cost{day}), noon); err == nil || errors.Is(err, redisbus.ErrUnavailable) {
		t.Errorf("of a pool that cannot be read: %v, %v, want an error", got, err)
	}
}
