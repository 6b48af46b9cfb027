package integration

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// hostileUsers are names made to break keys, tables, messages and logs. Each must be a
// user of its own, whose requests are limited together and with nobody else's.
var hostileUsers = []string{
	"a|b", "a,b", "a:b", "a;b", "a%b", "a$b", "a{b}", "a b", "a'b", `a"b`, `a\b`, "a%00b",
	"*", "GET|a", "*|a", "GET", "~", "~a", "{0}", "a;show table;", "${SLUICE_BIND}", "%[src]",
	"größe", "用户", "\xff\xfe", "\x80", "a\tb",
	strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("x", 102),
	strings.Repeat("y", 10_000), strings.Repeat("y", 10_001),
	strings.Repeat("z", 128), strings.Repeat("z", 160),
}

// awaitSecond waits until a second has just begun, by every clock of this machine, and
// returns when it began.
func awaitSecond() time.Time {
	now := time.Now()
	begin := now.Truncate(time.Second)
	if now.Sub(begin) > 300*time.Millisecond {
		begin = begin.Add(time.Second)
	}
	time.Sleep(time.Until(begin.Add(30 * time.Millisecond)))
	return begin
}

func TestHostileUsersAreUsersOfTheirOwn(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(3)})
	// All of them in one second, all instances in turn. A user whose key is another's, too,
	// shares the limit of three in each such second.
	// Patient, for a machine on which few seconds are long enough.
	if err := proctest.Poll(3*proctest.Patience, func() error {
		admitted := make([]int, len(hostileUsers))
		begin := awaitSecond()
		var all sync.WaitGroup
		for i, user := range hostileUsers {
			all.Go(func() {
				for n := range 6 {
					if res, _ := get(t, c.Addresses()[n%2], user); res.StatusCode == http.StatusOK {
						admitted[i]++
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(begin); took > 900*time.Millisecond {
			return fmt.Errorf("the requests of one second took %v", took)
		}
		for i, user := range hostileUsers {
			if admitted[i] != 3 {
				return fmt.Errorf("%.20q of %d bytes: admitted %d in a second, want 3", user, len(user), admitted[i])
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestGarbageOnTheSPOESocket(t *testing.T) {
	t.Parallel()
	// Limits by hour give no credit: HAProxy asks about each request.
	c := cluster.Start(t, cluster.Options{Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: 1000}}}}\n"})
	in := c.Instances[0]
	frames := [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		{0xff, 0xff, 0xff, 0xff, 1},
		{0, 0, 0, 0},
		{0, 0, 0, 1, 1},
		{0, 0, 0, 20, 3},
		frame(append([]byte{3, 0, 0, 0, 1, 1, 1}, []byte("\x05start\x02")...)),
		frame(append([]byte{1, 0, 0, 0, 1, 0, 0}, []byte("\x0emax-frame-size\x08\x03abc")...)),
	}
	for range 50 {
		junk := make([]byte, 200)
		_, _ = rand.Read(junk)
		frames = append(frames, junk, frame(junk))
	}
	for _, f := range frames {
		conn, err := net.Dial("unix", in.SPOE)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(proctest.Patience))
		_, _ = conn.Write(f)
		conn.Close()
		if res, _ := get(t, in.Address, "alice"); res.StatusCode != http.StatusOK {
			t.Fatalf("alice got %d after %q", res.StatusCode, f)
		}
	}
	if !in.Agent.Running() {
		t.Fatal("the agent died")
	}
	if in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) < float64(len(frames)) {
		t.Error("alice's requests did not reach the agent")
	}
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestGarbageOnThePeersSocket(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: limitFile(10)})
	in := c.Instances[0]
	for range 20 {
		var conn net.Conn
		proctest.Eventually(t, "HAProxy accepts", func() (err error) { // its backlog is short
			conn, err = net.Dial("unix", in.Peers)
			return err
		})
		junk := make([]byte, 300)
		_, _ = rand.Read(junk)
		_, _ = conn.Write(append([]byte("HAProxyS 2.1\nhaproxy\nagent 1 1\n"), junk...))
		conn.Close()
	}
	proctest.Eventually(t, "the real session is back", func() error {
		_, err := cluster.Get(in.Admin, "/-/ready")
		return err
	})
	checkLimit(t, offer(t, c, "alice", "even", 200, 2*time.Second), 10, 0.97)
}

func TestGarbageOnTheBus(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(20)})
	for _, message := range []string{
		"", "x", "1 throttle", "1 throttle \"GET\" \"alice\" x y\n", "9 throttle \"GET\" \"alice\" 1 1\n",
		strings.Repeat("a", 100_000), "1 hot \"GET\" \"alice\"\n\x00\xff", "1 limits \"no-such-version\"\n",
	} {
		for _, channel := range []string{"sluice:policies", "sluice:{0}:usage", "sluice:instances"} {
			publish(t, c.RedisAddr, channel, message)
		}
	}
	proctest.Eventually(t, "the agent counted it", func() error {
		if n := c.Instances[0].Metric(t, `sluice_bus_malformed_total{channel="sluice:policies"}`); n < 4 {
			return fmt.Errorf("%v malformed policies", n)
		}
		return nil
	})
	checkLimit(t, offer(t, c, "alice", "even", 400, 2*time.Second), 20, 0.97)
	// A throttle for somebody in a far second has no effect either.
	publish(t, c.RedisAddr, "sluice:policies", fmt.Sprintf("1 throttle \"GET\" \"bob\" %d 1\n", time.Now().Add(time.Hour).Unix()))
	if res, _ := get(t, c.Instances[0].Address, "bob"); res.StatusCode != http.StatusOK {
		t.Errorf("bob got %d", res.StatusCode)
	}
}
