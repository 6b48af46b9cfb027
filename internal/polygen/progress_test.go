package polygen

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

// twenty allows twenty requests in progress.
const twenty = `version: 1
default_tier: free
tiers:
  free: {concurrent: 20}
  staff: {}
users: {staff: staff}
`

// What agents report, and what is sent. The generator does not run: a
// millisecond passes between two events, and a tick where a row says so.
func TestProgressBecomesPolicies(t *testing.T) {
	type event = any
	report := func(instance, user string, active, refused int) redisbus.Progress {
		return redisbus.Progress{Instance: instance, Entries: []redisbus.ProgressEntry{{User: user, Active: active, Refused: refused, Limit: 77}}}
	}
	block := redisbus.Block{User: "alice", Limit: 20, Release: 19}
	unblock := redisbus.Unblock{User: "alice"}
	slots := func(user string, shares ...redisbus.SlotShare) redisbus.Slots {
		return redisbus.Slots{User: user, Shares: shares}
	}
	two := redisbus.Registry{Instances: []string{"one", "two"}}
	others := slots("alice") // to all instances: those without a share have none
	for _, tt := range []struct {
		name   string
		margin int
		events []event
		want   []redisbus.Message
	}{
		{"below the limit", 0, []event{report("one", "alice", 19, 0), tick(0)}, nil},
		{"at the limit", 0, []event{report("one", "alice", 20, 0)}, []redisbus.Message{block}},
		{"said once, however often it is reported", 0, []event{report("one", "alice", 20, 0), report("one", "alice", 21, 0)}, []redisbus.Message{block}},
		{"of all instances together", 0, []event{report("one", "alice", 12, 0), report("two", "alice", 8, 0)}, []redisbus.Message{block}},
		{"repeated after 200 ms", 0, []event{report("one", "alice", 20, 0), tick(190 * time.Millisecond), tick(20 * time.Millisecond), tick(200 * time.Millisecond)},
			[]redisbus.Message{block, block, block}},
		{"until it is reported that there is room, once", 0, []event{report("one", "alice", 20, 0), report("one", "alice", 19, 0),
			report("one", "alice", 18, 0), tick(200 * time.Millisecond), tick(200 * time.Millisecond)}, []redisbus.Message{block, unblock}},
		{"or nothing is reported any more", 0, []event{report("one", "alice", 20, 0), tick(2100 * time.Millisecond), tick(200 * time.Millisecond)},
			[]redisbus.Message{block, unblock}},
		{"or the instance has left", 0, []event{two, report("one", "alice", 12, 0), report("two", "alice", 8, 0),
			redisbus.Registry{Instances: []string{"one"}}}, []redisbus.Message{block, unblock}},
		{"a wider margin", 50, []event{report("one", "alice", 20, 0), report("one", "alice", 11, 0), report("one", "alice", 10, 0)},
			[]redisbus.Message{redisbus.Block{User: "alice", Limit: 20, Release: 10}, unblock}},
		{"who has no limit is never blocked", 0, []event{report("one", "staff", 1000, 50), tick(0)}, nil},
		{"alone, nothing is shared", 0, []event{redisbus.Registry{Instances: []string{"one"}}, report("one", "alice", 18, 5), tick(0)}, nil},
		{"slots are shared by demand", 0, []event{two, report("one", "alice", 14, 3), report("two", "alice", 4, 0), tick(0)},
			[]redisbus.Message{others, slots("alice", redisbus.SlotShare{Instance: "one", Slots: 16}, redisbus.SlotShare{Instance: "two", Slots: 4})}},
		{"and said again in a second only", 0, []event{two, report("one", "alice", 15, 0), tick(0), tick(100 * time.Millisecond),
			tick(850 * time.Millisecond), tick(60 * time.Millisecond)},
			[]redisbus.Message{others, slots("alice", redisbus.SlotShare{Instance: "one", Slots: 20}), slots("alice", redisbus.SlotShare{Instance: "one", Slots: 20})}},
		{"unblocks go first, blocks before shares", 0, []event{two, report("one", "bob", 20, 0),
			redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{{User: "bob"}, {User: "alice", Active: 20}}}, tick(0)},
			[]redisbus.Message{redisbus.Block{User: "bob", Limit: 20, Release: 19}, redisbus.Unblock{User: "bob"}, block, others,
				slots("alice", redisbus.SlotShare{Instance: "one", Slots: 20})}},
		{"a higher limit lets the user in with the next report", 0, []event{report("one", "alice", 20, 0),
			file(strings.Replace(twenty, "20", "30", 1)), report("one", "alice", 20, 0)}, []redisbus.Message{block, unblock}},
		{"a lower one blocks", 0, []event{report("one", "alice", 10, 0), file(strings.Replace(twenty, "20", "10", 1)), report("one", "alice", 10, 0)},
			[]redisbus.Message{redisbus.Block{User: "alice", Limit: 10, Release: 9}}},
		{"of a blocked one, the block says so when it is repeated", 0, []event{report("one", "alice", 20, 0),
			file(strings.Replace(twenty, "20", "10", 1)), report("one", "alice", 20, 0), tick(200 * time.Millisecond)},
			[]redisbus.Message{block, redisbus.Block{User: "alice", Limit: 10, Release: 9}}},
		{"no limit any more", 0, []event{report("one", "alice", 20, 0), file(strings.Replace(twenty, "{concurrent: 20}", "{}", 1)),
			report("one", "alice", 20, 0), tick(200 * time.Millisecond)}, []redisbus.Message{block, unblock}},
		{"a follower says nothing", 0, []event{leads(false), report("one", "alice", 20, 0), tick(200 * time.Millisecond)}, nil},
		{"but knows, when it takes over", 0, []event{leads(false), report("one", "alice", 20, 0), leads(true), tick(210 * time.Millisecond)},
			[]redisbus.Message{block}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, now := play(t, twenty, tt.events, func(o *Options) { o.Margin = tt.margin })
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(redisbus.Slots{}, "Until")); diff != "" {
				t.Errorf("policies differ (-want +got):\n%s", diff)
			}
			for _, m := range got {
				if m, ok := m.(redisbus.Slots); ok && (m.Until.Before(now) || m.Until.After(now.Add(3*time.Second))) {
					t.Errorf("shares hold until %v, want 3 s", m.Until)
				}
			}
		})
	}
}
