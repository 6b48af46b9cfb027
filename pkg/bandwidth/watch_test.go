package bandwidth_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

var t0 = time.Unix(1_700_000_000, 0)

// A watchStep is something that polygen hears, some time after the beginning, and
// what it sends.
type watchStep struct {
	at     time.Duration
	report string // "<instance> <active> <most down> <share down>"; "": a tick
	limit  int64  // down; 0: 1000
	live   []string
	want   string // "a=500 b=500", down
}

func TestWatch(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		steps []watchStep
	}{
		{"whoever has requests in progress has a part at once", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 3 0 0", want: "a=252 b=747"},
			{at: 2 * ms, report: "b 0 0 747", want: "a=1000"},
			{at: 3 * ms, report: "a 0 0 1000"},
		}},
		{"an end of someone who never began is nothing", []watchStep{{at: 0, report: "a 0 0 0"}, {at: 1 * ms}}},
		{"more requests change shares, at most every 50 ms", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 10 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 20 * ms, report: "b 3 0 500"},
			{at: 40 * ms},
			{at: 70 * ms, want: "a=252 b=747"},
		}},
		{"who can use less leaves the rest, and gets it back", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 100 * ms, report: "b 1 100 500", want: "a=900 b=100"},
			{at: 200 * ms, report: "b 1 0 100", want: "a=500 b=500"},
		}},
		{"little changes are not sent", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 100 0", want: "a=900 b=100"},
			{at: 100 * ms, report: "b 1 103 100"},
			{at: 200 * ms, report: "b 1 106 100", want: "a=894 b=106"},
			{at: 300 * ms, report: "b 1 300 106", want: "a=700 b=300"},
			{at: 400 * ms, report: "b 1 307 300"},
			{at: 500 * ms, report: "b 1 20 300", want: "a=980 b=20"},
			{at: 600 * ms, report: "b 1 24 20"},
			{at: 700 * ms, report: "b 1 26 20", want: "a=974 b=26"},
		}},
		{"shares are repeated", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1900 * ms, report: "a 1 0 1000"}, {at: 3800 * ms, report: "a 1 0 1000"}, {at: 5700 * ms, report: "a 1 0 1000"},
			{at: 7600 * ms, report: "a 1 0 1000"}, {at: 9500 * ms, report: "a 1 0 1000"},
			{at: 9990 * ms},
			{at: 11400 * ms, report: "a 1 0 1000"},
			{at: 12000 * ms, want: "a=1000"},
		}},
		{"an instance that has missed its share is told again, but not too soon", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 240 * ms, report: "a 1 0 0"},
			{at: 250 * ms, report: "a 1 0 0", want: "a=1000"},
			{at: 490 * ms, report: "a 1 0 700"},
			{at: 500 * ms, report: "a 1 0 700", want: "a=1000"},
			{at: 800 * ms, report: "a 1 0 1000"},
		}},
		{"an instance that falls silent has nothing after 2 s", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 1500 * ms, report: "a 1 0 500"},
			{at: 1990 * ms},
			{at: 2010 * ms, want: "a=1000"},
		}},
		{"an instance that is gone has nothing", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 10 * ms, live: []string{"a", "b"}},
			{at: 20 * ms, live: []string{"a"}, want: "a=1000"},
		}},
		{"of instances that are gone together none has what another one had", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 10 * ms, live: []string{"c"}},
		}},
		{"another limit is divided at once", []watchStep{
			{at: 0, report: "a 1 0 0", want: "a=1000"},
			{at: 1 * ms, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 2 * ms, report: "b 1 0 500", limit: 400, want: "a=200 b=200"},
			{at: 3 * ms, report: "b 1 0 500", limit: -1},
		}},
		{"a user without a limit is not watched", []watchStep{{at: 0, report: "a 1 0 0", limit: -1}}},
		{"the clock is set back", []watchStep{
			{at: time.Hour, report: "a 1 0 0", want: "a=1000"},
			{at: 0, report: "b 1 0 0", want: "a=500 b=500"},
			{at: 60 * ms, report: "b 3 0 500", want: "a=252 b=747"},
			{at: 120 * ms},
			{at: 2000 * ms, report: "b 3 0 747"},
			{at: 2200 * ms, want: "b=1000"}, // nothing was heard of a since then
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := bandwidth.NewWatch()
			for _, s := range tt.steps {
				at := t0.Add(s.at)
				limit := [2]int64{1000, 0}
				if s.limit != 0 {
					limit[bandwidth.Down] = max(0, s.limit)
				}
				switch {
				case s.live != nil:
					w.Instances(at, s.live)
				case s.report != "":
					r := bandwidth.Report{User: "alice"}
					if _, err := fmt.Sscan(s.report, &r.Instance, &r.Active, &r.Most[0], &r.Share[0]); err != nil {
						t.Fatal(err)
					}
					w.Observe(at, r, limit)
				default:
					w.Tick(at)
				}
				got := ""
				for _, sharing := range w.Sharings() {
					for _, share := range sharing.Shares {
						got += fmt.Sprintf(" %s=%d", share.Instance, share.Bytes)
					}
				}
				if want := s.want; got != want && got != " "+want {
					t.Errorf("at %v (%s) shares =%s, want %s", s.at, s.report, got, want)
				}
			}
		})
	}
}

