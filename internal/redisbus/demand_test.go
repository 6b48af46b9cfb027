package redisbus_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

var report = rapid.Custom(func(t *rapid.T) bandwidth.Report {
	number := rapid.Int64Min(0)
	both := func(name string) [2]int64 { return [2]int64{number.Draw(t, name), number.Draw(t, name)} }
	return bandwidth.Report{
		User:   user.Filter(func(u string) bool { return u != "" }).Draw(t, "user"),
		Active: rapid.IntRange(0, 3).Draw(t, "active"),
		Moved:  both("moved"), Most: both("most"), Share: both("share"),
	}
})

func demand(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Demand{})
	rapid.Check(t, func(rt *rapid.T) {
		s.do(t, "FLUSHALL")
		instance := rapid.SampledFrom([]string{"a", "b 1:x\x00\xff", "7"}).Draw(rt, "instance")
		for _, reports := range rapid.SliceOfN(rapid.SliceOfN(report, 1, 5), 1, 4).Draw(rt, "calls") {
			want := make(redisbus.Demand, 0, len(reports))
			for _, r := range reports {
				r.Instance = instance
				want = append(want, r)
			}
			if err := b.Demand(context.Background(), instance, reports); err != nil {
				rt.Fatalf("Demand(%+v) = %v", reports, err)
			}
			if diff := cmp.Diff(redisbus.Event(want), ear.next(t)); diff != "" {
				rt.Fatalf("Demand(%+v) is heard as (-want +got):\n%s", reports, diff)
			}
		}
		if n := s.do(t, "DBSIZE"); n != int64(0) {
			rt.Fatalf("%d keys, want none: polygen hears the reports, and nobody reads them later", n)
		}
	})
}

func demandRefuses(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	tests := []struct {
		name   string
		report bandwidth.Report
		err    string
	}{
		{"nobody", bandwidth.Report{Active: 1}, "report demand: no user"},
		{"a negative count", bandwidth.Report{User: "u", Active: -1}, "report demand: number -1 is negative"},
		{"negative bytes", bandwidth.Report{User: "u", Moved: [2]int64{0, -2}}, "report demand: number -2 is negative"},
		{"a negative share", bandwidth.Report{User: "u", Share: [2]int64{-3, 0}}, "report demand: number -3 is negative"},
	}
	for _, tt := range tests {
		err := b.Demand(context.Background(), "a", []bandwidth.Report{{User: "good", Active: 1}, tt.report})
		if err == nil || err.Error() != tt.err {
			t.Errorf("Demand(%s) = %v, want %s", tt.name, err, tt.err)
		}
	}
	if err := b.Demand(context.Background(), "a", nil); err != nil {
		t.Errorf("Demand(nothing) = %v", err)
	}
	if n := s.do(t, "DBSIZE"); n != int64(0) {
		t.Errorf("%d keys, want none: a bad report fails the call before anything is sent", n)
	}
}

func demandDivides(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 3})
	ear := listenToReports(t, b, redisbus.Demand{})
	var reports []bandwidth.Report
	for i := range 1500 {
		reports = append(reports, bandwidth.Report{User: fmt.Sprint(i), Active: i + 1})
	}
	testkit.Must(t, b.Demand(context.Background(), "a", reports))
	active := map[string]int{}
	for len(active) < len(reports) {
		d := ear.next(t).(redisbus.Demand)
		if len(d) > 256 {
			t.Errorf("a message of %d reports: what is published after it waits for it", len(d))
		}
		for _, r := range d {
			if _, twice := active[r.User]; twice {
				t.Fatalf("user %s was published twice", r.User)
			}
			active[r.User] = r.Active
		}
	}
	for _, r := range reports {
		if active[r.User] != r.Active {
			t.Errorf("user %s has %d in progress, want %d", r.User, active[r.User], r.Active)
		}
	}
}
