package polygen

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const thousandTokens = `version: 1
default_tier: free
costs: {tokens: {estimate: {default: 10}}}
tiers:
  free: {requests: {GET: 10, PUT: {month: 5k}}, costs: {tokens: {day: 1000}}}
`

// newCosting makes a polygen with limits of costs that does not run yet.
func newCosting(t *testing.T, addr, name string) *generator {
	t.Helper()
	g := newGenerator(t, addr, name, nil)
	g.takeFile(t, thousandTokens)
	return g
}

// charge charges a user so many tokens of the present day.
func (a *agents) charge(user string, seq uint64, tokens int64) {
	a.t.Helper()
	now, err := a.bus.Time(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	day := limits.Cost{Unit: "tokens", Window: limits.Day, Max: 1000}
	ask := cost.Ask{User: user, Seq: seq, Forced: true, Entries: []cost.Entry{{Unit: "tokens", Window: limits.Day, Start: day.WindowStart(now.Unix()), Limit: 1000, Change: tokens}}}
	if _, err := a.bus.Charge(a.t.Context(), "one", []cost.Ask{ask}); err != nil {
		a.t.Fatal(err)
	}
}

// budgetOf is what a polygen tells of a user's day.
func budgetOf(u api.User) string {
	for _, l := range u.Limits {
		if l.Name == "tokens/day" {
			return fmt.Sprintf("%s, %d of %d used, %d left", u.State, l.Used, l.Max, *l.Left)
		}
	}
	return "no limit of tokens a day"
}

// What agents report of costs is shown, and nobody is throttled by it.
func TestCostsAreShown(t *testing.T) {
	g := newCosting(t, "127.0.0.1:1", "polygen")
	g.pretend(true)
	now := g.clock.Now()
	day := limits.Cost{Window: limits.Day}.WindowStart(now.Unix())
	entry := func(user string, total int) redisbus.UsageEntry {
		return redisbus.UsageEntry{Key: ratelimit.Key{Class: "$tokens", User: user, Window: limits.Day}, Second: day, Total: total}
	}
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{entry("alice", 1000), entry("bob", 799), entry("carl", 800)}})
	d := g.takeDecisions()
	if len(d.hints)+len(d.throttles) > 0 || g.rates.WatchedKeys() != 0 {
		t.Errorf("decided %+v of %d keys, want nothing: the agents ask about each request", d, g.rates.WatchedKeys())
	}
	if got, want := budgetOf(g.User("alice")), "spent, 1000 of 1000 used, 0 left"; got != want {
		t.Errorf("User(alice): %s, want %s", got, want)
	}
	if o := g.User("alice").Limits[2].Origin; o == nil || o.Field != "costs.tokens/day" || o.Line != 5 {
		t.Errorf("the limit comes from %+v, want costs.tokens/day in line 5", o)
	}
	users := g.Users(api.ByCost("tokens"), 2)
	if len(users.Users) != 2 || users.Users[0].User != "alice" || users.Users[1].User != "carl" || users.Users[1].Cost.Used != 800 || fmt.Sprint(users.Units) != "[tokens]" {
		t.Errorf("Users() by tokens = %+v of units %q, want alice and carl", users.Users, users.Units)
	}
	live, stop, err := g.Watch(api.Question{Sort: api.ByCost("tokens"), N: 1, User: "alice"})
	testkit.Must(t, err)
	defer stop()
	if l := (<-live).Value.(*api.Live); len(l.Users) != 1 || l.Users[0].User != "alice" || l.Totals.Spent != 1 || budgetOf(*l.User) != "spent, 1000 of 1000 used, 0 left" || len(l.Limited) != 1 {
		t.Errorf("live answer %+v, want alice, who has spent the day", l)
	}
	const metric = `# HELP sluice_users_near_budget Users who have used 80 % or more of what their requests may cost in a day or a month, by tier and unit, by the polygen that leads; limits in a dry run aside. Beyond 200 tiers the tier is other.
# TYPE sluice_users_near_budget gauge
sluice_users_near_budget{tier="free",unit="tokens"} 2
`
	if err := testutil.GatherAndCompare(g.registry, strings.NewReader(metric), "sluice_users_near_budget"); err != nil {
		t.Error(err)
	}
	why := errors.New("gone")
	g.lost.Store(&why)
	if err := testutil.GatherAndCompare(g.registry, strings.NewReader(""), "sluice_users_near_budget"); err != nil {
		t.Errorf("without Redis: %v, want no series", err)
	}
}

