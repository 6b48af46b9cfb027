//go:build !race

package spoa

import (
	"bufio"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestSimulatedBytes compares what the simulation takes for the size of a call with what internal/bus sends.
func TestSimulatedBytes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	sent := make(chan int, 100)
	go countCommands(l, sent)
	b, err := bus.Open(bus.Options{Addresses: []string{l.Addr().String()}, Shards: simShards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	const instance = "edge-0001#abcdefgh"
	const sharded = len("spublish") - len("publish") // this server is no Redis Cluster
	user := simUser(12345)
	shard := b.ShardOf(user)
	now := time.Now().Unix()
	tokens := []ratelimit.Ask{
		{Key: ratelimit.Key{Class: "GET", User: user}, Seq: 77, WindowStart: now, Limit: 1024, Need: 3, Ahead: 12, Reserve: 250, Instances: 1000},
		{Key: ratelimit.Key{Class: limits.All, User: user}, Seq: 77, WindowStart: now, Limit: 2048, Back: 17, Untold: true, Instances: 1000},
		{Key: ratelimit.Key{Class: "GET", User: user}, Seq: 77, WindowStart: now + 1, Limit: 1024, Ahead: 1, Reserve: 250, Instances: 1000},
	}
	slots := []concurrency.Ask{
		{User: user, Seq: 123, Want: 4, Active: 2, Limit: 64, Portion: 1},
		{User: user, Seq: 124, Want: 400, Active: 20, Refused: 9, Limit: 6400},
	}
	reports := []bandwidth.Report{{Instance: instance, User: user, Active: 3, Moved: [2]int64{1234567, 0}, Most: [2]int64{99, 0}, Share: [2]int64{1 << 20, 0}}}
	users := []bus.Started{{User: user, Active: 3, Starts: 1000, Classes: []bus.StartedClass{{Class: "GET", Starts: 1000}}}}
	events := bus.Events{Second: now, Users: []bus.EventsOf{{Name: user, Classes: users[0].Classes, Ends: 997}}}
	var parts [16]int
	parts[9] = eventsBytes(&events.Users[0])
	eventsCall, _ := eventsCallBytes(instance+"/7", digits(shard), parts[:])
	for _, tt := range []struct {
		name string
		send func(ctx context.Context) error
		want int
	}{
		{"tokens", func(ctx context.Context) error { _, err := b.Take(ctx, instance, tokens); return err }, takeBytes(instance, shard, tokens) - sharded},
		{"slots", func(ctx context.Context) error { _, err := b.Slots(ctx, instance, 1000, slots); return err }, slotBytes(instance, shard, 1000, slots) - sharded},
		{"alive", func(ctx context.Context) error { return b.Alive(ctx, instance, shard) }, aliveBytes(instance, shard)},
		{"demand", func(ctx context.Context) error { return b.Demand(ctx, instance, reports) },
			publishBytes(toShard, channelBytes("demand", shard), demandBytes(instance, reports)) - sharded},
		{"starts", func(ctx context.Context) error { return b.Started(ctx, instance, time.Second, users) },
			publishBytes(toShard, channelBytes("starts", shard), startedBytes(instance, users)) - sharded},
		{"events", func(ctx context.Context) error { return b.AddEvents(ctx, instance+"/7", events) },
			eventsCall - eventPartDigits(user, 9)},
	} {
		if err := tt.send(t.Context()); err == nil {
			t.Fatalf("%s: no error of a server that only refuses", tt.name)
		}
		if got := <-sent; got != tt.want {
			t.Errorf("%s: internal/bus sends %d bytes, want the simulation's %d", tt.name, got, tt.want)
		}
	}
}

// eventPartDigits is by how many digits the user's part of a report is shorter than another one's name.
func eventPartDigits(user string, part int) int { return digits(part) - digits(simEventPart(user)) }

// countCommands refuses each command of all connections, and tells how long it was.
func countCommands(l net.Listener, sent chan<- int) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in, greeted := bufio.NewReader(conn), false
			for {
				n, err := readCommand(in)
				if err != nil {
					return
				}
				// The first one of a connection is go-redis' greeting.
				if !greeted {
					greeted = true
					_, _ = io.WriteString(conn, "*0\r\n")
					continue
				}
				sent <- n
				_, _ = io.WriteString(conn, "-ERR refused\r\n")
			}
		}()
	}
}

