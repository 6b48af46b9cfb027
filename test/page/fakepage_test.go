package page

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Users choose their names. None of them becomes markup, hides, or leads elsewhere.
func TestHostileNames(t *testing.T) {
	f := startFake(t)
	names := []string{
		`<img src=x onerror="document.title='owned'">`, `"><script>document.title='owned'</script>`, `javascript:alert(1)`,
		"a/b?c#d&e=f;g+h%41", "user@uploads", "user@example.com", "..", "caf\xe9 \xff", "evil\u202egnp.exe", "tab\there\nand there", strings.Repeat("long", 300),
		"漢字 ümläut", "~", " ",
	}
	f.set(func(f *fake) {
		f.live.Users = nil
		for i, n := range names {
			s := api.Summary{Name: name(n), Tier: n, State: api.Throttled, Rate: float64(100 - i), Seen: f.live.Time}
			s.Near = &api.Near{Limit: n, Max: 1, Used: 1, Mode: "enforce"}
			f.live.Users = append(f.live.Users, s)
		}
		f.live.Limited = f.live.Users
		f.live.Instances = []api.Instance{{Name: names[0], Problem: names[1]}}
		f.live.Polygen, f.live.Version = names[0], names[1]
		f.policies = []api.Event{{Time: f.live.Time, Kind: api.OverrideEvent, Name: ptr(name(names[0])), Note: names[1]}}
	})
	b := newTab(t, f.host(), phone)
	b.open(f.URL)
	b.await("all are there", fmt.Sprintf(`document.querySelectorAll("#user-rows tr").length === %d`, len(names)), `document.querySelector("#user-rows").innerText`)
	if got := b.text("#user-rows a"); got != names[0] {
		t.Errorf("the first name is shown as %q, want %q", got, names[0])
	}
	if got := eval[string](b, `Array.from(document.querySelectorAll("#user-rows a"), (a) => a.innerText).find((s) => s.startsWith("evil"))`); got != `evil\u{202e}gnp.exe` {
		t.Errorf("a name that turns around what follows is shown as %q", got)
	}
	eval[bool](b, `(document.getElementById("policies").open = true)`)
	b.awaitText("#policy-rows", names[1])
	b.check("hostile names on a phone")

	// Each link leads to the user's page, which asks for just that user.
	for i, n := range names {
		f.set(func(f *fake) {
			f.live.User = &api.User{Name: name(n), Tier: n, State: api.Throttled, Why: []api.Why{{Limit: n, Mode: "enforce", Since: f.live.Time}},
				Limits: []api.Limit{{Name: n, Max: 1, Used: 1, Mode: "enforce", Origin: &api.Origin{Field: n, File: n, Line: 1}}}, Instances: []api.Place{{Instance: n}},
				Decisions: []api.Decision{{Time: f.live.Time, Kind: api.Kind(n), Limit: n, Mode: "enforce"}}, Entry: &api.Entry{File: n, Comment: n}}
		})
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("#user-rows a")[%d].click(), true)`, i))
		b.awaitText("#user-state", "throttled")
		want := "user=" + escaped(n)
		testkit.Eventually(t, "the page asks for the user", func() error {
			if !f.wasAsked(want) {
				return fmt.Errorf("for %q it asked for %q, want %q at its end", n, f.lastAsked(), want)
			}
			return nil
		})
		eval[bool](b, `(location.hash = "#/", true)`)
		b.await("the list is back", `!document.getElementById("overview").hidden`, "location.hash")
	}
	if got := eval[int](b, `document.querySelectorAll("img, script:not([src]), #user-rows script, #user script").length`); got != 0 {
		t.Errorf("%d elements came of names, want none", got)
	}
	if got := eval[string](b, "document.title"); got != "Sluice" {
		t.Errorf("the title is %q, want Sluice", got)
	}
}

// escaped is a name as the page escapes it: every byte but letters, digits, "_", "~" and "-".
func escaped(name string) string {
	var s strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '~' || c == '-' {
			s.WriteByte(c)
		} else {
			fmt.Fprintf(&s, "%%%02X", c)
		}
	}
	return s.String()
}

func ptr[T any](v T) *T { return &v }

// A token is asked for and kept in this tab alone; the list is sorted, filtered and held still under the focus; a stream that is lost
// is shown and opened again; a polygen that is cut off says so; and a hidden tab receives nothing.
func TestConnection(t *testing.T) {
	f := startFake(t)
	f.token = "correct-horse"
	f.set(func(f *fake) { f.live.Users = crowd(30, f.live.Time) })
	b := newTab(t, f.host(), desktop, "401", "503", "ERR_INCOMPLETE_CHUNKED", "Failed to load resource")
	b.open(f.URL)
	b.awaitText("#sign-in-heading", "Sign in")
	b.await("the field has the focus", `document.activeElement.id === "token"`, "document.activeElement.id")
	b.check("signing in")
	b.press("wrong" + kb.Enter)
	b.awaitText("#sign-in-note", "not accepted")
	b.press("correct-horse" + kb.Enter)
	b.awaitText("#connection", "live")
	do(b, "load the page again", reload)
	b.awaitText("#connection", "live")
	if got := eval[string](b, `document.cookie + JSON.stringify(localStorage) + location.href`); strings.Contains(got, "horse") {
		t.Errorf("the token is in %s, want it in sessionStorage alone", got)
	}

	b.awaitText("#user-rows", "user-07")
	eval[bool](b, `(document.querySelector("[data-sort=down] button").click(), true)`)
	testkit.Eventually(t, "the list is asked for in another order", func() error {
		if got := f.lastAsked(); got != "sort=down&n=50" {
			return fmt.Errorf("it was asked for %q", got)
		}
		return nil
	})
	first := eval[string](b, `(document.querySelector("#user-rows a").focus(), document.activeElement.innerText)`)
	f.set(func(f *fake) {
		f.live.Users[0], f.live.Users[9] = f.live.Users[9], f.live.Users[0]
		f.live.Users[9].Rate = 12345
	})
	b.awaitText("#user-rows", "12.3 k")
	if got := b.text("#user-rows a"); got != first {
		t.Errorf("the first row is %q while the focus is in it, want %q", got, first)
	}
	eval[bool](b, `(document.getElementById("find-user").focus(), true)`)
	b.press("R-07")
	b.await("one row is left", `Array.from(document.querySelectorAll("#user-rows tr")).filter((r) => !r.hidden).length === 1`, `document.querySelector("#user-rows").innerText`)

	down := func(down bool) { f.mu.Lock(); f.down = down; f.mu.Unlock() }
	down(true)
	f.drop()
	b.awaitText("#connection", "too many streams")
	b.awaitText("#connection", "stale since")
	b.check("a stale page")
	down(false)
	b.awaitText("#connection", "live")
	f.set(func(f *fake) {
		f.live.Leading, f.live.Degraded = false, "redis cannot be reached: "+strings.Repeat("x", 2000)+"<b>"
	})
	b.awaitText("#leading", "cut off")
	b.awaitText("#degraded-why", "redis cannot be reached: xxx")
	b.check("cut off")

	for _, hidden := range []bool{true, false} {
		eval[bool](b, fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %v, configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`, hidden))
		testkit.Eventually(t, "streams of a tab that is hidden: "+strconv.FormatBool(hidden), func() error {
			if n := f.streams(); (n == 0) != hidden {
				return fmt.Errorf("%d are open", n)
			}
			return nil
		})
	}
	eval[bool](b, `(document.getElementById("sign-out").click(), true)`)
	b.awaitText("#sign-in-heading", "Sign in")
}

