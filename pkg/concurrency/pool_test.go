package concurrency_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

func TestTake(t *testing.T) {
	type pool = map[string]concurrency.Holding
	tests := []struct {
		name string
		pool pool
		ask  concurrency.Ask
		want concurrency.Grant
		me   concurrency.Holding // afterwards
	}{
		{"an empty pool grants", nil, concurrency.Ask{Seq: 1, Want: 4, Limit: 10},
			concurrency.Grant{Held: 4, Free: 6}, concurrency.Holding{Held: 4, Seq: 1}},
		{"as far as the limit allows", pool{"x": {Held: 5}, "y": {Held: 3}}, concurrency.Ask{Seq: 1, Want: 4, Active: 1, Limit: 10},
			concurrency.Grant{Held: 2}, concurrency.Holding{Held: 2, Active: 1, Seq: 1}},
		{"slots are given back at once", pool{"me": {Held: 8, Active: 8, Seq: 3}}, concurrency.Ask{Seq: 4, Want: 2, Active: 1, Limit: 10},
			concurrency.Grant{Held: 2, Free: 8}, concurrency.Holding{Held: 2, Active: 1, Seq: 4}},
		{"an ask that is not newer is told what is", pool{"me": {Held: 8, Active: 5, Seq: 3}}, concurrency.Ask{Seq: 3, Want: 1, Limit: 10},
			concurrency.Grant{Held: 8, Free: 2}, concurrency.Holding{Held: 8, Active: 5, Seq: 3}},
		{"what runs is held, even above the limit", pool{"x": {Held: 9}}, concurrency.Ask{Seq: 1, Want: 5, Active: 5, Limit: 10},
			concurrency.Grant{Held: 5, Free: -4}, concurrency.Holding{Held: 5, Active: 5, Seq: 1}},
		{"above the limit only downwards", pool{"me": {Held: 5, Active: 5, Seq: 1}, "x": {Held: 9}}, concurrency.Ask{Seq: 2, Want: 6, Active: 4, Limit: 10},
			concurrency.Grant{Held: 5, Free: -4}, concurrency.Holding{Held: 5, Active: 4, Seq: 2}},
		{"a limit that was lowered takes nothing away", pool{"me": {Held: 8, Active: 2, Seq: 1}}, concurrency.Ask{Seq: 2, Want: 9, Active: 2, Limit: 5},
			concurrency.Grant{Held: 8, Free: -3}, concurrency.Holding{Held: 8, Active: 2, Seq: 2}},
		{"live instances that never asked hold their portions", pool{"y": {Held: 1}}, concurrency.Ask{Seq: 1, Want: 10, Limit: 10, Portion: 2},
			concurrency.Grant{Held: 7}, concurrency.Holding{Held: 7, Seq: 1}},
		{"those that asked hold what they say", pool{"x": {Held: 0}, "z": {Held: 1}}, concurrency.Ask{Seq: 1, Want: 10, Limit: 10, Portion: 2},
			concurrency.Grant{Held: 9}, concurrency.Holding{Held: 9, Seq: 1}},
		{"not even the portion is granted where others hold all", pool{"x": {Held: 10}}, concurrency.Ask{Seq: 1, Want: 2, Limit: 10, Portion: 2},
			concurrency.Grant{Held: 0, Free: -2}, concurrency.Holding{Seq: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pool{}
			maps.Copy(p, tt.pool)
			if got := concurrency.Take(p, 3, "me", tt.ask); got != tt.want {
				t.Errorf("Take(%+v) = %+v, want %+v", tt.ask, got, tt.want)
			}
			tt.pool = maps.Clone(tt.pool)
			if tt.pool == nil {
				tt.pool = pool{}
			}
			tt.pool["me"] = tt.me
			if diff := cmp.Diff(tt.pool, p); diff != "" {
				t.Errorf("the pool (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTakeInAnyOrder has instances ask in order, over links that lose, repeat
// and reorder: never are more held than the limit or than runs, and one last ask
// of each sets everything right.
func TestTakeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		pool := map[string]concurrency.Holding{}
		last := map[string]concurrency.Ask{}
		type message struct {
			from string
			ask  concurrency.Ask
		}
		var way []message
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "ask") {
				name := fmt.Sprint("i", rapid.IntRange(0, 3).Draw(t, "instance"))
				ask := concurrency.Ask{Seq: last[name].Seq + 1, Want: rapid.IntRange(0, limit).Draw(t, "want"), Limit: limit}
				ask.Active = rapid.IntRange(0, min(ask.Want, pool[name].Held)).Draw(t, "active")
				last[name] = ask
				way = append(way, message{name, ask})
				continue
			}
			if len(way) == 0 {
				continue
			}
			i := rapid.IntRange(0, len(way)-1).Draw(t, "message")
			m := way[i]
			if !rapid.Bool().Draw(t, "repeated") {
				way = append(way[:i], way[i+1:]...)
			}
			if rapid.Bool().Draw(t, "lost") {
				continue
			}
			before := pool[m.from]
			g := concurrency.Take(pool, 0, m.from, m.ask)
			after := pool[m.from]
			held, active := 0, 0
			for _, h := range pool {
				held += h.Held
				active += h.Active
			}
			switch {
			case g.Held != after.Held || g.Free != limit-held:
				t.Fatalf("Take = %+v, with %d held of %d, want what is", g, held, limit)
			case m.ask.Seq <= before.Seq && after != before:
				t.Fatalf("an old ask changed %+v to %+v", before, after)
			case m.ask.Seq > before.Seq && (after.Held > m.ask.Want || after.Held < m.ask.Active):
				t.Fatalf("Take(%+v) leaves %+v, want from active to want", m.ask, after)
			case held > max(limit, active) && after.Held > before.Held && after.Held > m.ask.Active:
				t.Fatalf("granted up to %d, with %d held of %d", after.Held, held, limit)
			}
		}
		for name, ask := range last {
			ask.Seq, ask.Want, ask.Active = ask.Seq+1, 1, 1
			concurrency.Take(pool, 0, name, ask)
			if got, want := pool[name], (concurrency.Holding{Held: 1, Active: 1, Seq: ask.Seq}); got != want {
				t.Fatalf("after the last ask of %s: %+v, want %+v", name, got, want)
			}
		}
	})
}
