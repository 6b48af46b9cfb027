package polygen

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// read returns the events that wait, as JSON without their times.
func read(t *testing.T, messages <-chan *api.Message) []string {
	t.Helper()
	var all []string
	for len(messages) > 0 {
		m := <-messages
		var fields map[string]any
		testkit.Must(t, json.Unmarshal(m.JSON(), &fields))
		if fields["kind"] != m.Event || fields["time"] == nil {
			t.Errorf("event %s is of kind %v, at %v", m.Event, fields["kind"], fields["time"])
		}
		delete(fields, "time")
		delete(fields, "until")
		text, err := json.Marshal(fields)
		testkit.Must(t, err)
		all = append(all, string(text))
	}
	return all
}

func listen(t *testing.T, g *generator, f api.Filter) <-chan *api.Message {
	t.Helper()
	messages, stop, err := g.Policies(f)
	testkit.Must(t, err)
	t.Cleanup(stop)
	return messages
}

// Every policy is told with its fields, of a follower too.
func TestPolicyEvents(t *testing.T) {
	g := alone(t)
	set := g.set.Load()
	messages := listen(t, g, api.Filter{})
	g.tellPolicies(set, []string{"bob"}, decisions{
		throttles: []ratelimit.Throttle{{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: 1_800_000_000, End: 1_800_000_001, Limit: 10},
			{Key: ratelimit.Key{Class: "PUT", User: limits.Key("~x"), Window: limits.Minute}, WindowStart: 1_800_000_000, End: 1_800_000_060, Limit: 60}},
		Decisions: concurrency.Decisions{
			Blocks:   []concurrency.Block{{User: "again", Limit: concurrency.Limit{Max: 5}}, {User: "bob", Limit: concurrency.Limit{Max: 5}}},
			Unblocks: []string{"carl"},
		},
	})
	first := <-messages
	want := `{"kind":"unblock","user":"carl","href":"/api/v1/users/carl","limit":"concurrent","reason":"concurrent-requests","mode":"enforce"}`
	if got := string(first.JSON()); !strings.HasSuffix(got, want[1:]) || !strings.HasPrefix(got, `{"time":"`) {
		t.Errorf("first event %s, want the time and %s", got, want)
	}
	key := limits.Key("~x")
	for _, want := range []struct{ event, until string }{
		{`{"href":"/api/v1/users/alice","kind":"throttle","limit":"GET","max":10,"mode":"enforce","reason":"request-rate","user":"alice"}`, "2027-01-15T08:00:01Z"},
		{`{"href":"/api/v1/users/` + key + `?by=key","kind":"throttle","limit":"PUT/minute","max":60,"mode":"enforce","reason":"request-rate","user":"` + key + `"}`, "2027-01-15T08:01:00Z"},
		{`{"href":"/api/v1/users/bob","kind":"block","limit":"concurrent","max":5,"mode":"enforce","reason":"concurrent-requests","user":"bob"}`, ""},
	} {
		if len(messages) == 0 {
			t.Fatalf("no more events, want %s", want.event)
		}
		m := <-messages
		var fields struct{ Until string }
		if err := json.Unmarshal(m.JSON(), &fields); err != nil || fields.Until != want.until {
			t.Errorf("%s ends at %q, want %q", m.JSON(), fields.Until, want.until)
		}
		again := make(chan *api.Message, 1)
		again <- m
		if got := read(t, again)[0]; got != want.event {
			t.Errorf("event\n%s, want\n%s", got, want.event)
		}
	}
	if n := len(messages); n != 0 {
		t.Errorf("%d more events: a block that is repeated is none", n)
	}
}

// What the events of the bus bring about is heard by those who want it.
func TestEventsAsTheyHappen(t *testing.T) {
	g := alone(t)
	all := listen(t, g, api.Filter{Kinds: []api.EventKind{api.BlockEvent, api.UnblockEvent, api.ThrottleEvent, api.LimitsEvent}})
	bobs := listen(t, g, api.Filter{User: "bob"})
	now := g.clock.Now()
	progress := func(user string, active int) {
		g.observe(now, redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{{User: user, Held: active, Active: active, Limit: 5}}})
		g.sendPolicies(t.Context())
	}
	g.observe(now, redisbus.Registry{Instances: []string{"one"}, Now: now})
	progress("alice", 5)
	for range 5 { // the block is repeated
		now = now.Add(250 * time.Millisecond)
		progress("alice", 5)
		g.tickSlots(now)
		g.sendPolicies(t.Context())
	}
	progress("alice", 0)
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{{Key: ratelimit.Key{Class: "GET", User: "bob"}, Second: now.Unix(), Total: 10}}})
	g.sendPolicies(t.Context())
	g.takeFile(t, strings.Replace(tenGets, "GET: 10", "GET: 11", 1))
	version := g.set.Load().Version()

	var got []string
	for _, text := range read(t, all) {
		var e struct{ Kind, User, Version string }
		testkit.Must(t, json.Unmarshal([]byte(text), &e))
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.User, e.Version)))
	}
	if diff := cmp.Diff([]string{"block alice", "unblock alice", "throttle bob", "limits " + version}, got); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
	for _, text := range read(t, bobs) {
		if !strings.Contains(text, `"user":"bob"`) {
			t.Errorf("of bob: %s", text)
		}
	}
}

// Events that a reader is too slow for are lost to that reader alone, who is told where
// in the stream, and how many.
func TestLostEvents(t *testing.T) {
	g := alone(t)
	slow, other := listen(t, g, api.Filter{}), listen(t, g, api.Filter{Kinds: []api.EventKind{api.LimitsEvent}})
	hot := func(n int) {
		for range n {
			g.publishEvent(api.Event{Kind: api.ThrottleEvent, Name: api.NameOf("alice")})
		}
	}
	kinds := func() string {
		var all []string
		last, n := "", 0
		end := func() {
			if n > 0 {
				all = append(all, fmt.Sprint(n, " ", last))
			}
		}
		for _, text := range read(t, slow) {
			var e struct {
				Kind  string
				Count int
			}
			testkit.Must(t, json.Unmarshal([]byte(text), &e))
			if e.Count > 0 {
				e.Kind += fmt.Sprint(" ", e.Count)
			}
			if e.Kind != last {
				end()
				last, n = e.Kind, 0
			}
			n++
		}
		end()
		return strings.Join(all, ", ")
	}
	hot(maxUnread + 7)
	if got, want := kinds(), fmt.Sprint(maxUnread, " throttle"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	hot(2) // there is room again, and what is lost is told first
	if got := kinds(); got != "1 lost 7, 2 throttle" {
		t.Errorf("then %s, want 1 lost 7, 2 throttle", got)
	}
	hot(1)
	if got := kinds(); got != "1 throttle" || len(other) != 0 {
		t.Errorf("then %s, and %d events of another reader, want one and none", got, len(other))
	}
}
