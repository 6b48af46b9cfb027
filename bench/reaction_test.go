package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// BenchmarkLoadReaction measures the time from the answer to the request that
// reaches a limit until every HAProxy has the user in its own throttle table,
// as its stats socket tells. What the table says, HAProxy refuses by itself.
func BenchmarkLoadReaction(b *testing.B) {
	const users, limit = 200, 10
	t := newTable("Reaction: from reaching the limit to the last HAProxy refusing natively, ms (looked at every 0.2 ms)",
		"instances", "users", "p50", "p90", "p99", "max", "never")
	for range b.N {
		for _, instances := range []int{1, 2, 4} {
			c := cluster.Start(b, cluster.Options{Instances: instances, Limits: limitFile(limit), MaxWait: shippedWait})
			var shells []*shell
			for _, in := range c.Instances {
				shells = append(shells, dialShell(b, in.Stats))
			}
			var took []time.Duration
			never := 0
			for i := range users {
				awaitEarlySecond()
				user := fmt.Sprint("user", i)
				for n := range limit {
					get(b, c.Addresses()[n%instances], user)
				}
				reached := time.Now()
				seen := make([]time.Time, len(shells))
				var wg sync.WaitGroup
				for i, s := range shells {
					wg.Go(func() { seen[i] = s.awaitThrottle("GET|"+user, reached.Add(200*time.Millisecond)) })
				}
				wg.Wait()
				if slices.ContainsFunc(seen, time.Time.IsZero) {
					never++
					continue
				}
				took = append(took, slices.MaxFunc(seen, time.Time.Compare).Sub(reached))
			}
			slices.Sort(took)
			at := func(p float64) string {
				if len(took) == 0 {
					return "-"
				}
				return fmt.Sprintf("%.1f", took[int(p*float64(len(took)-1))].Seconds()*1000)
			}
			t.row(fmt.Sprint(instances), fmt.Sprint(users), at(0.5), at(0.9), at(0.99), at(1), fmt.Sprint(never))
			c.Stop()
		}
	}
}

// awaitEarlySecond waits until the current second has time left for a user to
// reach the limit and be throttled.
func awaitEarlySecond() {
	now := time.Now()
	if into := now.Sub(now.Truncate(time.Second)); into > 700*time.Millisecond {
		time.Sleep(time.Second - into + 20*time.Millisecond)
	}
}

func get(b *testing.B, address, user string) {
	req, err := http.NewRequestWithContext(b.Context(), "GET", "http://"+address+"/", nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("X-User", user)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
}

// shell is a session on HAProxy's stats socket that stays open.
type shell struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialShell(b *testing.B, path string) *shell {
	conn, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s := &shell{conn: conn, in: bufio.NewReader(conn)}
	b.Cleanup(func() { conn.Close() })
	_ = s.tell("prompt")
	return s
}

// tell sends a command and returns the answer, which ends with a prompt.
func (s *shell) tell(command string) string {
	_ = s.conn.SetDeadline(time.Now().Add(testkit.Patience))
	_, _ = io.WriteString(s.conn, command+"\n")
	var answer strings.Builder
	for !strings.HasSuffix(answer.String(), "> ") {
		c, err := s.in.ReadByte()
		if err != nil {
			break
		}
		answer.WriteByte(c)
	}
	return answer.String()
}

// awaitThrottle returns when the table first names the key, or the zero time.
func (s *shell) awaitThrottle(key string, until time.Time) time.Time {
	for time.Now().Before(until) {
		if strings.Contains(s.tell("show table sluice/throttle key "+key), "gpt0=") {
			return time.Now()
		}
		time.Sleep(200 * time.Microsecond)
	}
	return time.Time{}
}
