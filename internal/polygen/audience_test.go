package polygen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// hearing is an audience that has heard for long enough.
func hearing(start time.Time, live ...string) *audience {
	a := &audience{live: live, before: map[string]*served{}}
	a.forget(start)
	return a
}

func TestAudience(t *testing.T) {
	start := time.Unix(1000, 0)
	a := &audience{}
	check := func(what string, want ...string) {
		t.Helper()
		if got := a.serving("u"); !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("nothing known")
	a.live = []string{"one", "three", "two"}
	a.forget(start)
	a.report("u", "two")
	check("heard for a moment only")
	a.forget(start.Add(audienceSpan - 1))
	check("not for long enough")
	a.forget(start.Add(audienceSpan))
	check("who has told lately", "two")
	a.report("u", "one")
	a.report("u", "one")
	a.report("v", "three")
	check("and who does now, sorted", "one", "two")
	a.forget(start.Add(2*audienceSpan - 1))
	check("for as long as they tell", "one", "two")
	a.forget(start.Add(2 * audienceSpan))
	check("and a while longer", "one")
	a.report("u", "gone")
	check("who is not there is not told", "one")
	a.live = []string{"two"}
	if got := a.serving("u"); got == nil || len(got) > 0 {
		t.Errorf("all are gone: %q, want nobody", got)
	}
	a.live = []string{"one", "three", "two"}
	a.forget(start.Add(3 * audienceSpan))
	a.report("x", "one")
	a.forget(start.Add(4 * audienceSpan))
	check("nobody has told for long")
	a.report("u", "one")
	a.forget(start) // the clock was set back
	check("the clock set back", "one")
}

// Of users beyond the bound it is not known who serves them, so all are told.
func TestAudienceIsBounded(t *testing.T) {
	a := hearing(time.Unix(1000, 0), "one", "two")
	a.report("u", "one")
	a.forget(time.Unix(1010, 0))
	for i := range maxAudience + 1 {
		a.report(fmt.Sprint(i), "one")
	}
	a.report("u", "two")
	if len(a.heard) != maxAudience {
		t.Errorf("%d users, want %d", len(a.heard), maxAudience)
	}
	if got := a.serving("u"); got != nil {
		t.Errorf("a user of whom the last report had no room: %q, want all", got)
	}
	if got := a.serving("7"); !slices.Equal(got, []string{"one"}) {
		t.Errorf("a user who had room: %q, want one", got)
	}
	a.forget(time.Unix(1020, 0))
	a.report("u", "two")
	if got := a.serving("u"); got != nil {
		t.Errorf("a user of whom the reports before the last had no room: %q, want all", got)
	}
	a.forget(time.Unix(1030, 0))
	a.report("u", "two")
	if got := a.serving("u"); !slices.Equal(got, []string{"two"}) {
		t.Errorf("after a while: %q, want two", got)
	}
}

// What is the same for most of the instances goes to all in one message.
func TestAudienceOfMost(t *testing.T) {
	live := make([]string, 2*fewServe)
	for i := range live {
		live[i] = fmt.Sprintf("%02d", i)
	}
	a := hearing(time.Unix(1000, 0), live...)
	for i, instance := range live {
		a.report("u", instance)
		want := live[:i+1]
		if i+1 >= fewServe {
			want = nil
		}
		if got := a.concerned("u"); !slices.Equal(got, want) {
			t.Errorf("%d serve the user, of %d: %q, want %q", i+1, len(live), got, want)
		}
		if got := a.serving("u"); !slices.Equal(got, live[:i+1]) {
			t.Errorf("serving = %q, want %q", got, live[:i+1])
		}
	}
	a.live = live[:3]
	if got := a.concerned("u"); !slices.Equal(got, live[:3]) {
		t.Errorf("all of a few: %q, want %q", got, live[:3])
	}
}

// A throttle may concern some of those who serve the user.
func TestAudienceOfThrottles(t *testing.T) {
	a := hearing(time.Unix(1000, 0), "one", "three", "two")
	a.report("u", "three")
	throttle := ratelimit.Throttle{Key: ratelimit.Key{Class: "GET", User: "u"}}
	for _, tt := range []struct{ only, want []string }{
		{nil, []string{"three"}},
		{[]string{"gone", "one", "two"}, []string{"one", "two"}},
	} {
		throttle.Instances = tt.only
		if got := a.ofThrottle(&throttle); !slices.Equal(got, tt.want) {
			t.Errorf("only %q: %q, want %q", tt.only, got, tt.want)
		}
	}
	a.live = nil
	if got := a.ofThrottle(&throttle); got != nil {
		t.Errorf("while the instances are not known: %q, want all", got)
	}
}

// Shares concern who has one and who had one, whoever else serves the user.
func TestAudienceOfShares(t *testing.T) {
	s := bandwidth.Sharing{User: "u", Shares: []bandwidth.Share{{Instance: "two", Bytes: 1}}, Before: []string{"gone", "one"}}
	a := hearing(time.Unix(1000, 0), "one", "three", "two")
	a.report("u", "three")
	if got, want := a.ofShares(&s), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("ofShares = %q, want %q", got, want)
	}
	a.learning = parts.All
	if got := a.ofShares(&s); got != nil {
		t.Errorf("while it is not known who had shares: %q, want all instances", got)
	}
}

