package bus_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Each instance hears what concerns it, of what is divided its own part, and one that does not hear
// its own channel hears what concerns it from the channel of all.
func policiesToEach(t *testing.T, s *server) {
	b := s.open(t, bus.Options{})
	all, a, other := listen(t, b, bus.PoliciesChannel), listenOwn(t, b, "a"), listenOwn(t, b, "b {x}")
	throttle := policy.Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 17, Limit: 5}
	limits := policy.Limits{Version: "1"}
	share := func(of ...bandwidth.Share) policy.Share { return policy.Share{User: "bob", Shares: of} }
	slots := func(of ...policy.SlotShare) policy.Slots {
		return policy.Slots{User: "bob", Until: time.Unix(17, 0).UTC(), Shares: of}
	}
	everyone := []string{"a", "b {x}"}
	for _, step := range []struct {
		name                  string
		send                  []policy.Addressed
		hearA, hearB, hearAll bus.Policies
		unheard               float64 // so far
	}{
		{"what concerns one, some and all",
			[]policy.Addressed{
				{Message: throttle, To: []string{"a"}},
				{Message: share(bandwidth.Share{Instance: "a", Bytes: 1}, bandwidth.Share{Instance: "b {x}", Bytes: 2}), To: everyone},
				{Message: limits},
				{Message: slots(policy.SlotShare{Instance: "b {x}", Slots: 3}), To: everyone},
			},
			bus.Policies{throttle, share(bandwidth.Share{Instance: "a", Bytes: 1}), slots()},
			bus.Policies{share(bandwidth.Share{Instance: "b {x}", Bytes: 2}), slots(policy.SlotShare{Instance: "b {x}", Slots: 3})},
			bus.Policies{limits}, 0},
		{"one that does not hear its own channel hears it from the one of all",
			[]policy.Addressed{{Message: share(bandwidth.Share{Instance: "a", Bytes: 1}, bandwidth.Share{Instance: "deaf", Bytes: 2}), To: []string{"a", "deaf"}}},
			bus.Policies{share(bandwidth.Share{Instance: "a", Bytes: 1})}, nil,
			bus.Policies{share(bandwidth.Share{Instance: "a", Bytes: 1}, bandwidth.Share{Instance: "deaf", Bytes: 2})}, 1},
		{"and then nobody needs it twice, nor does its own channel get it",
			[]policy.Addressed{{Message: throttle, To: []string{"a", "deaf"}}, {Message: throttle, To: []string{"b {x}"}}},
			nil, bus.Policies{throttle}, bus.Policies{throttle}, 1},
	} {
		if err := b.PublishTo(t.Context(), step.send); err != nil {
			t.Fatal(err)
		}
		// What follows closes the lists.
		end := policy.Unblock{User: "end"}
		if err := b.PublishTo(t.Context(), []policy.Addressed{{Message: end, To: everyone}, {Message: end}}); err != nil {
			t.Fatal(err)
		}
		for who, want := range map[string]bus.Policies{"a": step.hearA, "b": step.hearB, "all": step.hearAll} {
			var got bus.Policies
			for len(got) == 0 || got[len(got)-1] != policy.Message(end) {
				got = append(got, map[string]ear{"a": a, "b": other, "all": all}[who].next(t).(bus.Policies)...)
			}
			if diff := cmp.Diff(append(append(bus.Policies{}, want...), end), got); diff != "" {
				t.Errorf("%s: %s heard (-want +got):\n%s", step.name, who, diff)
			}
		}
		if n := s.metric(t, "sluice_bus_policies_unheard_total"); n != step.unheard {
			t.Errorf("%s: unheard = %v, want %v", step.name, n, step.unheard)
		}
	}
}

// While Redis is away nobody is told anything in another way.
func TestUnheardWhileRedisIsAway(t *testing.T) {
	metrics := prometheus.NewRegistry()
	b, err := bus.Open(bus.Options{Addresses: []string{"127.0.0.1:1"}, Registerer: metrics})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.PublishTo(t.Context(), []policy.Addressed{{Message: policy.Unblock{User: "alice"}, To: []string{"a", "b"}}})
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("PublishTo = %v, want %v", err, bus.ErrUnavailable)
	}
	const none = "# HELP sluice_bus_policies_unheard_total Messages for one instance that nobody heard, and that were sent to all instances instead: " +
		"it may not subscribe to its own channel, or has lost its connection.\n" +
		"# TYPE sluice_bus_policies_unheard_total counter\nsluice_bus_policies_unheard_total 0\n"
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(none), "sluice_bus_policies_unheard_total"); err != nil {
		t.Error(err)
	}
}