// Many tiers have few series.
func TestBudgetsOfManyTiers(t *testing.T) {
	g := newCosting(t, "127.0.0.1:1", "polygen")
	g.pretend(true)
	var tiers, users strings.Builder
	const n = maxCountedTiers + 5
	for i := range n {
		fmt.Fprintf(&tiers, "  t%03d: {costs: {tokens: {day: 1000}}}\n", i)
		fmt.Fprintf(&users, "  u%03d: t%03d\n", i, i)
	}
	g.takeFile(t, "version: 1\ndefault_tier: t000\ncosts: {tokens: {estimate: {default: 10}}}\ntiers:\n"+tiers.String()+"users:\n"+users.String())
	now := g.clock.Now()
	u := redisbus.Usage{Instance: "one"}
	for i := range n {
		u.Entries = append(u.Entries, redisbus.UsageEntry{Key: ratelimit.Key{Class: "$tokens", User: fmt.Sprintf("u%03d", i), Window: limits.Day}, Second: limits.Cost{Window: limits.Day}.WindowStart(now.Unix()), Total: 900})
	}
	g.observe(now, u)
	families, err := g.registry.Gather()
	testkit.Must(t, err)
	for _, f := range families {
		if f.GetName() != "sluice_users_near_budget" {
			continue
		}
		sum, other := 0.0, 0.0
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue()
			if m.GetLabel()[0].GetValue() == otherTier {
				other = m.GetGauge().GetValue()
			}
		}
		if len(f.GetMetric()) != maxCountedTiers+1 || sum != n || other != 5 {
			t.Errorf("%d series, %v users, %v of them of other tiers, want %d, %d, 5", len(f.GetMetric()), sum, other, maxCountedTiers+1, n)
		}
		return
	}
	t.Error("there is no such metric")
}

// A polygen that has heard of no charge and no request tells of them all the same, when it is asked about the user.
func TestRestartedPolygenKnowsBudgets(t *testing.T) {
	t.Parallel()
	_, addr := testkit.Redis(t)
	a := startAgents(t, addr)
	charged := []string{"alice", "bob"}
	for i, user := range charged {
		a.charge(user, uint64(i+1), 1000+int64(i))
	}
	puts := limits.Rate{Class: "PUT", Window: limits.Month}
	now, err := a.bus.Time(t.Context())
	testkit.Must(t, err)
	month, _ := puts.Bounds(now.Unix())
	_, err = a.bus.Take(t.Context(), "one", []ratelimit.Ask{{Key: ratelimit.Key{Class: "PUT", User: "carl", Window: limits.Month}, WindowStart: month, Limit: 5000, Debt: 3}})
	testkit.Must(t, err)
	one := newCosting(t, addr, "one").run(t).awaitLead(t)
	if list := one.Users(api.ByCost("tokens"), 20); len(list.Users) != 0 {
		t.Errorf("%d users are listed before anything was heard of them, want none", len(list.Users))
	}
	for i, user := range charged {
		want := fmt.Sprintf("spent, %d of 1000 used, 0 left", 1000+i)
		testkit.Eventually(t, "it knows of "+user, func() error {
			if got := budgetOf(one.User(user)); got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return nil
		})
	}
	testkit.Eventually(t, "it knows of carl's requests", func() error {
		if got := one.User("carl").Limits[1]; got.Name != "PUT/month" || got.Used != 3 || *got.Left != 4997 {
			return fmt.Errorf("%+v, want 3 used and 4997 left", got)
		}
		return nil
	})
	// Those who were asked about are known from then on.
	testkit.Eventually(t, "it lists them", func() error {
		list := one.Users(api.ByCost("tokens"), 20)
		if len(list.Users) != 2 || list.Users[0].User != "bob" || list.Users[1].User != "alice" {
			return fmt.Errorf("it lists %+v, want both, the one charged most first", list.Users)
		}
		return nil
	})
	if u := one.User("nobody"); budgetOf(u) != "ok, 0 of 1000 used, 1000 left" || u.Seen != nil {
		t.Errorf("of nobody: %s, seen %v", budgetOf(u), u.Seen)
	}
	// What is charged from now on is heard of.
	live, stop, err := one.Watch(api.Question{Sort: api.ByRate, N: 1, User: charged[0]})
	testkit.Must(t, err)
	defer stop()
	a.charge(charged[0], 100, 200)
	testkit.Eventually(t, "a live answer has it", func() error {
		select {
		case m := <-live:
			if got := budgetOf(*m.Value.(*api.Live).User); got != "spent, 1200 of 1000 used, 0 left" {
				return errors.New(got)
			}
			return nil
		case <-time.After(testkit.Patience):
			return errors.New("no answer")
		}
	})
}
