package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// All instances hear what is for all; of what is divided each hears its own part.
func policiesToEach(t *testing.T, s *server) {
	b := s.open(t, bus.Options{})
	all, a, other := listen(t, b, bus.PoliciesChannel), listenOwn(t, b, "a"), listenOwn(t, b, "b {x}")
	share := func(of ...bandwidth.Share) policy.Share { return policy.Share{User: "bob", Shares: of} }
	slots := func(of ...policy.SlotShare) policy.Slots {
		return policy.Slots{User: "bob", Until: time.Unix(17, 0).UTC(), Shares: of}
	}
	forAll := bus.Policies{policy.Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 17, Limit: 5}, slots()}
	everyone := []string{"a", "b {x}", "gone"}
	if err := errors.Join(b.PublishPolicies(t.Context(), forAll), b.PublishTo(t.Context(), []policy.Addressed{
		{Message: share(bandwidth.Share{Instance: "a", Bytes: 1}, bandwidth.Share{Instance: "b {x}", Bytes: 2}), To: everyone},
		{Message: slots(policy.SlotShare{Instance: "b {x}", Slots: 3}), To: everyone},
		{Message: share(bandwidth.Share{Instance: "b {x}", Bytes: 4}), To: []string{"b {x}"}},
	})); err != nil {
		t.Fatal(err)
	}
	for _, hears := range []struct {
		who  string
		ear  ear
		want bus.Policies
	}{
		{"all", all, forAll},
		{"a", a, bus.Policies{share(bandwidth.Share{Instance: "a", Bytes: 1}), slots(policy.SlotShare{Instance: "a"})}},
		{"b", other, bus.Policies{share(bandwidth.Share{Instance: "b {x}", Bytes: 2}), slots(policy.SlotShare{Instance: "b {x}", Slots: 3}), share(bandwidth.Share{Instance: "b {x}", Bytes: 4})}},
	} {
		if diff := cmp.Diff(hears.want, hears.ear.next(t)); diff != "" {
			t.Errorf("%s heard (-want +got):\n%s", hears.who, diff)
		}
	}
}

func TestPublishWhileRedisIsAway(t *testing.T) {
	b, err := bus.Open(bus.Options{Addresses: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for what, err := range map[string]error{
		"PublishTo":       b.PublishTo(t.Context(), []policy.Addressed{{Message: policy.Slots{User: "alice"}, To: []string{"a", "b"}}}),
		"PublishPolicies": b.PublishPolicies(t.Context(), []policy.Message{policy.Unblock{User: "alice"}}),
	} {
		if !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("%s = %v, want %v", what, err, bus.ErrUnavailable)
		}
	}
}