// readCommand is how many bytes a command has.
func readCommand(in *bufio.Reader) (n int, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n = len(line)
	args, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	for range args {
		if line, err = in.ReadString('\n'); err != nil {
			return 0, err
		}
		length, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		skipped, err := in.Discard(length + 2)
		if n += len(line) + skipped; err != nil {
			return 0, err
		}
	}
	return n, nil
}

// TestSimulatedFleet has a small fleet whose busy users are at their limits: none is exceeded, and HAProxy
// admits the others by credit.
func TestSimulatedFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runSim(t, 6, newSimLoad(6000, 3000, 30, 0), time.Second)
		if r.worst < 0.95 || r.worst > 1.01 {
			t.Errorf("the worst second of a user was %.3f of the limit, want 0.95 to 1.01", r.worst)
		}
		if r.worstInProgress < 0.95 || r.worstInProgress > 1.01 {
			t.Errorf("a user had %.3f of the limit in progress, want 0.95 to 1.01", r.worstInProgress)
		}
		if share := r.byCredit / r.requests; share < 0.9 {
			t.Errorf("HAProxy admitted %.2f of the requests by credit, want at least 0.90", share)
		}
	})
}

// TestSimulatedFleetWithASlowRedis has one that answers in time: but an ask that must wait for the one before it
// is answered after a request may wait. No agent takes that for silence, in which it would admit without slots and tokens.
func TestSimulatedFleetWithASlowRedis(t *testing.T) {
	for _, tt := range []struct {
		instances int
		roundTrip time.Duration
		load      *simLoad
	}{
		{6, 12 * time.Millisecond, newSimLoad(60_000, 6000, 60, 0)},
		// Most limits are below the number of instances: of these each admits a request in silence.
		{20, 18 * time.Millisecond, newSimLoad(20_000, 2000, 100, 0)},
	} {
		t.Run(tt.roundTrip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.load.roundTrip = tt.roundTrip
				r := runSim(t, tt.instances, tt.load, time.Second)
				if r.worst > 1 || r.worstInProgress > 1 {
					t.Errorf("a user had %.3f of the limit admitted in a second, and %.3f of the other in progress, want at most 1", r.worst, r.worstInProgress)
				}
			})
		})
	}
}

// TestSimulatedFleetIsLikeARealOne asks ten agents what BenchmarkScale does, and compares with what it measured.
func TestSimulatedFleetIsLikeARealOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := zipfLoad(200, 1_000_000)
		r := runSim(t, 10, &simLoad{limits: l.limits, rate: l.rate, next: l.next(rand.New(rand.NewPCG(1, 0)))}, 5*time.Second)
		for _, tt := range []struct {
			name           string
			got, want, per float64 // per: how far it may be off, in per cent
		}{
			{"asks for tokens/s", r.kinds[simTokens].calls, 276, 15},
			{"asks for slots/s", r.kinds[simSlots].calls, 170, 15},
			{"alive/s", r.kinds[simAlive].calls, 314, 15},
			{"heartbeats/s", r.kinds[simHeartbeats].calls, 40, 5},
			{"kB/s into Redis", r.sum(toRedis) / 1e3, 325, 15},
			{"kB/s to each agent", r.sum(toAgents) / 1e4, 8.03, 15},
			{"kB/s to polygen", r.sum(toPolygen) / 1e3, 49, 20},
		} {
			if math.Abs(tt.got/tt.want-1) > tt.per/100 {
				t.Errorf("%s: %.2f, and the real fleet has %.2f, want at most %g %% between them", tt.name, tt.got, tt.want, tt.per)
			}
		}
	})
}