// A shard that is lost concerns its users alone: what is about others goes to who serves them.
func TestAudienceWhileItLearns(t *testing.T) {
	start := time.Unix(1000, 0)
	a := hearing(start, "one", "two")
	a.shards, a.learns.span = 4, audienceSpan
	lost, other := userAmong(a.shards, 5, 0), userAmong(a.shards, 2, 0)
	a.report(lost, "two")
	a.report(other, "two")
	all, serves := []string(nil), []string{"two"}
	for _, step := range []struct {
		name  string
		hear  []bus.Heard
		after time.Duration
		want  []string // of the user of shard 1
	}{
		{"all is heard", nil, 0, serves},
		{"a shard is lost", []bus.Heard{{Shard: 1, Lost: true}}, time.Hour, all},
		{"and heard again", []bus.Heard{{Shard: 1}}, audienceSpan - 1, all},
		{"for long enough", nil, audienceSpan, serves},
	} {
		for _, heard := range step.hear {
			a.learns.hear(start, a.shards, heard)
		}
		a.beginRound(start.Add(step.after))
		for user, want := range map[string][]string{lost: step.want, other: serves} {
			if got := a.serving(user); !slices.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("%s: %s is served by %q, want %q", step.name, user, got, want)
			}
		}
	}
}

// What is not heard, and what is new here, is learned.
func TestAudienceLearns(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "one", func(o *Options) { o.Bus = open(t, "127.0.0.1:1", 4) })
	learns := func() parts.Set { return g.audience.learns.at(time.Time{}.Add(1), g.shards) }
	for _, step := range []struct {
		name string
		do   func()
		want parts.Set
	}{
		{"nothing has happened", func() {}, 0},
		{"a shard is lost", func() { g.observe(time.Now(), bus.Heard{Shard: 1, Lost: true}) }, g.shards.Parts(1)},
		{"it is heard again", func() { g.observe(time.Now(), bus.Heard{Shard: 1}) }, g.shards.Parts(1)},
		{"a part is new", func() { g.kept &^= parts.SetOf(2); g.adoptParts() }, g.shards.Parts(1) | parts.SetOf(2)},
	} {
		if step.do(); learns() != step.want {
			t.Errorf("%s: it learns of the parts %v, want %v", step.name, learns().Numbers(), step.want.Numbers())
		}
	}
}

// What makes instances give up their parts reaches all of them where all have one.
func TestAudienceOfReservedParts(t *testing.T) {
	set, err := limitfile.Parse("limits.yaml", []byte(`version: 1
default_tier: many
tiers: {many: {requests: {GET: 100}}, few: {requests: {GET: 3}}, long: {requests: {GET: {minute: 6000}}}}
users: {few: few, long: long}
`))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1000, 0)
	a := hearing(start, "one", "three", "two")
	for _, user := range []string{"many", "few", "long", "~unreadable"} {
		a.report(user, "two")
	}
	all := []string(nil)
	for i, tt := range []struct {
		after      time.Duration
		kind, user string
		want       []string
	}{
		{0, "hot", "many", all},
		{0, "slots", "many", all},
		{time.Second, "hot", "many", []string{"two"}},
		{appealEvery, "hot", "many", all},
		{appealEvery + 1, "hot", "many", []string{"two"}},
		{0, "hot", "many", all}, // the clock was set back
		// No part of a limit that is too small, or that HAProxy cannot keep.
		{0, "hot", "few", []string{"two"}},
		{0, "hot", "long", []string{"two"}},
		{0, "hot", "~unreadable", []string{"two"}},
	} {
		if got := a.ofReserved(start.Add(tt.after), set, appeal{tt.kind, "GET", tt.user}); !slices.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%d: %q, want %q", i, got, tt.want)
		}
	}
	a.forget(start.Add(audienceSpan))
	if len(a.appeals) != 0 {
		t.Errorf("remembered: %v, want nothing", a.appeals)
	}
}

