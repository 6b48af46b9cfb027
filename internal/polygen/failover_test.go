package polygen

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// replicated is a Redis with a replica, and a way to them that follows a failover.
type replicated struct {
	clients *proctest.Link // leads to the master
	link    *proctest.Link // from the replica to the master
	replica string
}

func startReplicated(t *testing.T) replicated {
	t.Helper()
	_, master := proctest.Redis(t, "--repl-diskless-sync-delay", "0")
	_, replica := proctest.Redis(t)
	r := replicated{proctest.NewLink(t, master, 0), proctest.NewLink(t, master, 0), replica}
	host, port, _ := net.SplitHostPort(r.link.Addr)
	proctest.RedisCommand(t, replica, "REPLICAOF", host, port)
	proctest.Eventually(t, "the replica follows", func() error {
		if said := proctest.RedisCommand(t, master, "ROLE"); !strings.Contains(said, "127.0.0.1") {
			return errors.New(said)
		}
		if said := proctest.RedisCommand(t, replica, "INFO", "replication"); !strings.Contains(said, "master_link_status:up") {
			return errors.New(said)
		}
		return nil
	})
	return r
}

// failOver makes the replica the master, with what it has.
func (r replicated) failOver(t *testing.T) {
	t.Helper()
	proctest.RedisCommand(t, r.replica, "REPLICAOF", "NO", "ONE")
	r.clients.To(r.replica)
}

func (g *generator) remove(t *testing.T, user string) api.Override {
	t.Helper()
	out, err := g.RemoveOverride(t.Context(), api.OverrideRequest{Action: api.RemoveOverride, User: user, Reason: "over"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What is set while a replica lags behind says that it is not safe, and is there again after the failover,
// on all polygens; what is removed meanwhile stays so.
func TestOverridesOutliveAFailover(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	one := newGenerator(t, r.clients.Addr, "one", nil)
	two := newGenerator(t, r.clients.Addr, "two", nil)
	for _, user := range []string{"carol", "dave"} {
		// Not always at once: a replica counts as online before its first acknowledgement, which may take a second.
		proctest.Eventually(t, "a write is safe on a replica that works", func() error {
			out, err := one.Override(t.Context(), act(user, `{"concurrent":60}`))
			if err == nil && out.Unsafe != "" {
				err = errors.New(out.Unsafe)
			}
			return err
		})
	}
	unsafe := one.overrides.metrics.writes.WithLabelValues("override", "unsafe")
	before := testutil.ToFloat64(unsafe)
	two.readOverrides(t.Context())

	r.link.Hold()
	out, err := one.Override(t.Context(), act("bob", `{"concurrent":50}`))
	if err != nil || out.Unsafe != "0 of 1 replicas of Redis have it" {
		t.Fatalf("Override = %q, %v, want that it is not safe", out.Unsafe, err)
	}
	if out := one.remove(t, "carol"); out.Unsafe == "" {
		t.Error("the removal says that it is safe")
	}
	if n := testutil.ToFloat64(unsafe) - before; n != 1 {
		t.Errorf("unsafe overrides = %v, want 1", n)
	}

	r.failOver(t)
	if said := proctest.RedisCommand(t, r.replica, "HGET", "sluice:overrides", "list"); strings.Contains(said, "bob") || !strings.Contains(said, "carol") {
		t.Fatalf("the replica has %s: it did not lag behind", said)
	}
	two.must(t, act("eve", `{"concurrent":70}`)) // it has not heard of bob, nor of carol's end
	proctest.Eventually(t, "Redis and both polygens have it again", func() error {
		for _, g := range []*generator{one, two} {
			g.readOverrides(t.Context())
			for user, want := range map[string]int{"bob": 50, "carol": 5, "dave": 60, "eve": 70} {
				if got := g.set.Load().User(user).Concurrent; got != want {
					return fmt.Errorf("%s: %s has %d, want %d", g.options.Name, user, got, want)
				}
			}
		}
		return nil
	})
	if n := testutil.ToFloat64(one.overrides.metrics.restored); n != 1 {
		t.Errorf("sluice_overrides_restored_total = %v, want 1", n)
	}
	third := newGenerator(t, r.clients.Addr, "three", nil)
	third.readOverrides(t.Context())
	if n := len(third.Overrides().Overrides); n != 3 {
		t.Errorf("one that starts then has %d overrides, want 3", n)
	}
}

// A Redis that is emptied right after a write has it again, and so has the polygen that had not read it.
func TestOverridesOutliveAFlushRightAfter(t *testing.T) {
	t.Parallel()
	_, addr := proctest.Redis(t)
	one := newGenerator(t, addr, "one", nil)
	two := newGenerator(t, addr, "two", nil)
	one.must(t, act("carol", `{"concurrent":60}`))
	two.readOverrides(t.Context())
	if out, err := one.Override(t.Context(), act("bob", `{"concurrent":50}`)); err != nil || out.Unsafe != "" {
		t.Fatalf("Override = %q, %v, want it safe: there are no replicas", out.Unsafe, err)
	}
	one.remove(t, "carol")
	flush(t, addr)
	two.readOverrides(t.Context()) // the first one to notice is the one that knows less
	one.readOverrides(t.Context())
	two.readOverrides(t.Context())
	for _, g := range []*generator{one, two} {
		if bob, carol := g.set.Load().User("bob").Concurrent, g.set.Load().User("carol").Concurrent; bob != 50 || carol != 5 {
			t.Errorf("%s: bob has %d, carol %d, want 50 and 5", g.options.Name, bob, carol)
		}
	}
}
