package integration

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// spender sends requests of one user that cost tokens, and adds up what their answers say.
type spender struct {
	addresses []string // of the instances

	mu    sync.Mutex
	spent int // tokens, by the answers
}

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// chat sends one request to an instance, which may cost 1000 tokens and costs half of them and one, and
// reports whether it was admitted. Its answer takes half a second; every other one is a stream.
func (s *spender) chat(n int) (admitted bool, err error) {
	request, err := http.NewRequest(http.MethodPost, "http://"+s.addresses[n%len(s.addresses)]+"/v1/chat/completions?ms_per_token=1",
		strings.NewReader(fmt.Sprintf(`{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000, "stream": %t}`, n%2 == 0)))
	if err != nil {
		return false, err
	}
	request.Header.Set("X-User", "alice")
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, err
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		if reason := response.Header.Get("Sluice-Reason"); reason != "cost" {
			return false, fmt.Errorf("refused for %q, want cost", reason)
		}
		return false, nil
	default:
		return false, fmt.Errorf("status %d: %.200s", response.StatusCode, body)
	}
	said := totalTokens.FindSubmatch(body)
	if said == nil {
		return false, fmt.Errorf("the answer does not say what it cost: %.200s", body)
	}
	tokens, err := strconv.Atoi(string(said[1]))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent += tokens
	return true, err
}

// Fifty long requests at a time, on one instance and on several, never cost more than the limit, for what each may cost
// is reserved when it starts. What they did not cost goes back: each one that was lost
// would keep half of an estimate.
func TestCostsOfLongRequests(t *testing.T) {
	// Less than one estimate is left in the end: not one correction may be lost.
	const limit, enough = 20_000, 19_000
	for _, instances := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d instances", instances), func(t *testing.T) {
			t.Parallel()
			// The day begins twelve hours from now: none ends meanwhile.
			starts := time.Now().UTC().Add(12 * time.Hour).Format("15:04")
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: fmt.Sprintf(`
version: 1
default_tier: free
costs:
  tokens:
    estimate: {json: max_tokens, default: 1000}
    actual: {json: usage.total_tokens}
    day_starts: "%s"
tiers:
  free: {costs: {tokens: {day: %d}}}
`, starts, limit)})
			s := &spender{addresses: c.Addresses()}
			proctest.Eventually(t, "what is not spent is used again", func() error {
				var all sync.WaitGroup
				failed := make(chan error, 50)
				for n := range 50 {
					all.Go(func() {
						if _, err := s.chat(n); err != nil {
							failed <- err
						}
					})
				}
				all.Wait()
				select {
				case err := <-failed:
					t.Fatal(err)
				default:
				}
				if s.spent < enough {
					return fmt.Errorf("%d of %d tokens", s.spent, limit)
				}
				return nil
			})
			if s.spent > limit {
				t.Errorf("the answers cost %d tokens, of a limit of %d", s.spent, limit)
			}
		})
	}
}

// An agent that hangs holds requests that may cost something for no longer than they have for the second question, 2.5 seconds
// here. Those that wait in line have ten minutes, so whoever waited with them would have no answer.
func TestCostsWhileTheAgentHangs(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{MaxWait: 25 * time.Millisecond, Limits: `
version: 1
costs: {credits: {estimate: {header: X-Rows, default: 1}, actual: {header: X-Cost}}}
default_tier: free
tiers: {free: {costs: {credits: {second: 1000}}}}
`, EnvOf: func(string) []string { return []string{"SLUICE_WAIT_TIMEOUT=10m"} }})
	c.Settle()
	in := c.Instances[0]
	if err := in.Agent.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Agent.Signal(syscall.SIGCONT) }()
	client := &http.Client{Timeout: proctest.Patience}
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			response, err := client.Get("http://" + in.Address + "/bytes/1")
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("status %d, want 200", response.StatusCode)
			}
		})
		time.Sleep(20 * time.Millisecond) // some of them come before HAProxy has found that it hangs, and some behind
	}
	clients.Wait()
}