// What the page says of a user in each state, and of users whose background jobs run and wait.
func TestWhy(t *testing.T) {
	f := startFake(t)
	since, id := f.live.Time.Add(-200*time.Second), int64(4711)
	f.set(func(f *fake) {
		f.jobs = api.Jobs{Found: 213, Partial: true, Workers: []api.JobWorker{{Address: "w:9092"}}, Users: []api.UserJobs{
			{Name: name("<b>bulk</b>"), Tier: "free", Running: 1, Waiting: 1400, AtLeast: true, Oldest: &id, Since: &since, Held: &workerapi.HeldBy{Service: "analysis", Max: 1}},
			{Name: name("dave"), Tier: "pro", Running: 2},
		}}
	})
	b := newTab(t, f.host(), desktop)
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	origin := &api.Origin{Field: "requests.GET", File: "limits.yaml", Line: 12}
	gets := api.Limit{Name: "GET", Max: 100, Window: 1, Mode: "enforce", Used: 100, Last: ptr(int64(100)), Origin: origin}
	running := api.Limit{Name: "concurrent", Max: 10, Mode: "enforce", Used: 10}
	down := api.Limit{Name: "bandwidth.down", Max: 10 << 20, Mode: "enforce", Used: 10 << 20}
	byHand := down
	byHand.Origin = &api.Origin{Field: "bandwidth.down", Override: true}
	idle := gets
	idle.Used, idle.Last = 3, ptr(int64(42))
	b.open(f.URL)
	b.awaitText("#connection", "live")
	for _, tt := range []struct {
		name string
		user api.User
		want string
	}{
		{"throttled", api.User{Known: true, Limits: []api.Limit{gets}, Why: []api.Why{{Limit: "GET", Reason: api.RequestRate, Mode: "enforce", Until: ptr(at.Add(time.Second))}}},
			"Refused: more than 100 GET requests a second; until 12:00:01. The limit comes from limits.yaml line 12 (requests.GET)."},
		{"blocked", api.User{Known: true, Limits: []api.Limit{running}, Why: []api.Why{{Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce"}}},
			"Refused: 10 requests are in progress, and the limit is 10; until some of them have ended."},
		{"a dry run", api.User{Known: true, Limits: []api.Limit{gets}, Why: []api.Why{{Limit: "GET", Reason: api.RequestRate, Mode: "dry-run", Until: ptr(at.Add(time.Second))}}},
			"Would be refused, if this limit were enforced (dry run): more than 100 GET requests a second; until 12:00:01. The limit comes from limits.yaml line 12 (requests.GET)."},
		{"slowed", api.User{Known: true, Limits: []api.Limit{down}}, "Slowed: moves 10 MiB/s down, as much as the limit allows."},
		{"well", api.User{Known: true, Limits: []api.Limit{idle, running}}, "Not refused. Nearest is the limit In progress: 10 of 10 (100 %)."},
		{"named with a comment", api.User{Known: true, Tier: "staff", Entry: &api.Entry{File: "limits.yaml", Line: 9, Pattern: "team-*", Comment: "moving", Until: ptr(at.Add(time.Hour)), Then: "free"}},
			"Not limited: the tier staff sets no limit.|Named in limits.yaml line 9 by the pattern team-*: “moving”.|That ends 13:00:00; then the tier is free."},
		{"an override", api.User{Known: true, Limits: []api.Limit{byHand}, Entry: &api.Entry{Override: &api.OverrideNote{Reason: "migration", By: "ann", Until: at.Add(time.Hour)}}},
			"Slowed: moves 10 MiB/s down, as much as the limit allows. The limit comes from an override by hand (bandwidth.down).|Overridden by hand by ann until 13:00:00: “migration”."},
	} {
		tt.user.Why, tt.user.Limits, tt.user.Decisions = append([]api.Why{}, tt.user.Why...), append([]api.Limit{}, tt.user.Limits...), []api.Decision{}
		user, err := json.Marshal(tt.user)
		if err != nil {
			t.Fatal(err)
		}
		got := eval[string](b, fmt.Sprintf(`import("/page/why.js").then((m) => m.explain(%s, %d).map((s) => s.text).join("|"))`, user, at.UnixMilli()))
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}

	b.awaitText("#job-rows", "dave")
	for i, want := range []string{"<b>bulk</b> | free | 1 | 1\u202f400+ | 3 min ago (job 4711) | limit of analysis: 1 at a time", "dave | pro | 2 | 0 | – | –"} {
		cells := fmt.Sprintf(`Array.from(document.querySelectorAll("#job-rows tr")[%d].cells, (c) => c.innerText).join(" | ")`, i)
		b.await("row", cells+" === "+quote(want), cells)
	}
	b.check("jobs")
}

// crowd is users whose numbers differ.
func crowd(n int, seen time.Time) []api.Summary {
	var users []api.Summary
	for i := range n {
		users = append(users, api.Summary{
			Name: name(fmt.Sprintf("user-%02d", i)), Tier: "free", Known: true, State: api.OK, Rate: float64(n - i), Seen: seen,
			Near: &api.Near{Limit: "GET", Max: 100, Used: int64(i), Window: 1, Mode: "enforce"},
		})
	}
	return users
}
