package polygen

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// What is heard and decided can be asked for, of a follower too.
func TestAnswers(t *testing.T) {
	for _, leading := range []bool{true, false} {
		t.Run(fmt.Sprintf("leading %v", leading), func(t *testing.T) {
			g := newGenerator(t, "127.0.0.1:1", "polygen", nil) // nobody is there
			g.pretend(leading)
			now := g.clock.Now()
			g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{
				{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: now.Unix(), Total: 10},
			}})
			g.observe(now, redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{{User: "alice", Held: 6, Active: 5, Refused: 2, Limit: 5}}})
			g.observe(now, redisbus.Demand{{Instance: "one", User: "mover", Active: 1, Moved: [2]int64{7, 8}, Share: [2]int64{9, 10}}})
			g.observe(now, redisbus.Registry{Instances: []string{"one", "two"}, Versions: map[string]string{"one": g.set.Load().Version()}, Now: now})
			g.sendPolicies(t.Context())

			from := api.From{Polygen: "polygen", Leading: leading, Version: g.set.Load().Version()}
			got := g.User("alice")
			if got.Time.Before(now.Add(-time.Second)) || got.Time.After(now.Add(time.Hour)) || got.Seen == nil {
				t.Errorf("User() answered at %v of what was seen at %v, want %v", got.Time, got.Seen, now)
			}
			var kinds []string
			for _, d := range got.Decisions {
				kinds = append(kinds, string(d.Kind)+" "+d.Limit)
			}
			if want := "block concurrent, throttle GET, refused concurrent"; strings.Join(kinds, ", ") != want {
				t.Errorf("decisions %q, want %s", kinds, want)
			}
			origin := func(field string) *api.Origin { return &api.Origin{Field: field, File: g.file, Line: 4} }
			want := api.User{
				From: from, Name: api.Name{User: "alice", Href: "/api/v1/users/alice"}, Tier: "free", State: api.Blocked,
				Limits: []api.Limit{
					{Name: "*", Max: 20, Window: 1, Mode: "enforce", Last: new(int64), Origin: origin("requests.*")},
					{Name: "GET", Max: 10, Window: 1, Mode: "enforce", Last: new(int64), Origin: origin("requests.GET")},
					{Name: "concurrent", Max: 5, Mode: "enforce", Used: 5, Origin: origin("concurrent")},
				},
				InProgress: 5, Instances: []api.Place{{Instance: "one", InProgress: 5, Slots: 6}},
			}
			// Whether the second is still the same is the clock's.
			ignore := cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(api.User{}, "Why", "Decisions", "Seen", "From.Time"),
				cmpopts.IgnoreFields(api.Limit{}, "Used", "Last")}
			if diff := cmp.Diff(want, got, ignore); diff != "" {
				t.Errorf("User() differs (-want +got):\n%s", diff)
			}
			if mover := g.User("mover"); mover.Entry == nil || mover.Entry.Line != 7 || mover.Entry.File != g.file || !mover.Known || mover.Tier != "moving" || mover.Down != 7 || mover.Instances[0].UpShare != 10 {
				t.Errorf("User(mover) = %+v, want line 7, tier moving, and what they move", mover)
			}

			users := g.Users(api.ByConcurrent, 1)
			if users.Leading != leading || len(users.Users) != 1 || users.Users[0].User != "alice" || users.Seen != 2 {
				t.Errorf("Users() = %+v, want alice of two", users)
			}
			if unknown := g.UnknownUsers(api.ByRecent, 9); len(unknown.Users) != 1 || unknown.Users[0].User != "alice" || unknown.Polygen != "polygen" {
				t.Errorf("UnknownUsers() = %+v, want alice", unknown)
			}
			instances := g.Instances()
			if diff := cmp.Diff([]api.Instance{{Name: "one", Version: from.Version, Current: true}, {Name: "two"}}, instances.Instances); diff != "" {
				t.Errorf("instances differ (-want +got):\n%s", diff)
			}
		})
	}
}

// Who was never heard of has the limits of the default tier and uses nothing.
func TestAnswersOfNobody(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil)
	long := strings.Repeat("x", 300)
	for _, tt := range []struct{ name, href string }{
		{"nobody", "/api/v1/users/nobody"},
		{long, "/api/v1/users/" + long},
		{"~exempt", "/api/v1/users/~exempt"}, // a name, not the key
		{"@a/b", "/api/v1/users/@a%2Fb"},
	} {
		u := g.User(tt.name)
		if u.Tier != "free" || u.Known || u.State != api.OK || u.Seen != nil || u.User != tt.name || u.Href != tt.href || len(u.Limits) != 3 {
			t.Errorf("User(%.20q) = %+v, want the default tier's limits and no use", tt.name, u)
		}
	}
	if u := g.Polygen.User(api.Who{User: limits.Key(long), IsKey: true}); u.Href != "/api/v1/users/"+limits.Key(long)+"?by=key" {
		t.Errorf("User() of a key = %+v, want the link by=key", u)
	}
}
