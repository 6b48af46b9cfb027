package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/apitest"
)

func TestStateLine(t *testing.T) {
	for _, tt := range []struct {
		name string
		user api.User
		want string
	}{
		{"who is refused", apitest.Cluster().Bob, `2026-11-20T12:00:00.250Z throttled: GET until 12:00:01.000; ` +
			`GET 12/10 (last 10), */minute 12/500+7 (last 10) (dry-run), concurrent 5/5, down 1.5 MiB/s of 10 MiB/s; ` +
			`one 3 of 4 slots, down 1.5 MiB/s of 8.0 MiB/s; "\x1b[31mred\a" 2 of 1 slots, up 9 B/s of none`},
		{"who is blocked, and would be throttled", api.User{From: api.From{Time: apitest.Noon}, State: api.Blocked, Seen: &apitest.Noon,
			Why: []api.Why{{Limit: "concurrent", Mode: "enforce"}, {Limit: "GET", Mode: "dry-run", Until: &apitest.Noon}}},
			"2026-11-20T12:00:00.250Z blocked: concurrent until less is in progress, GET until 12:00:00.250 (dry-run); no limit"},
		{"who was never heard of", api.User{From: api.From{Time: apitest.Noon}, State: api.OK},
			"2026-11-20T12:00:00.250Z ok, nothing was heard of the user; no limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, stateLine(tt.user)); diff != "" {
				t.Errorf("stateLine() (-want +got):\n%s", diff)
			}
		})
	}
}

// Each decision is told once, whichever polygen answers.
func TestStory(t *testing.T) {
	at := func(s int, kind api.Kind, count int) api.Decision {
		return api.Decision{Time: apitest.Noon.Add(time.Duration(s) * time.Second), Kind: kind, Limit: "l", Mode: "enforce", Count: count}
	}
	one := func(d ...api.Decision) api.User {
		return api.User{From: api.From{Polygen: "one"}, State: api.OK, Decisions: d}
	}
	other := one(at(7, api.Block, 0), at(2, api.Throttle, 0))
	other.Polygen = "two"
	raised := other
	raised.Limits = []api.Limit{{Name: "GET", Max: 3}}
	why := raised
	why.Why = []api.Why{{Limit: "GET", Mode: "dry-run"}}
	same := why
	same.Why = []api.Why{{Limit: "GET", Mode: "dry-run", Since: apitest.Noon, Until: &apitest.Noon}}
	same.InProgress = 3
	var s story
	for _, step := range []struct {
		name    string
		user    api.User
		fresh   []api.Decision
		changed bool
	}{
		{"what was before is not told", one(at(1, api.Throttle, 0)), nil, true},
		{"nothing is new", one(at(1, api.Throttle, 0)), nil, false},
		{"the oldest first", one(at(3, api.Refused, 2), at(2, api.Throttle, 0), at(1, api.Throttle, 0)), []api.Decision{at(2, api.Throttle, 0), at(3, api.Refused, 2)}, false},
		{"refusals that are added", one(at(3, api.Refused, 7), at(2, api.Throttle, 0), at(1, api.Throttle, 0)), []api.Decision{at(3, api.Refused, 5)}, false},
		{"what is forgotten is no news, and one at the same time is", one(at(3, api.Block, 0), at(3, api.Refused, 7), at(2, api.Throttle, 0)), []api.Decision{at(3, api.Block, 0)}, false},
		{"another polygen tells what it saw since", other, []api.Decision{at(7, api.Block, 0)}, false},
		{"a limit is another", raised, nil, true},
		{"there is a reason", why, nil, true},
		{"the same reason at another time is no change, nor is use", same, nil, false},
	} {
		fresh, changed := s.addNews(step.user)
		if diff := cmp.Diff(step.fresh, fresh); diff != "" || changed != step.changed {
			t.Errorf("%s: next() is changed %v, want %v (-want +got):\n%s", step.name, changed, step.changed, diff)
		}
	}
}

// One line for each interval, and what happens in between at once.
func TestWatchLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		ask := func(context.Context) (api.User, error) {
			s := int(time.Since(began) / time.Second)
			u := api.User{From: api.From{Polygen: "one", Time: time.Now()}, State: api.OK, Seen: &began, Limits: []api.Limit{{Name: "concurrent", Max: 9, Used: int64(s), Mode: "enforce"}}}
			switch {
			case s == 4:
				u.State = api.Blocked
			case s == 8 || s == 9:
				return u, errors.New("nothing listens")
			case s > 10:
				stop()
			}
			if s >= 5 {
				u.Decisions = []api.Decision{{Time: began.Add(4500 * time.Millisecond), Kind: api.Unblock, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce"}}
			}
			return u, nil
		}
		var out, errs bytes.Buffer
		if err := (Options{Interval: 3 * time.Second}).follow(ctx, ask, &out, &errs); err != nil {
			t.Errorf("follow() = %v, want nil after Ctrl-C", err)
		}
		want := `2000-01-01T00:00:00.000Z ok; concurrent 0/9
2000-01-01T00:00:03.000Z ok; concurrent 3/9
2000-01-01T00:00:04.000Z blocked; concurrent 4/9
2000-01-01T00:00:04.500Z decision: unblock concurrent (concurrent-requests)
2000-01-01T00:00:05.000Z ok; concurrent 5/9
2000-01-01T00:00:06.000Z ok; concurrent 6/9
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("standard output (-want +got):\n%s", diff)
		}
		if want := "sluice watch: no answer since 2000-01-01T00:00:07Z: nothing listens\nsluice watch: there are answers again, after 3s\n"; errs.String() != want {
			t.Errorf("standard error %q, want %q", &errs, want)
		}
	})
}

// JSON is one object a line, and nothing that a terminal would obey.
func TestWatchJSON(t *testing.T) {
	u := apitest.Cluster().Bob
	u.User = apitest.Evil[2]
	var told story
	told.addNews(api.User{From: u.From})
	var out bytes.Buffer
	if err := (Options{JSON: true}).printNews(&out, u, &told, true); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := `{"time":"2026-11-20T12:00:00.25Z","user":"\u009b2J","endpoint":"","decision":{"time":"2026-11-20T12:00:00.25Z","kind":"throttle","limit":"GET","reason":"request-rate","cause":"throttle-table","mode":"enforce"}}`; lines[0] != want {
		t.Errorf("the decision is %s, want %s", lines[0], want)
	}
	var got api.User
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil || len(lines) != 2 {
		t.Fatalf("%d lines, %v: %s", len(lines), err, &out)
	}
	if diff := cmp.Diff(u, got); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	if err := apitest.PrintableOnly(out.String()); err != nil {
		t.Error(err)
	}
}
