// Package apitest has a polygen that always answers the same, for tests of those who ask.
package apitest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	polygenapi "github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/cause"
)

// Fixed is a polygen that always answers the same.
type Fixed struct {
	polygenapi.API
	List api.Users
	Bob  api.User // the answer for every name
}

func (f *Fixed) Users(by api.Sort, n int) api.Users {
	u := f.List
	u.Sort, u.Users = by, u.Users[:min(n, len(u.Users))]
	return u
}

func (f *Fixed) User(who api.Who) api.User {
	u := f.Bob
	u.Name = who.Name()
	return u
}

// Serve serves an API until the server is closed.
func Serve(api polygenapi.API) *httptest.Server { return httptest.NewServer(Handler(api)) }

func Handler(api polygenapi.API) http.Handler {
	hand, _ := api.(polygenapi.Overrider)
	return daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: polygenapi.Routes(api, nil, hand)})
}

var Noon = time.Date(2026, 11, 20, 12, 0, 0, 250e6, time.UTC)

// Evil are names that a terminal must not get: an escape sequence, a byte that is no
// UTF-8, a control character beyond ASCII, and one that turns the direction of text.
var Evil = []string{"\x1b[31mred\x07", "\xff\xfe", "\u009b2J", "\u202egnp"}

// Cluster is what the fixed polygen knows.
func Cluster() *Fixed {
	ago := func(d time.Duration) time.Time { return Noon.Add(-d) }
	until, last := Noon.Add(750*time.Millisecond), func(n int64) *int64 { return &n }
	f := &Fixed{}
	add := func(name string, s api.Summary) {
		s.Name = api.NameOfUser(name)
		f.List.Users = append(f.List.Users, s)
	}
	add("alice", api.Summary{Tier: "pro", Known: true, State: api.OK, Rate: 80, InProgress: 3, Down: 3 << 19, Seen: ago(300 * time.Millisecond),
		Near: &api.Near{Limit: "GET", Max: 100, Window: 1, Mode: "enforce", Used: 80}})
	add("carol d", api.Summary{Tier: "free", State: api.Throttled, Rate: 4.25, Refused: 7.5, Up: 12, Seen: ago(0),
		Near: &api.Near{Limit: "PUT", Max: 4, Window: 1, Mode: "enforce", Used: 5}})
	add("~AB", api.Summary{Tier: "free", State: api.Blocked, InProgress: 7, Seen: ago(200 * time.Second),
		Near: &api.Near{Limit: "concurrent", Max: 8, Mode: "dry-run", Used: 7}})
	add("#root", api.Summary{Tier: "staff", State: api.OK, Seen: Noon.Add(time.Second)})
	for _, name := range Evil {
		add(name, api.Summary{Tier: "free", State: api.OK, Seen: ago(0)})
	}
	f.List.From = api.From{Polygen: "one", Leading: true, Version: "0123456789ab", Time: Noon}
	f.List.Seen = 12
	f.Bob = api.User{
		From: f.List.From, State: api.Throttled, Seen: &Noon, InProgress: 5,
		Why: []api.Why{{Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: Noon, Until: &until}},
		Limits: []api.Limit{{Name: "GET", Max: 10, Window: 1, Mode: "enforce", Used: 12, Last: last(10)},
			{Name: "*/minute", Max: 500, Window: 60, Burst: 7, Mode: "dry-run", Used: 12, Last: last(10)},
			{Name: "concurrent", Max: 5, Mode: "enforce", Used: 5},
			{Name: "bandwidth.down", Max: 10 << 20, Mode: "enforce", Used: 3 << 19}},
		Instances: []api.Place{{Instance: "one", InProgress: 3, Slots: 4, Down: 3 << 19, DownShare: 8 << 20}, {Instance: Evil[0], InProgress: 2, Slots: 1, Up: 9}},
		Decisions: []api.Decision{{Time: Noon, Kind: api.Throttle, Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce"}},
	}
	return f
}

// PrintableOnly is what is wrong with a text that a terminal gets: nothing, or what
// it might obey.
func PrintableOnly(s string) error {
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if clean := terminal.Printable(line); clean != line {
			return fmt.Errorf("a terminal gets %q", line)
		}
	}
	return nil
}
