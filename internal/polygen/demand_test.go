package polygen

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// moving limits everybody's bandwidth, bytes that divide well.
const moving = `version: 1
default_tier: free
tiers:
  free: {bandwidth: {down: 8MiB, up: 4MiB}}
  down: {bandwidth: {down: 8MiB}}
  staff: {}
users: {down: down, staff: staff}
`

const mib = 1 << 20

// demands is an instance's report of one user.
func demands(instance, user string, active int, most ...int64) redisbus.Demand {
	r := bandwidth.Report{Instance: instance, User: user, Active: active}
	copy(r.Most[:], most)
	return redisbus.Demand{r}
}

// given is the same report of an instance that has been given shares.
func given(instance, user string, active int, down, up int64) redisbus.Demand {
	return redisbus.Demand{{Instance: instance, User: user, Active: active, Share: [2]int64{down, up}}}
}

// What agents report, and what is sent.
func TestDemandBecomesPolicies(t *testing.T) {
	type event = any
	share := func(user string, d bandwidth.Direction, shares ...bandwidth.Share) redisbus.Message {
		return redisbus.Share{User: user, Direction: d, Shares: shares}
	}
	one := func(bytes int64) bandwidth.Share { return bandwidth.Share{Instance: "one", Bytes: bytes} }
	two := func(bytes int64) bandwidth.Share { return bandwidth.Share{Instance: "two", Bytes: bytes} }
	both := redisbus.Registry{Instances: []string{"one", "two"}}
	const down, up = bandwidth.Down, bandwidth.Up
	all := []redisbus.Message{share("alice", down, one(8*mib)), share("alice", up, one(4*mib))}
	then := func(a []redisbus.Message, b ...redisbus.Message) []redisbus.Message {
		return append(append([]redisbus.Message{}, a...), b...)
	}
	halves := []redisbus.Message{share("alice", down, one(4*mib), two(4*mib)), share("alice", up, one(2*mib), two(2*mib))}
	for _, tt := range []struct {
		name   string
		events []event
		want   []redisbus.Message
	}{
		{"one instance: it has all", []event{demands("one", "alice", 1)}, all},
		{"only down is limited", []event{demands("one", "down", 1)}, []redisbus.Message{share("down", down, one(8*mib))}},
		{"who has no limit has no share", []event{demands("one", "staff", 5)}, nil},
		{"nothing in progress", []event{demands("one", "alice", 0)}, nil},
		{"another one begins, at once", []event{demands("one", "alice", 1), demands("two", "alice", 1)}, then(all, halves...)},
		{"two reports in one message", []event{append(demands("one", "alice", 1), demands("one", "down", 1)...)},
			then(all, share("down", down, one(8*mib)))},
		{"what has come meanwhile is said once", []event{append(demands("one", "alice", 1), demands("two", "alice", 1)...)}, halves},
		{"by the requests in progress", []event{demands("one", "alice", 1), demands("two", "alice", 3)},
			then(all, share("alice", down, one(2*mib), two(6*mib)), share("alice", up, one(mib), two(3*mib)))},
		{"and by what each can use, in its direction", []event{demands("one", "alice", 1, mib), demands("two", "alice", 1)},
			then(all, share("alice", down, one(mib), two(7*mib)), halves[1])},
		{"up as well", []event{demands("one", "alice", 1, 0, mib), demands("two", "alice", 1)},
			then(all, halves[0], share("alice", up, one(mib), two(3*mib)))},
		{"a demand that changes waits for its turn", []event{demands("one", "alice", 1), demands("two", "alice", 1),
			demands("two", "alice", 3), bytesTick(20 * time.Millisecond)}, then(all, halves...)},
		{"which comes", []event{demands("one", "alice", 1), demands("two", "alice", 1), demands("two", "alice", 3), bytesTick(50 * time.Millisecond)},
			then(all, halves[0], halves[1], share("alice", down, one(2*mib), two(6*mib)), share("alice", up, one(mib), two(3*mib)))},
		{"one ends: the other has all", []event{demands("one", "alice", 1), demands("two", "alice", 1), demands("two", "alice", 0)},
			then(then(all, halves...), all...)},
		{"an instance has left", []event{both, demands("one", "alice", 1), demands("two", "alice", 1), redisbus.Registry{Instances: []string{"one"}}},
			then(then(all, halves...), all...)},
		{"nobody has left", []event{demands("one", "alice", 1), demands("two", "alice", 1), both}, then(all, halves...)},
		{"nothing new is not said", []event{demands("one", "alice", 1), given("one", "alice", 1, 8*mib, 4*mib), bytesTick(100 * time.Millisecond)}, all},
		{"until it is repeated", []event{demands("one", "alice", 1), bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib), bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib),
			bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib), bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib),
			bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib), bytesTick(1500 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib),
			bytesTick(900 * time.Millisecond), given("one", "alice", 1, 8*mib, 4*mib), bytesTick(1900 * time.Millisecond)}, then(all, all...)},
		{"or an instance has missed it", []event{demands("one", "alice", 1), bytesTick(300 * time.Millisecond), given("one", "alice", 1, 0, 4*mib), bytesTick(60 * time.Millisecond)},
			then(all, all[0])},
		{"what is not heard of for 2 s is over", []event{demands("one", "alice", 1), demands("two", "alice", 1), bytesTick(time.Second),
			given("one", "alice", 1, 4*mib, 2*mib), bytesTick(1010 * time.Millisecond)}, then(then(all, halves...), all...)},
		{"a higher limit, with the next report", []event{demands("one", "alice", 1), file(strings.ReplaceAll(moving, "8MiB", "16MiB")), demands("one", "alice", 1)},
			then(all, share("alice", down, one(16*mib)))},
		{"a lower one", []event{demands("one", "alice", 1), file(strings.Replace(moving, "4MiB", "1MiB", 1)), demands("one", "alice", 1)},
			then(all, share("alice", up, one(mib)))},
		{"no limit any more", []event{demands("one", "alice", 1), file(strings.Replace(moving, "default_tier: free", "default_tier: staff", 1)),
			demands("one", "alice", 1), bytesTick(100 * time.Millisecond)}, all},
		{"of several, the last word", []event{together{demands("one", "alice", 1), demands("two", "alice", 1)}}, halves},
		{"sorted by user, after blocks and slots", []event{both,
			file(strings.Replace(moving, "staff: {}\n", "staff: {concurrent: 20}\n", 1)),
			together{demands("one", "down", 1), demands("one", "alice", 1), redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{{User: "staff", Active: 20}}}, tick(0)}},
			then([]redisbus.Message{redisbus.Block{User: "staff", Limit: 20, Release: 19}, redisbus.Slots{User: "staff"},
				redisbus.Slots{User: "staff", Shares: []redisbus.SlotShare{{Instance: "one", Slots: 20}}}},
				then(all, share("down", down, one(8*mib)))...)},
		{"a follower says nothing", []event{leads(false), demands("one", "alice", 1), demands("two", "alice", 1), bytesTick(100 * time.Millisecond)}, nil},
		{"but knows, when it takes over: what is missed is said", []event{leads(false), demands("one", "alice", 1), leads(true), bytesTick(300 * time.Millisecond),
			demands("one", "alice", 1), bytesTick(60 * time.Millisecond)}, all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, _ := play(t, moving, tt.events, nil)
			// How exactly a limit is divided is pkg/bandwidth's business.
			about := cmp.Comparer(func(a, b bandwidth.Share) bool {
				return a.Instance == b.Instance && max(a.Bytes-b.Bytes, b.Bytes-a.Bytes) <= max(a.Bytes, b.Bytes)/50
			})
			if diff := cmp.Diff(tt.want, got, about, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(redisbus.Slots{}, "Until")); diff != "" {
				t.Errorf("policies differ (-want +got):\n%s", diff)
			}
		})
	}
}