// Each agent hears what concerns it: those that hear their own channel there, and others where all hear it.
func TestPoliciesToDeafAgents(t *testing.T) {
	addr := redis(t)
	deaf := startAgents(t, addr)
	listener := &agents{t: t, bus: deaf.bus}
	ctx, cancel := context.WithCancel(t.Context())
	connected, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = listener.bus.SubscribeOwn(ctx, "listener", func(e bus.Event) {
			if e == (bus.Connected{}) {
				close(connected)
				return
			}
			listener.mu.Lock()
			defer listener.mu.Unlock()
			listener.heard = append(listener.heard, e.(bus.Policies)...)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-connected

	g := newGenerator(t, addr, "polygen", nil)
	g.write(t, "version: 1\ndefault_tier: few\ntiers: {few: {requests: {GET: 3}}}\n")
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	g.adoptFile(g.options.Limits.Set())
	g.decideAll(true)
	now := time.Now()
	g.audience = *hearing(now, "deaf", "listener", "other")
	key := func(user string) ratelimit.Key { return ratelimit.Key{Class: "GET", User: user} }
	spend := func(instance, user string) {
		g.observe(now, bus.Usage{Instance: instance, Entries: []bus.UsageEntry{{Second: now.Unix(), Key: key(user), Total: 3}}})
		g.sendPolicies(t.Context())
	}
	want := func(user string) []policy.Message {
		return []policy.Message{
			policy.Throttle{Key: key(user), Second: now.Unix(), Limit: 3},
			policy.Hot{Key: key(user), Until: now.Add(3 * time.Second).UTC().Truncate(time.Millisecond), Instances: 1},
		}
	}
	spend("listener", "of the listener")
	spend("deaf", "of the deaf")
	spend("listener", "of both")
	spend("deaf", "of both")
	if err := g.options.Bus.PublishTo(t.Context(), []policy.Addressed{{Message: policy.Limits{Version: "end"}}, {Message: policy.Limits{Version: "end"}, To: []string{"listener"}}}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*agents{deaf, listener} {
		proctest.Eventually(t, "the last message", func() error {
			if len(a.versions()) == 0 {
				return errors.New("not heard")
			}
			return nil
		})
	}
	for _, tt := range []struct {
		user           string
		deaf, listener []policy.Message
	}{
		{"of the listener", nil, want("of the listener")},
		{"of the deaf", want("of the deaf"), nil},
		{"of both", want("of both")[:1], want("of both")}, // what the deaf one has missed
	} {
		if diff := cmp.Diff(tt.deaf, deaf.about(tt.user)); diff != "" {
			t.Errorf("%s: all heard (-want +got):\n%s", tt.user, diff)
		}
		if diff := cmp.Diff(tt.listener, listener.about(tt.user)); diff != "" {
			t.Errorf("%s: the listener heard (-want +got):\n%s", tt.user, diff)
		}
	}
}

// Slots are divided: each instance hears its own part, also when all are told.
func TestSlotsForAllGoToEach(t *testing.T) {
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: many\ntiers: {many: {concurrent: 100}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1000, 0)
	p := &Polygen{audience: *hearing(start, "one", "three", "two")}
	p.set.Store(set)
	p.audience.report("u", "two")
	d := decisions{Decisions: concurrency.Decisions{Sharings: []concurrency.Sharing{{User: "u", Shares: []concurrency.Share{{Instance: "two", Slots: 9}}}}}}
	for _, want := range [][]string{{"one", "three", "two"}, {"two"}} {
		if got := p.address(start, &d); len(got) != 1 || !slices.Equal(got[0].To, want) {
			t.Errorf("slots go to %+v, want %q", got, want)
		}
	}
}

// How many instances serve a user is told when they have reported the user: before that it may be more than have asked.
func TestHintsOfUsersWhomNobodyHasReported(t *testing.T) {
	now := time.Now()
	p := &Polygen{audience: *hearing(now, "a", "b", "c")}
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: few\ntiers: {few: {requests: {GET: 3}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p.set.Store(set)
	told := func(user string) int {
		hint := ratelimit.Hint{Key: ratelimit.Key{Class: "GET", User: user}, Until: now, Instances: 1}
		return p.address(now, &decisions{hints: []ratelimit.Hint{hint}})[0].Message.(policy.Hot).Instances
	}
	p.audience.report("alice", "a")
	if alice, bob := told("alice"), told("bob"); alice != 1 || bob != 0 {
		t.Errorf("%d instances serve alice, whom one has reported, and %d bob, whom none has; want 1 and 0, which stands for all", alice, bob)
	}
	p.audience.forget(now.Add(audienceSpan))
	if n := told("alice"); n != 1 {
		t.Errorf("%d instances serve alice, who was reported in the span before, want 1", n)
	}
}