func TestWatchDirectionsAreApart(t *testing.T) {
	w := bandwidth.NewWatch()
	limit := [2]int64{1000, 500}
	w.Observe(t0, bandwidth.Report{Instance: "a", User: "bob", Active: 1}, limit)
	w.Observe(t0, bandwidth.Report{Instance: "a", User: "alice", Active: 1}, limit)
	w.Observe(t0, bandwidth.Report{Instance: "b", User: "alice", Active: 1, Most: [2]int64{0, 100}}, limit)
	want := []bandwidth.Sharing{
		{User: "alice", Direction: bandwidth.Down, Shares: []bandwidth.Share{{Instance: "a", Bytes: 500}, {Instance: "b", Bytes: 500}}},
		{User: "alice", Direction: bandwidth.Up, Shares: []bandwidth.Share{{Instance: "a", Bytes: 400}, {Instance: "b", Bytes: 100}}},
		{User: "bob", Direction: bandwidth.Down, Shares: []bandwidth.Share{{Instance: "a", Bytes: 1000}}},
		{User: "bob", Direction: bandwidth.Up, Shares: []bandwidth.Share{{Instance: "a", Bytes: 500}}},
	}
	if diff := cmp.Diff(want, w.Sharings()); diff != "" {
		t.Errorf("Sharings: sorted, the last word of each (-want +got):\n%s", diff)
	}
	if got := w.Sharings(); len(got) != 0 {
		t.Errorf("Sharings(again) = %v, want none", got)
	}
}

// A division concerns who has a share, and who had one in the division before.
func TestSharingConcerns(t *testing.T) {
	const ms = time.Millisecond
	w, ticked := bandwidth.NewWatch(), time.Duration(0)
	for _, s := range []struct {
		at      time.Duration
		reports string // instances with a request in progress; "-a": a has none any more
		want    string
	}{
		{0, "a", "[a]"},
		{10 * ms, "b", "[a b]"},
		{20 * ms, "-a", "[a b]"},
		{30 * ms, "c", "[b c]"},
		{40 * ms, "d -c", "[b c d]"}, // of the division between nobody heard
		{50 * ms, "-b -d", "[b d]"},  // the last one has its share on
		{4 * time.Second, "a", "[a d]"},
		{5 * time.Second, "-a", ""},
		{20 * time.Second, "b", "[b]"}, // by then the agent has forgotten the user
	} {
		for ; ticked < s.at; ticked += 50 * ms {
			w.Tick(t0.Add(ticked))
		}
		w.Sharings() // repetitions
		for report := range strings.FieldsSeq(s.reports) {
			instance, ended := strings.CutPrefix(report, "-")
			r := bandwidth.Report{User: "alice", Instance: instance, Active: 1}
			if ended {
				r.Active = 0
			}
			w.Observe(t0.Add(s.at), r, [2]int64{1000, 0})
		}
		got := ""
		for _, sharing := range w.Sharings() {
			got += fmt.Sprint(sharing.Concerned())
		}
		if got != s.want {
			t.Errorf("at %v (%s) it concerns %s, want %s", s.at, s.reports, got, s.want)
		}
	}
}

func TestWatchForgets(t *testing.T) {
	w := bandwidth.NewWatch()
	for i := range 1000 {
		w.Observe(t0, bandwidth.Report{Instance: "a", User: fmt.Sprint(i), Active: i % 2}, [2]int64{1000, 0})
	}
	w.Tick(t0.Add(time.Second))
	if got := w.WatchedUsers(); got != 500 {
		t.Errorf("Users() = %d, want the 500 with requests in progress", got)
	}
	for at := time.Second; at <= 9*time.Second; at += 50 * time.Millisecond {
		w.Tick(t0.Add(at))
	}
	if got := w.WatchedUsers(); got != 0 {
		t.Errorf("Users() after 9 s of silence = %d, want 0", got)
	}
}
