package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// What a request costs is what the file says of all of them: it is shown whatever the origin answers.
const costlyFile = `version: 1
default_tier: free
costs:
  tokens: {estimate: {default: 4000}}
tiers:
  free: {costs: {tokens: {minute: 400k, day: 500k}}}
  pro: {costs: {tokens: {minute: 1M, day: 10M}}}
users: {alice: pro}
`

// What requests cost is charged by real agents, and shown: who spent most, and what is left of a day.
func TestSpending(t *testing.T) {
	up := startUpOf(t, 2, costlyFile)
	spend := func(user string, requests int) (refused int) {
		t.Helper()
		for i := range requests {
			req, err := http.NewRequest("GET", "http://"+up.instances[i%2]+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-User", user)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode == http.StatusTooManyRequests {
				refused++
				if got := res.Header.Get("Sluice-Reason"); got != "cost" {
					t.Errorf("a request of %s is refused because of %q, want cost", user, got)
				}
			}
		}
		return refused
	}
	spend("alice", 60)
	spend("carol", 90)
	if n := spend("dave", 126); n == 0 {
		t.Error("126 requests of 4000 tokens each are all admitted, against 500 000 in a day")
	}
	up.prints(t, "carol's day", `(?m)^carol +free +ok +tokens/day +\d+ +500000 `, "top", "--once", "--cost", "tokens", "--admin", up.admin)

	b := newTab(t, up.admin, desktop)
	b.open("http://" + up.admin + "/")
	b.await("the order by cost is offered", `document.querySelector("#sort option[value='cost:tokens']")`, `document.getElementById("sort").innerText`)
	eval[bool](b, `((s) => (s.value = "cost:tokens", s.dispatchEvent(new Event("change")), true))(document.getElementById("sort"))`)
	b.awaitText("#use-heading", "tokens used")
	proctest.Eventually(t, "those who spent are listed", func() error {
		for _, name := range []string{"alice", "carol", "dave"} {
			if got := b.text("#user-rows"); !strings.Contains(got, name) {
				return fmt.Errorf("the list is %q", got)
			}
		}
		return nil
	})
	b.check("a list by cost, of a cluster")
	eval[bool](b, `(location.hash = "#/user/carol", true)`)
	// Exactly, for whoever opens a page has Redis asked.
	b.awaitText("#user-budgets", "360\u202f000 of 500\u202f000 used, 140\u202f000 left")
	b.awaitText("#user-budgets", "72 %")
	b.awaitText("#user-limits", "costs.tokens/day")
	b.check("a budget, of a cluster")
	updateImage(t, "page-budget.png", b.shoot("budget"))
}
