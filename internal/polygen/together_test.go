package polygen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// cutOffable is a polygen whose way to Redis can be cut.
func cutOffable(t *testing.T, addr, name string) (*generator, *proctest.Link) {
	t.Helper()
	way := proctest.NewLink(t, addr, 0)
	g := newGenerator(t, way.Addr, name, func(o *Options) {
		b, err := bus.Open(bus.Options{Addresses: []string{way.Addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		o.Bus = b
	})
	return g, way
}

// knows is how many users a polygen knows itself.
func (g *generator) knows() int {
	g.dashboard.mu.Lock()
	defer g.dashboard.mu.Unlock()
	users, _ := g.dashboard.view.Counts()
	return users
}

// Whichever of several polygens is asked answers for all: each knows a part of the users. While one is missing, the
// answers say so.
func TestPolygensAnswerTogether(t *testing.T) {
	t.Parallel()
	_, addr := proctest.Redis(t)
	a := startAgents(t, addr)
	one := newGenerator(t, addr, "one", nil).run(t).awaitParts(t, parts.Count)
	two, way := cutOffable(t, addr, "two")
	two.run(t).awaitParts(t, parts.Count/2)
	one.awaitParts(t, parts.Count/2)
	users := map[ratelimit.Key]int{}
	for part := range parts.Count {
		users[ratelimit.Key{Class: "GET", User: userOf(part, 0)}] = 3 + part%5
	}
	events, stop, err := one.Policies(api.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	live, end, err := one.Watch(api.Question{Sort: api.ByRate, N: api.MaxTop, User: userOf(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer end()

	proctest.Eventually(t, "each says what both know", func() error {
		if _, err := a.use("one", users); err != nil {
			return err
		}
		for _, g := range []*generator{one, two} {
			if n := g.knows(); n < parts.Count/4 || n > 3*parts.Count/4 {
				return fmt.Errorf("%s knows %d users, want about half of %d", g.options.Name, n, parts.Count)
			}
			list := g.Users(api.ByRate, api.MaxTop)
			if len(list.Users) < parts.Count || list.Seen < parts.Count || list.Degraded != "" {
				return fmt.Errorf("%s lists %d users of %d, degraded %q", g.options.Name, len(list.Users), list.Seen, list.Degraded)
			}
			for i := range list.Users[1:] {
				if list.Users[i].Rate < list.Users[i+1].Rate {
					return fmt.Errorf("%s lists %v before %v", g.options.Name, list.Users[i], list.Users[i+1])
				}
			}
			if u := g.UnknownUsers(api.ByActive, api.MaxTop); u.Seen < parts.Count || len(u.Users) < parts.Count {
				return fmt.Errorf("%s lists %d of %d unknown users", g.options.Name, len(u.Users), u.Seen)
			}
			for k := range users {
				if u := g.User(k.User, ""); u.Seen == nil || u.User != k.User || u.Polygen != g.options.Name {
					return fmt.Errorf("%s knows nothing of %s: %+v", g.options.Name, k.User, u)
				}
			}
			if h := g.History(userOf(1, 0), ""); len(h.Limits) == 0 {
				return fmt.Errorf("%s has no history: %+v", g.options.Name, h)
			}
		}
		return nil
	})
	proctest.Eventually(t, "a live answer has all users", func() error {
		if _, err := a.use("one", users); err != nil {
			return err
		}
		select {
		case m := <-live:
			if l, ok := m.Value.(*api.Live); !ok || len(l.Users) < parts.Count || l.Totals.Users < parts.Count || l.User == nil || l.User.Seen == nil {
				return fmt.Errorf("live answer %s", m.JSON())
			}
			return nil
		case <-time.After(proctest.Patience):
			return errors.New("no answer")
		}
	})
	proctest.Eventually(t, "a stream tells what both decide", func() error {
		for k := range users {
			users[k] = 10
		}
		if _, err := a.use("one", users); err != nil {
			return err
		}
		told := map[*generator]bool{}
		return proctest.Poll(2*time.Second, func() error {
			select {
			case m := <-events:
				if e := m.Value.(*api.Event); e.Kind == api.ThrottleEvent {
					for _, g := range []*generator{one, two} {
						told[g] = told[g] || g.division.KnownParts().HasUser(e.User)
					}
				}
			default:
			}
			if len(told) < 2 || !told[one] || !told[two] {
				return errors.New("one polygen's throttles are missing")
			}
			return nil
		})
	})

	way.Hold()
	proctest.Eventually(t, "it says that something is missing", func() error {
		if said := one.UnknownUsers(api.ByRecent, 1).Degraded; !strings.HasPrefix(said, "polygen two does not answer") {
			return fmt.Errorf("degraded %q", said)
		}
		return nil
	})
	if n := testutil.ToFloat64(one.metrics.unanswered); n == 0 {
		t.Error("sluice_polygen_unanswered_total = 0")
	}
	one.awaitParts(t, parts.Count)
	if said := one.UnknownUsers(api.ByRecent, 1).Degraded; said != "" {
		t.Errorf("degraded %q, want nothing once it has all parts", said)
	}
}

// Questions that nobody has time to answer wait in a bounded queue.
func TestQuestionsAreBounded(t *testing.T) {
	addr := redis(t)
	g, asker := newGenerator(t, addr, "slow", nil), newGenerator(t, addr, "asker", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.hearOthers(ctx) // and nobody answers
	}()
	defer func() { cancel(); <-done }()
	proctest.Eventually(t, "one is too many", func() error {
		for range maxLetters {
			if err := asker.send(t.Context(), "", letter{Ask: &question{}}); err != nil {
				return err
			}
		}
		if testutil.ToFloat64(g.metrics.lettersDropped) == 0 {
			return errors.New("none is dropped")
		}
		return nil
	})
	if n := len(g.others.questions); n != maxLetters {
		t.Errorf("%d wait, want %d", n, maxLetters)
	}
}

// Of three lists those with most are one list, and sums add up.
func TestMergeOverview(t *testing.T) {
	of := func(rates ...float64) (list []api.Summary) {
		for _, rate := range rates {
			list = append(list, api.Summary{Name: api.Name{Href: fmt.Sprint(rate)}, Rate: rate})
		}
		return list
	}
	o := view.Overview{Tops: map[api.Sort][]api.Summary{api.ByRate: of(9, 4)}, Limited: of(4), Totals: api.Totals{Users: 2, Rate: 13, Capacity: 10}}
	mergeOverview(&o, []*reply{
		{Totals: api.Totals{Users: 3, Rate: 15.5, Capacity: 10, Dropped: 1}, Tops: map[api.Sort][]api.Summary{api.ByRate: of(8, 7)}, Limited: of(8)},
		{Totals: api.Totals{Users: 1, Capacity: 10}, Tops: map[api.Sort][]api.Summary{api.ByRate: of(0.5)}},
	}, map[api.Sort]int{api.ByRate: 3})
	want := view.Overview{Tops: map[api.Sort][]api.Summary{api.ByRate: of(9, 8, 7)}, Limited: of(8, 4), Totals: api.Totals{Users: 6, Rate: 28.5, Capacity: 30, Dropped: 1}}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
}
