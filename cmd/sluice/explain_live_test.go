package main

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	polygenapi "github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// told answers every question about a user with the same.
type told struct {
	polygenapi.API
	user  api.User
	asked string
}

func (a *told) User(who api.Who) api.User {
	a.asked = fmt.Sprintf("%q", who.User)
	return a.user
}

// explained runs "sluice explain" against a polygen that knows this.
func explained(t *testing.T, u api.User, args ...string) (stdout, asked string) {
	t.Helper()
	file := apitest.WriteFile(t, t.TempDir(), "limits.yaml", goodLimits)
	api := &told{user: u}
	server := apitest.Serve(api)
	t.Cleanup(server.Close)
	var out, errs bytes.Buffer
	args = append(append([]string{"explain"}, args...), "--limits", file, "--admin", server.Listener.Addr().String())
	if code := runCommand(args, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Fatalf("sluice %q ended with %d: %s", args, code, &errs)
	}
	text := strings.NewReplacer(file, "FILE", server.Listener.Addr().String(), "ADDR").Replace(out.String())
	_, live, ok := strings.Cut(text, "\n\n")
	if !ok {
		t.Fatalf("sluice %q printed nothing of polygen:\n%s", args, text)
	}
	return live, api.asked
}

func TestExplainLive(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 30, 0, 250e6, time.UTC)
	until, left := now.Add(750*time.Millisecond), int64(488)
	last := int64(10)
	from := api.From{Polygen: "one", Leading: true, Version: versionOf(t), Time: now}
	for _, tt := range []struct {
		name, want string
		user       api.User
	}{
		{"who is refused", `polygen one at ADDR, leading, limits version VERSION
state: blocked; last heard of at 12:30:00.250
  GET         request-rate         since 12:30:00.250  until 12:30:01.000
  concurrent  concurrent-requests  since 12:30:00.250  until less is in progress
use:
  GET             12 of 10 this second, 10 in the last
  */minute        12 of 500 and a burst of 7 this minute, 10 in the last  dry-run: nobody is refused
  concurrent      5 of 5 in progress
  tokens/day      12 of 500 this day, 10 in the last; 488 left until 2026-11-20T12:30:01Z
  bandwidth.down  1.5 MiB/s of 10 MiB/s
requests started:
  *            12.5/s
  GET          10.0/s
  "PUT\x1b"    2.5/s  no limit of its own
  in progress  5
instances:
             in progress  slots  down       share      up     share
  one        3            4      1.5 MiB/s  8.0 MiB/s  0 B/s  none
  "two\x1b"  2            1      0 B/s      none       9 B/s  2.0 KiB/s
last refusals:
  2026-11-20T12:30:00Z  throttle   GET         request-rate
  2026-11-20T12:30:00Z  refused 7  concurrent  concurrent-requests  dry-run: nobody is refused
`, api.User{
			From: from, State: api.Blocked, Seen: &now, InProgress: 5, Started: map[string]float64{"*": 12.5, "GET": 10, "PUT\x1b": 2.5},
			Why: []api.Why{{Limit: "GET", Reason: api.RequestRate, Mode: "enforce", Since: now, Until: &until},
				{Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce", Since: now}},
			Limits: []api.Limit{{Name: "GET", Max: 10, Window: 1, Mode: "enforce", Used: 12, Last: &last},
				{Name: "*/minute", Max: 500, Window: 60, Burst: 7, Mode: "dry-run", Used: 12, Last: &last},
				{Name: "concurrent", Max: 5, Mode: "enforce", Used: 5},
				{Name: "tokens/day", Unit: "tokens", Max: 500, Window: 86400, Mode: "enforce", Used: 12, Last: &last, Left: &left, Resets: &until},
				{Name: "bandwidth.down", Max: 10 << 20, Mode: "enforce", Used: 3 << 19}},
			Instances: []api.Place{{Instance: "one", InProgress: 3, Slots: 4, Down: 3 << 19, DownShare: 8 << 20}, {Instance: "two\x1b", InProgress: 2, Slots: 1, Up: 9, UpShare: 2048}},
			Decisions: []api.Decision{{Time: now, Kind: api.Throttle, Limit: "GET", Reason: api.RequestRate, Mode: "enforce"},
				{Time: now, Kind: api.Refused, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "dry-run", Count: 7}},
		}},
		{"who was never heard of", `polygen one at ADDR, following, limits version other
  these are not those of FILE, which has version VERSION: the use below is against polygen's
state: ok; nothing was heard of the user
use:
  no limit
requests started:
  none in the last seconds
last refusals:
  none known
`, api.User{From: api.From{Polygen: "one", Version: "other"}, State: api.OK}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, asked := explained(t, tt.user, "a/b c")
			want := strings.ReplaceAll(tt.want, "VERSION", versionOf(t))
			if diff := cmp.Diff(want, got); diff != "" || asked != `"a/b c"` {
				t.Errorf("asked for %s, printed (-want +got):\n%s", asked, diff)
			}
		})
	}
}

