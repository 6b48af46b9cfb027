package redisbus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// All instances hear what is for all; of what is divided each hears its own part.
func policiesToEach(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	all, a, other := listen(t, b, redisbus.PoliciesChannel), listenOwn(t, b, "a"), listenOwn(t, b, "b {x}")
	share := func(of ...bandwidth.Share) redisbus.Share { return redisbus.Share{User: "bob", Shares: of} }
	slots := func(of ...redisbus.SlotShare) redisbus.Slots {
		return redisbus.Slots{User: "bob", Until: time.Unix(17, 0).UTC(), Shares: of}
	}
	forAll := redisbus.Policies{redisbus.Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 17, Limit: 5}, slots()}
	everyone := []string{"a", "b {x}", "gone"}
	if err := errors.Join(b.PublishPolicies(t.Context(), forAll), b.PublishTo(t.Context(), []redisbus.Addressed{
		{Message: share(bandwidth.Share{Instance: "a", Bytes: 1}, bandwidth.Share{Instance: "b {x}", Bytes: 2}), To: everyone},
		{Message: slots(redisbus.SlotShare{Instance: "b {x}", Slots: 3}), To: everyone},
		{Message: share(bandwidth.Share{Instance: "b {x}", Bytes: 4}), To: []string{"b {x}"}},
	})); err != nil {
		t.Fatal(err)
	}
	for _, hears := range []struct {
		who  string
		ear  ear
		want redisbus.Policies
	}{
		{"all", all, forAll},
		{"a", a, redisbus.Policies{share(bandwidth.Share{Instance: "a", Bytes: 1}), slots(redisbus.SlotShare{Instance: "a"})}},
		{"b", other, redisbus.Policies{share(bandwidth.Share{Instance: "b {x}", Bytes: 2}), slots(redisbus.SlotShare{Instance: "b {x}", Slots: 3}), share(bandwidth.Share{Instance: "b {x}", Bytes: 4})}},
	} {
		if diff := cmp.Diff(hears.want, hears.ear.next(t)); diff != "" {
			t.Errorf("%s heard (-want +got):\n%s", hears.who, diff)
		}
	}
}

func TestPublishWhileRedisIsAway(t *testing.T) {
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{"127.0.0.1:1"}})
	testkit.Must(t, err)
	defer b.Close()
	for what, err := range map[string]error{
		"PublishTo":       b.PublishTo(t.Context(), []redisbus.Addressed{{Message: redisbus.Slots{User: "alice"}, To: []string{"a", "b"}}}),
		"PublishPolicies": b.PublishPolicies(t.Context(), []redisbus.Message{redisbus.Unblock{User: "alice"}}),
	} {
		if !errors.Is(err, redisbus.ErrUnavailable) {
			t.Errorf("%s = %v, want %v", what, err, redisbus.ErrUnavailable)
		}
	}
}
