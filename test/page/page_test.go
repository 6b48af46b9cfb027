package page

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

const limitFile = `version: 1
default_tier: free
costs:
  tokens: {estimate: {default: 4000}}
tiers:
  free:
    requests: {GET: 50, PUT: 20}
    concurrent: 10
    bandwidth: {down: 2MiB, up: 1MiB}
  pro:
    requests: {GET: 400, "*": 500}
    concurrent: 100
    bandwidth: {down: 20MiB, up: 10MiB}
  spender: {costs: {tokens: {day: 10M}}}
users:
  alice: pro
  build-farm: pro
  erin: spender
  reports: {tier: free, requests: {GET: 30}, concurrent: 50, comment: nightly export}
`

// TestPage does what an operator on call does: sees a user turn red, opens that user with the keyboard, and reads why.
func TestPage(t *testing.T) {
	up := startUp(t)
	b := newTab(t, up.admin, desktop)
	b.theme("dark")
	b.open("http://" + up.admin + "/")
	for selector, want := range map[string]string{"#connection": "live", "#polygen": "polygen", "#leading": "leads", "#instance-rows": "instance-2", "#limited-none": "Nobody"} {
		b.awaitText(selector, want)
	}

	up.load(t, 15, "GET", "/bytes/20000", "alice")
	up.load(t, 43, "GET", "/bytes/9000", "carol")
	up.load(t, 12, "PUT", "/", "build-farm")
	up.load(t, 6, "GET", "/sleep/900", "dave")
	up.load(t, 2, "GET", "/", "erin")
	up.load(t, 17, "GET", "/bytes/2000", "reports")
	row := `Array.from(document.querySelectorAll("#user-rows tr")).find((r) => r.cells[0].innerText === "reports")`
	b.await("the user is seen, and well", row+`?.className === ""`, `document.querySelector("#user-rows").innerText`)
	for seconds := 10; seconds <= 30 && updatesImages(); seconds += 10 {
		b.await("more of it is seen", `document.querySelector(".spark polyline").points.length > `+strconv.Itoa(seconds), `document.querySelector(".spark polyline").points.length`)
	}
	up.load(t, 400, "GET", "/bytes/2000", "reports") // against a limit of 30
	b.await("the user's row is red and says so", `(() => {
		const row = `+row+`;
		return row && row.matches(".limited.throttled") && row.cells[2].innerText.trim() === "throttled";
	})()`, `document.querySelector("#user-rows").innerText`)
	b.awaitText("#limited", "reports")
	b.awaitText("#user-rows", "carol")
	b.awaitText("#user-rows", "dave")
	b.check("the overview in the dark")

	// The user's page by Tab and Enter.
	eval[bool](b, `(document.getElementById("find-user").focus(), true)`)
	for i := 0; ; i++ {
		b.press("\t")
		if eval[string](b, "document.activeElement.innerText") == "reports" && eval[bool](b, `document.activeElement.matches("#user-rows a")`) {
			break
		}
		if i == 40 {
			t.Fatal("40 Tabs do not lead to the user")
		}
	}
	b.press("\r")
	b.await("the heading has the focus", `document.activeElement.id === "user-heading"`, "document.activeElement.id")
	for _, want := range [][2]string{
		{"#user-heading", "reports"}, {"#user-state", "throttled"}, {"#user-limits", "requests.GET"}, {"#user-places", "instance-1"},
		{"#user-why", "Refused: more than 30 GET requests a second; until "}, {"#user-why", up.limits + " line 19 (requests.GET, of this user alone)"},
		{"#user-why", "“nightly export”"}, {"#user-decisions", "30 requests a second were reached"}, {"#user-charts", "At the limit."},
	} {
		b.awaitText(want[0], want[1])
	}
	b.await("the chart is drawn", `document.querySelectorAll("#user-charts canvas").length >= 5`, `document.querySelectorAll("#user-charts canvas").length`)
	for seconds := 1; seconds <= 35 && updatesImages(); seconds++ {
		b.await("the limit was reached for so many seconds", `Number(/Reached in (\d+)/.exec(document.querySelector("#user-charts").innerText)?.[1] ?? 0) >= `+strconv.Itoa(seconds),
			`document.querySelector("#user-charts").innerText`)
	}
	b.check("the user in the dark")
	b.theme("light")
	b.check("the user in the light")
	user := b.shoot("user-light")
	b.size(phone)
	b.check("the user on a phone")

	eval[bool](b, `(location.hash = "#/", true)`)
	b.awaitText("#user-rows", "reports")
	b.check("the overview on a phone")
	b.size(desktop)
	b.awaitText("#limited", "reports")
	overview := b.shoot("overview-light")
	eval[bool](b, `(document.getElementById("policies").open = true, true)`)
	b.awaitText("#policy-rows", "throttle")
	b.check("the overview in the light")

	// What requests cost: the list by cost, and a user's day.
	eval[bool](b, `((s) => (s.value = "cost:tokens", s.dispatchEvent(new Event("change")), true))(document.getElementById("sort"))`)
	b.awaitText("#use-heading", "tokens used")
	b.awaitText("#user-rows", "erin")
	eval[bool](b, `(location.hash = "#/user/erin", true)`)
	b.awaitText("#user-budgets", " of 10\u202f000\u202f000 used")
	b.awaitText("#user-limits", "costs.tokens/day")
	b.check("a budget")
	updateImage(t, "page-overview.png", overview)
	updateImage(t, "page-user.png", user)
	updateImage(t, "page-budget.png", b.shoot("budget"))
}