// decisions is a polygen with a stream of decisions that ends.
type decisions struct {
	told
	polygenapi.Live
	events []api.Event
	filter api.Filter
}

func (d *decisions) Policies(f api.Filter) (<-chan *api.Message, func(), error) {
	d.filter = f
	events := make(chan *api.Message, len(d.events))
	for i := range d.events {
		events <- &api.Message{Event: string(d.events[i].Kind), Value: &d.events[i]}
	}
	close(events)
	return events, func() {}, nil
}

func TestExplainFollowsDecisions(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 30, 0, 250e6, time.UTC)
	until := at.Add(750 * time.Millisecond)
	polygen := &decisions{told: told{user: api.User{From: api.From{Polygen: "one"}, State: api.OK}}, events: []api.Event{
		{Time: at, Kind: api.ThrottleEvent, Name: api.NameOf("a/b c"), Limit: "GET", Reason: api.RequestRate, Until: &until, Mode: "enforce"},
		{Time: until, Kind: api.BlockEvent, Name: api.NameOf("a/b c"), Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "dry-run"},
		{Time: until, Kind: api.OverrideEvent, Name: api.NameOf("a/b c"), Until: &until, Note: "launch\x1b"},
		{Time: until, Kind: api.LostEvent, Count: 3},
	}}
	server := httptest.NewServer(daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: polygenapi.Routes(polygen, polygen, nil)}))
	defer server.Close()
	file := apitest.WriteFile(t, t.TempDir(), "limits.yaml", goodLimits)
	address := server.Listener.Addr().String()
	var out, errs bytes.Buffer
	code := runCommand([]string{"explain", "a/b c", "--limits", file, "--admin", address, "--follow"}, &out, &errs)
	if want := "sluice explain: " + address + " has ended the stream\n"; code != 1 || errs.String() != want {
		t.Errorf("it ended with %d and %q, want 1 and %q", code, &errs, want)
	}
	_, got, _ := strings.Cut(out.String(), "last refusals:\n  none known\n")
	want := `2026-11-20T12:30:00.250Z throttle GET (request-rate) until 12:30:01.000
2026-11-20T12:30:01.000Z block concurrent (concurrent-requests), dry-run: nobody is refused
2026-11-20T12:30:01.000Z override until 12:30:01.000: launch\x1b
2026-11-20T12:30:01.000Z lost 3 decisions: they came too fast
`
	if diff := cmp.Diff(want, got); diff != "" || polygen.filter.User != "a/b c" || len(polygen.filter.Kinds) != 4 {
		t.Errorf("asked for %+v, printed (-want +got):\n%s", polygen.filter, diff)
	}
}

// versionOf is what check says of goodLimits.
func versionOf(t *testing.T) string {
	t.Helper()
	file := apitest.WriteFile(t, t.TempDir(), "limits.yaml", goodLimits)
	var out bytes.Buffer
	if code := runCommand([]string{"check", file}, &out, &out); code != 0 {
		t.Fatalf("sluice check: %s", &out)
	}
	_, version, _ := strings.Cut(out.String(), "version ")
	return version[:12]
}
