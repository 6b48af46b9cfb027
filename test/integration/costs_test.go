package integration

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// Bodies that say what requests cost and do not come are requests in progress: no user has more of them than of others.
func TestBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Limits: `
version: 1
default_tier: free
costs: {tokens: {estimate: {json: max_tokens, default: 1000}, actual: {json: usage.total_tokens}}}
tiers: {free: {concurrent: 2, costs: {tokens: {day: 1M}}}}
`})
	const clients = 20
	statuses := make(chan string)
	for range clients {
		go func() {
			conn, err := net.Dial("tcp", s.Addresses()[0])
			if err != nil {
				statuses <- err.Error()
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-User: slow\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{\"max_tokens\": 5")
			_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil {
				line = err.Error()
			}
			statuses <- line
		}()
	}
	got := map[string]int{}
	for range clients {
		got[<-statuses]++
	}
	if got["HTTP/1.1 429 Too Many Requests\r\n"] != clients-2 || got["HTTP/1.1 408 Request Time-out\r\n"] != 2 {
		t.Errorf("answers: %v, want 2 × 408 and the others 429", got)
	}
	s.AwaitNothingInProgress(t)
}

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// Long requests, streams among them, never cost more than the limit: each one's estimate is charged when it starts. The rest of
// an estimate goes back when the answer tells what the request cost: each correction that was lost would keep half of one.
func TestCosts(t *testing.T) {
	t.Parallel()
	// Less than one estimate is left in the end: no correction may be lost.
	const limit, enough = 20_000, 19_000
	for _, instances := range []int{1, 3} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			// The day begins twelve hours from now: none ends meanwhile.
			starts := time.Now().UTC().Add(12 * time.Hour).Format("15:04")
			s := scene.Start(t, cluster.Options{Instances: instances, Limits: fmt.Sprintf(`
version: 1
default_tier: free
costs:
  tokens:
    estimate: {json: max_tokens, default: 1000}
    actual: {json: usage.total_tokens}
windows: {day_starts: "%s"}
tiers:
  free: {costs: {tokens: {day: %d}}}
`, starts, limit)})
			var spent atomic.Int64
			// chat may cost 1000 tokens and costs half of them and one. Its answer takes half a second.
			chat := func(n int) error {
				res, body, err := scene.Send(t.Context(), http.MethodPost, s.Addresses()[n%instances]+"/v1/chat/completions?ms_per_token=1", "alice",
					fmt.Sprintf(`{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000, "stream": %t}`, n%2 == 0), "Content-Type", "application/json")
				switch {
				case err != nil:
					return err
				case res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Sluice-Reason") == "cost":
					return nil
				case res.StatusCode != http.StatusOK:
					return fmt.Errorf("%s %s: %.200s", res.Status, res.Header.Get("Sluice-Reason"), body)
				}
				said := totalTokens.FindStringSubmatch(body)
				if said == nil {
					return fmt.Errorf("the answer does not say what it cost: %.200s", body)
				}
				tokens, err := strconv.ParseInt(said[1], 10, 64)
				spent.Add(tokens)
				return err
			}
			testkit.Eventually(t, "tokens that were not spent are used again", func() error {
				failed := make(chan error)
				for n := range 40 {
					go func() { failed <- chat(n) }()
				}
				for range 40 {
					if err := <-failed; err != nil {
						t.Error(err)
					}
				}
				if spent.Load() < enough {
					return fmt.Errorf("%d of %d tokens", spent.Load(), limit)
				}
				return nil
			})
			if spent.Load() > limit {
				t.Errorf("the answers cost %d tokens, of a limit of %d", spent.Load(), limit)
			}
		})
	}
}
