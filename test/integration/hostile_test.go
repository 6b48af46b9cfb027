package integration

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// hostileUsers are names made to break keys, tables, messages and logs.
var hostileUsers = []string{
	"a|b", "a,b", "a:b", "a;b", "a%b", "a$b", "a{b}", "a b", "a'b", `a"b`, `a\b`, "a%00b",
	"*", "GET|a", "*|a", "GET", "~", "~a", "{0}", "a;show table;", "${SLUICE_BIND}", "%[src]",
	"größe", "用户", "\xff\xfe", "\x80", "a\tb",
	strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("x", 102),
	strings.Repeat("y", 10_000), strings.Repeat("y", 10_001),
	strings.Repeat("z", 128), strings.Repeat("z", 160),
}

// Each hostile name is a user of its own, whose requests are limited together and with no other user's. Garbage on any socket
// and channel harms nobody else.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: `
version: 1
default_tier: free
tiers: {free: {requests: {GET: {hour: 3}}}, steady: {requests: {GET: 20}}, asked: {requests: {GET: {hour: 100000}}}}
users: {steady: steady, asked: asked, bob: steady}
`})
	var all []func()
	for _, user := range hostileUsers {
		all = append(all, func() {
			admitted, i := 0, 0
			request := func() error {
				res, _, err := scene.Send(t.Context(), http.MethodGet, s.Addresses()[i%2], user, "")
				if i++; err == nil && res.StatusCode == http.StatusOK {
					admitted++
				}
				return err
			}
			err := testkit.Poll(testkit.Patience, func() error {
				if err := request(); err != nil || admitted == 3 {
					return err
				}
				return fmt.Errorf("%d admitted", admitted)
			})
			for range 5 {
				err = errors.Join(err, request())
			}
			if err != nil || admitted != 3 {
				t.Errorf("%.20q of %d bytes: %d requests admitted, want 3: %v", user, len(user), admitted, err)
			}
		})
	}
	side(all...)

	in := s.Instances[0]
	garbageOnSockets(t, s)
	if !in.Agent.Running() || in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) < 50 {
		t.Error("the agent died, or requests did not reach it")
	}
	for _, message := range []string{
		"", "x", "1 throttle", "1 throttle \"GET\" \"alice\" x y\n", "9 throttle \"GET\" \"alice\" 1 1\n",
		strings.Repeat("a", 100_000), "1 hot \"GET\" \"alice\"\n\x00\xff", "1 limits \"no-such-version\"\n",
	} {
		for _, channel := range []string{"sluice:policies", "sluice:{0}:usage", "sluice:instances"} {
			testkit.RedisCommand(t, s.RedisAddr, "PUBLISH", channel, strings.ReplaceAll(message, "\x00", "\x01"))
		}
		publishPacked(t, s.RedisAddr, message)
	}
	scene.AwaitMetric(t, in.Admin, `sluice_bus_malformed_total{channel="sluice:policies"}`, func(n float64) bool { return n >= 4 })
	// Nor has a throttle of a far second an effect.
	publishPacked(t, s.RedisAddr, fmt.Sprintf("1 throttle \"GET\" \"bob\" %d 1\n", time.Now().Add(time.Hour).Unix()))
	if res, _ := scene.Get(t, in.Address, "bob"); res.StatusCode != http.StatusOK {
		t.Errorf("bob got %d", res.StatusCode)
	}
	for _, in := range s.Instances {
		in.AwaitReady(t)
	}
	r := s.Offer(t, "even", 300, 2*time.Second, scene.GETs("steady"))
	scene.CheckAnswered(t, r)
	scene.CheckLimit(t, r, "steady", 20, 0.9)
}

// publishPacked publishes lines of policies as polygen does.
func publishPacked(t *testing.T, redis, lines string) {
	t.Helper()
	conn, err := net.Dial("tcp", redis)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	packed := redisbus.Pack([]byte(lines))
	fmt.Fprintf(conn, "*3\r\n$7\r\nPUBLISH\r\n$15\r\nsluice:policies\r\n$%d\r\n%s\r\n", len(packed), packed)
	answer := make([]byte, 1)
	if _, err := conn.Read(answer); err != nil || answer[0] != ':' {
		t.Fatalf("PUBLISH = %q, %v", answer, err)
	}
}

// garbageOnSockets writes to the sockets of the agent and of HAProxy's peers. Requests about which the agent is asked go on.
func garbageOnSockets(t *testing.T, s *scene.Scene) {
	t.Helper()
	frame := func(body []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	garbage := [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		{0xff, 0xff, 0xff, 0xff, 1}, {0, 0, 0, 0}, {0, 0, 0, 1, 1}, {0, 0, 0, 20, 3},
		frame(append([]byte{3, 0, 0, 0, 1, 1, 1}, []byte("\x05start\x02")...)),
		frame(append([]byte{1, 0, 0, 0, 1, 0, 0}, []byte("\x0emax-frame-size\x08\x03abc")...)),
	}
	for range 25 {
		junk := make([]byte, 200)
		_, _ = rand.Read(junk)
		garbage = append(garbage, junk, frame(junk), append([]byte("HAProxyS 2.1\nhaproxy\nagent 1 1\n"), junk...))
	}
	in := s.Instances[0]
	for _, g := range garbage {
		for _, socket := range []string{in.SPOE, in.Peers, filepath.Join(filepath.Dir(in.SPOE), "costs.sock")} {
			var conn net.Conn
			testkit.Eventually(t, "a connection", func() (err error) { // the backlog of HAProxy's peers is short
				conn, err = net.Dial("unix", socket)
				return err
			})
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
			_, _ = conn.Write(g)
			conn.Close()
		}
		if res, _ := scene.Get(t, in.Address, "asked"); res.StatusCode != http.StatusOK {
			t.Fatalf("%d after %q", res.StatusCode, g)
		}
	}
}