func updatesImages() bool { return os.Getenv("SLUICE_UPDATE_IMAGES") != "" }

// updateImage writes a picture of the documents, if that is wanted.
func updateImage(t *testing.T, name string, png []byte) {
	t.Helper()
	if !updatesImages() {
		return
	}
	if len(png) >= 150<<10 {
		t.Errorf("%s would have %d bytes, want less than 150 KiB", name, len(png))
	}
	dir := filepath.Join("..", "..", "docs", "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// up is a running `sluice up`.
type up struct {
	admin, limits string
	instances     []string
}

func startUp(t *testing.T) *up {
	t.Helper()
	const instances = 2
	program := filepath.Join(cluster.Build(t), "sluice")
	dir, err := os.MkdirTemp("", "page") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	u := &up{admin: testkit.FreeAddr(t), limits: "config/limits.yaml"}
	if err := os.WriteFile(filepath.Join(dir, u.limits), []byte(limitFile), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(testkit.FreeAddrs(t, instances))
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for i := range instances {
		u.instances = append(u.instances, net.JoinHostPort(host, strconv.Itoa(first+i)))
	}
	// A shell's cd, so that the page names the file as people write it.
	p := testkit.Start(t, []string{"TMPDIR=" + dir}, "/bin/sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", dir, program, "up", "--limits", u.limits, "--listen", u.instances[0], "--instances", strconv.Itoa(instances),
		"--identify", "header:X-User", "--admin", u.admin, "--haproxy", testkit.HAProxyPath(t), "--max-wait", "1s")
	p.Name = "sluice up"
	testkit.Eventually(t, "sluice up is ready", func() error {
		if !p.Running() {
			t.Fatalf("it ended:\n%s", p.Output())
		}
		if !bytes.Contains([]byte(p.Output()), []byte("ready: ")) {
			return fmt.Errorf("it printed %q", p.Output())
		}
		return nil
	})
	return u
}

// load sends a user's requests to the instances until the test ends.
func (u *up) load(t *testing.T, rate float64, method, path, user string) {
	t.Helper()
	targets, err := load.Spread("even", u.instances...)
	if err != nil {
		t.Fatal(err)
	}
	spec := load.Spec{Targets: targets, Rate: rate, Duration: 10 * time.Minute, Requests: load.Users(method, path, user), Ahead: 2, Conns: 64, Tick: 5 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if _, err := load.Run(ctx, spec); err != nil && ctx.Err() == nil {
			t.Errorf("load of %s: %v", user, err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}
