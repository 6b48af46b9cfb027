package haproxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/test/longrun/mixed"
)

// However requests end, nobody has any in progress once all have ended, as
// HAProxy knows and as it told its peer.
func TestNothingIsLeftInProgress(t *testing.T) {
	t.Parallel()
	const exchanges = 2700
	r := newRig(t, setup{serve: mixed.Origin().ServeHTTP, edit: func(cfg string) string {
		cfg = strings.Replace(cfg, "timeout server 60s", "timeout server 300ms", 1)
		cfg = strings.Replace(cfg, "table block type string len 128 size 200k expire 60s", "table block type string len 128 size 200k expire 1h", 1) // a slow machine takes longer than a minute
		return strings.Replace(cfg, "    server origin ", "    use-server dead if { path /dead }\n    server dead 127.0.0.1:1 weight 0\n    server origin ", 1)
	}})
	r.peer(t)
	r.answerWith(func(h heard) vars {
		switch {
		case h.User == "refused", h.User == "sometimes" && rand.IntN(2) == 0:
			return vars{"reason": "request-rate", "class": "*", "limit": uint32(1), "retry": uint32(1)}
		case h.User == "waits" && h.Message == "start-message":
			return vars{"wait": uint32(20), "limit": uint32(1)}
		case h.User == "waits":
			time.Sleep(rand.N(20 * time.Millisecond))
			if rand.IntN(2) == 0 {
				return vars{"reason": "concurrent-requests", "limit": uint32(1)}
			}
		}
		return nil
	})
	r.teach(t, "block", "blocked", time.Now().Add(time.Hour), 1)

	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	tally, err := mixed.Run(ctx, r.addr, []string{"alice", "bob", "carol", "sometimes", "waits", "refused", "blocked"}, exchanges)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("answers by status: %v", tally.Statuses)
	for _, status := range []int{101, 200, 400, 429, 502, 503, 504} {
		if tally.Statuses[status] == 0 {
			t.Errorf("answers by status = %v, want some %d", tally.Statuses, status)
		}
	}

	last := time.Now()
	testkit.Eventually(t, "nothing in progress", func() error {
		all := r.active(t)
		if len(all) != 5 {
			return fmt.Errorf("active = %v, want the five users who are let in", all)
		}
		for user, c := range all {
			if c.Cur != 0 || c.Reqs == 0 {
				return fmt.Errorf("%s = %+v, want none in progress and some before", user, c)
			}
		}
		told := map[string]count{}
		for user, v := range r.learned(t) {
			told[user] = count{int(v[peers.ConnCur]), int(v[peers.HTTPReqCnt])}
		}
		if diff := cmp.Diff(all, told); diff != "" {
			return fmt.Errorf("the peer knows something else (-haproxy +peer):\n%s", diff)
		}
		return nil
	})
	t.Logf("all at 0 %v after the last client", time.Since(last).Round(time.Millisecond))
	r.takeHeard(t)
}
