package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// tell asks a polygen's admin API to do something.
func tell(t *testing.T, p *cluster.Polygen, method, path, body string) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.Admin+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// told is tell for what must succeed, as soon as the polygen reaches Redis: on a machine that
// stands still for a quarter of a second it does not for a moment.
func told(t *testing.T, p *cluster.Polygen, method, path, body string) (answer string) {
	t.Helper()
	uncertain := false // whether it was done
	proctest.Eventually(t, method+" "+path, func() (err error) {
		var status int
		switch status, answer = tell(t, p, method, path, body); {
		case status == http.StatusOK:
		case status == http.StatusServiceUnavailable:
			uncertain = true
			err = fmt.Errorf("%d %s, want 200", status, answer)
		case status == http.StatusNotFound && method == http.MethodDelete && uncertain:
		default:
			t.Fatalf("%s %s = %d %s, want 200", method, path, status, answer)
		}
		return err
	})
	return answer
}

// hold keeps a request of a user in progress until ctx ends.
func hold(ctx context.Context, t *testing.T, address, user string) (done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			req, err := http.NewRequestWithContext(ctx, "GET", "http://"+address+"/sleep/10000", nil)
			if err != nil {
				return
			}
			req.Header.Set("X-User", user)
			if res, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}
	}()
	return done
}

// A user's limit is raised by hand for a time, on all instances, whichever polygen is
// asked, and whichever leads then; and it is as before when that is taken back.
func TestOverrideByHand(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: limitFile(5)})
	// most is how many of a second's 40 requests are admitted, of the seconds that are whole.
	most := func() (n int) {
		for _, row := range offer(t, c, "alice", "even", 40, 2500*time.Millisecond).Ratios(5, clockSlack).Rows {
			if row.Whole {
				n = max(n, row.Admitted)
			}
		}
		return n
	}
	limited := func(when string) {
		t.Helper()
		proctest.Eventually(t, when+" alice has 5 a second", func() error {
			if n := most(); n > 5 {
				return fmt.Errorf("%d were admitted in a second", n)
			}
			return nil
		})
	}
	raised := func(when string) {
		t.Helper()
		proctest.Eventually(t, when+" alice has 50 a second", func() error {
			if n := most(); n < 35 {
				return fmt.Errorf("%d of 40 were admitted in a second", n)
			}
			return nil
		})
	}
	limited("at first")
	told(t, c.Polygens[0], "PUT", "/api/v1/overrides/alice", `{"for":"10m","reason":"a test","limits":{"requests":{"GET":50}}}`)
	raised("with the override")
	for i, p := range c.Polygens {
		p.Stop()
		c.Polygens[i] = c.StartPolygen(t, i)
	}
	proctest.Eventually(t, "the polygens are back", func() error {
		_, err := cluster.Get(c.Polygens[1].Admin, "/-/ready")
		return err
	})
	raised("after both polygens started again")
	proctest.Eventually(t, "the other polygen has it, too", func() error {
		if list, err := cluster.Get(c.Polygens[0].Admin, "/api/v1/overrides"); err != nil || !strings.Contains(list, `"reason":"a test"`) {
			return fmt.Errorf("/api/v1/overrides = %s, %w, want the one of alice", list, err)
		}
		return nil
	})
	told(t, c.Polygens[1], "DELETE", "/api/v1/overrides/alice", "")
	limited("without it again")
}

// A blocked user is let in by hand, and is blocked again while as many requests are in
// progress.
func TestUnblockByHand(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: progressLimits(2)})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, in := range c.Instances { // both keep one request in progress
		done := hold(ctx, t, in.Address, "alice")
		defer func() { stop(); <-done }()
	}
	state := func(p *cluster.Polygen) string {
		for _, in := range c.Instances { // without another request the instances would have nothing to report
			get(t, in.Address, "alice")
		}
		text, err := cluster.Get(p.Admin, "/api/v1/users/alice")
		var u struct{ State string }
		if err == nil {
			err = json.Unmarshal([]byte(text), &u)
		}
		if err != nil {
			t.Fatal(err)
		}
		return u.State
	}
	blocked := func(when string) {
		t.Helper()
		for _, p := range c.Polygens {
			proctest.Eventually(t, when+" alice is blocked", func() error {
				if s := state(p); s != "blocked" {
					return fmt.Errorf("alice is %s", s)
				}
				return nil
			})
		}
	}
	blocked("at first")
	for i, p := range c.Polygens { // the one that leads, and the other one
		answer := told(t, p, "POST", "/api/v1/users/alice/unblock", `{"reason":"a test"}`)
		if !strings.Contains(answer, `"sent":true,"in_progress":2,"max":2,"note":"the user has 2 of 2 requests in progress`) {
			t.Errorf("unblock = %s, want that alice is at the limit", answer)
		}
		proctest.Eventually(t, "the instances are told", func() error {
			sent := 0.0
			for _, p := range c.Polygens {
				sent += cluster.Metric(t, p.Admin, `sluice_policies_sent_total{kind="unblock",mode="enforce"}`)
			}
			if sent < float64(i+1) {
				return fmt.Errorf("%v unblocks were sent, want %d", sent, i+1)
			}
			return nil
		})
		blocked("again")
	}
}
