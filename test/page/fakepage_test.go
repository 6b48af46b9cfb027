package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
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
	b.shootAll("hostile-phone")

	// Each link leads to the user's page, which asks for just that user.
	for i, n := range names {
		f.set(func(f *fake) {
			f.live.User = &api.User{Name: name(n), Tier: n, State: api.Throttled, Why: []api.Why{{Limit: n, Mode: "enforce", Since: f.live.Time}},
				Limits: []api.Limit{{Name: n, Max: 1, Used: 1, Mode: "enforce", Origin: &api.Origin{Field: n, File: n, Line: 1}}}, Instances: []api.Place{{Instance: n}},
				Decisions: []api.Decision{{Time: f.live.Time, Kind: api.Kind(n), Limit: n, Mode: "enforce"}}, Endpoints: []string{}, Entry: &api.Entry{File: n, Comment: n}}
		})
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("#user-rows a")[%d].click(), true)`, i))
		b.awaitText("#user-state", "throttled")
		want := "user=" + escaped(n)
		proctest.Eventually(t, "the page asks for the user", func() error {
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

// A stream that is lost is said to be, and opened again.
func TestReconnect(t *testing.T) {
	t.Parallel() // it mostly waits
	f := startFake(t)
	b := newTab(t, f.host(), desktop, "503", "ERR_INCOMPLETE_CHUNKED", "Failed to load resource")
	b.open(f.URL)
	b.awaitText("#connection", "live")
	b.awaitText("#user-rows", "alice")

	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	f.drop()
	b.awaitText("#connection", "reconnecting…")
	b.awaitText("#connection", "too many streams")
	b.awaitText("#connection", "stale since")
	b.check("a stale page")
	b.shoot("stale")
	f.set(func(f *fake) { f.down = false; f.live.Totals.Rate = 77 })
	b.awaitText("#connection", "live")
	b.awaitText("#totals", "77")
	if n := f.streams(); n != 1 {
		t.Errorf("%d streams are open, want 1", n)
	}
}

// Nobody looks at a hidden tab: it listens no more, until it is seen again.
func TestHiddenTab(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#connection", "live")
	hide := func(hidden bool) {
		eval[bool](b, fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %v, configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`, hidden))
	}
	streams := func(want int) {
		t.Helper()
		proctest.Eventually(t, "streams are "+strconv.Itoa(want), func() error {
			if n := f.streams(); n != want {
				return fmt.Errorf("%d are open", n)
			}
			return nil
		})
	}
	hide(true)
	streams(0)
	hide(false)
	streams(1)
	f.set(func(f *fake) { f.live.Totals.Rate = 55 })
	b.awaitText("#totals", "55")
}

// Where a token is wanted it is asked for, kept in this tab, and forgotten on request.
func TestSignIn(t *testing.T) {
	f := startFake(t)
	f.token = "correct-horse"
	b := newTab(t, f.host(), desktop, "401")
	b.open(f.URL)
	b.awaitText("#sign-in-heading", "Sign in")
	b.await("the field has the focus", `document.activeElement.id === "token"`, "document.activeElement.id")
	b.check("signing in")
	b.shoot("sign-in")
	b.press("wrong" + kb.Enter)
	b.awaitText("#sign-in-note", "not accepted")
	b.press("correct-horse" + kb.Enter)
	b.awaitText("#connection", "live")
	b.awaitText("#user-rows", "alice")
	do(b, "load the page again", reload)
	b.awaitText("#connection", "live")
	if got := eval[string](b, `document.cookie + JSON.stringify(localStorage) + location.href`); strings.Contains(got, "horse") {
		t.Errorf("the token is in %s, want it in sessionStorage alone", got)
	}
	eval[bool](b, `(document.getElementById("sign-out").click(), true)`)
	b.awaitText("#sign-in-heading", "Sign in")
}

// The list is sorted and filtered, and any user is opened by name.
func TestList(t *testing.T) {
	f := startFake(t)
	f.set(func(f *fake) { f.live.Users = crowd(30, f.live.Time) })
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#user-rows", "user-07")
	eval[bool](b, `(document.querySelector("[data-sort=down] button").click(), true)`)
	proctest.Eventually(t, "the list is asked for in another order", func() error {
		if got := f.lastAsked(); got != "sort=down&n=50" {
			return fmt.Errorf("it was asked for %q", got)
		}
		return nil
	})
	if got := eval[string](b, `Array.from(document.querySelectorAll("[aria-sort=descending]"), (e) => e.dataset.sort).join()`); got != "down" {
		t.Errorf("sorted by %q, want down", got)
	}
	// Rows stay where they are while somebody is in the table.
	first := eval[string](b, `(document.querySelector("#user-rows a").focus(), document.activeElement.innerText)`)
	f.set(func(f *fake) {
		f.live.Users[0], f.live.Users[9] = f.live.Users[9], f.live.Users[0]
		f.live.Users[9].Rate = 12345
	})
	b.awaitText("#user-rows", "12.3 k")
	b.awaitText("#users-note", "held")
	if got := b.text("#user-rows a"); got != first {
		t.Errorf("the first row is %q while the focus is in it, want %q", got, first)
	}
	eval[bool](b, `(document.getElementById("find-user").focus(), true)`)
	b.press("R-07")
	b.await("one row is left", `Array.from(document.querySelectorAll("#user-rows tr")).filter((r) => !r.hidden).length === 1`, `document.querySelector("#user-rows").innerText`)
	b.press("x")
	b.awaitText("#users-note", "Enter opens")
	b.press(kb.Enter)
	b.awaitText("#user-heading", "R-07x")
}

// Who comes to be limited is announced, not more often than people can listen to.
func TestAnnouncements(t *testing.T) {
	t.Parallel() // it mostly waits
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#connection", "live")
	eval[bool](b, `(window.said = [], new MutationObserver(() => said.push(document.getElementById("announce").textContent)).observe(document.getElementById("announce"), {childList: true}), true)`)
	limit := func(users ...string) {
		f.set(func(f *fake) {
			f.live.Limited = []api.Summary{}
			for _, u := range users {
				f.live.Limited = append(f.live.Limited, api.Summary{Name: name(u), Tier: "free", State: api.Throttled, Seen: f.live.Time})
			}
		})
	}
	begin := time.Now()
	limit("alice")
	b.await("it is announced", "said.length === 1", "said.join('|')")
	if got := eval[string](b, "said[0]"); got != "alice is throttled." {
		t.Errorf("announced %q, want alice is throttled.", got)
	}
	for i := range 10 { // at once: no word of each of them
		limit("alice", "bob-"+strconv.Itoa(i))
		b.awaitText("#limited", "bob-"+strconv.Itoa(i))
	}
	if got, most := eval[int](b, "said.length"), 2+int(time.Since(begin)/(6*time.Second)); got > most {
		t.Errorf("%d announcements, want %d at most: %s", got, most, eval[string](b, "said.join('|')"))
	}
	proctest.Eventually(t, "what has changed since is announced together", func() error {
		limit("alice", "carol")
		if got := eval[string](b, "said.slice(1).join('|')"); !strings.Contains(got, "carol") {
			return errors.New("announced: " + got)
		}
		return nil
	})
}

// What is said of a user, in each state.
func TestWhy(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	origin := &api.Origin{Field: "requests.GET", File: "limits.yaml", Line: 12}
	gets := api.Limit{Name: "GET", Max: 100, Window: 1, Mode: "enforce", Used: 100, Last: ptr(int64(100)), Origin: origin}
	hourly := api.Limit{Name: "*/hour", Max: 5000, Window: 3600, Mode: "enforce", Used: 5000, Last: ptr(int64(0))}
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
		{"an hour", api.User{Known: true, Limits: []api.Limit{hourly}, Why: []api.Why{{Limit: "*/hour", Reason: api.RequestRate, Mode: "enforce", Until: ptr(at.Add(13 * time.Hour))}}},
			"Refused: more than 5\u202f000 requests an hour; until 2026-03-05 01:00:00."},
		{"blocked", api.User{Known: true, Limits: []api.Limit{running}, Why: []api.Why{{Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce"}}},
			"Refused: 10 requests are in progress, and the limit is 10; until some of them have ended."},
		{"a dry run", api.User{Known: true, Limits: []api.Limit{gets}, Why: []api.Why{{Limit: "GET", Reason: api.RequestRate, Mode: "dry-run", Until: ptr(at.Add(time.Second))}}},
			"Would be refused, if this limit were enforced (dry run): more than 100 GET requests a second; until 12:00:01. The limit comes from limits.yaml line 12 (requests.GET)."},
		{"a moment ago", api.User{Known: true, Limits: []api.Limit{idle}, Decisions: []api.Decision{{Time: at.Add(-time.Second), Kind: api.Throttle, Limit: "GET", Mode: "enforce"}}},
			"Refused a moment ago: more than 100 GET requests a second. The limit comes from limits.yaml line 12 (requests.GET)."},
		{"slowed", api.User{Known: true, Limits: []api.Limit{down}}, "Slowed: moves 10 MiB/s down, as much as the limit allows."},
		{"well", api.User{Known: true, Limits: []api.Limit{idle, running}}, "Not refused. Nearest is the limit In progress: 10 of 10 (100 %)."},
		{"well within", api.User{Known: true, Limits: []api.Limit{idle}}, "Not refused. Nearest is the limit GET: 42 of 100 a second (42 %)."},
		{"unlimited", api.User{Known: true, Tier: "staff"}, "Not limited: the tier staff sets no limit."},
		{"not named", api.User{Tier: "free", Limits: []api.Limit{}}, "Not limited: the tier free sets no limit.|The limit file does not name this user: the limits of the tier free apply."},
		{"named with a comment", api.User{Known: true, Tier: "staff", Entry: &api.Entry{File: "limits.yaml", Line: 9, Pattern: "team-*", Comment: "moving", Until: ptr(at.Add(time.Hour)), Then: "free"}},
			"Not limited: the tier staff sets no limit.|Named in limits.yaml line 9 by the pattern team-*: “moving”.|That ends 13:00:00; then the tier is free."},
		{"an override", api.User{Known: true, Limits: []api.Limit{byHand}, Entry: &api.Entry{Override: &api.OverrideNote{Reason: "migration", By: "ann", Until: at.Add(time.Hour)}}},
			"Slowed: moves 10 MiB/s down, as much as the limit allows. The limit comes from an override by hand (bandwidth.down).|Overridden by hand by ann until 13:00:00: “migration”."},
	} {
		if tt.user.Why == nil {
			tt.user.Why = []api.Why{}
		}
		if tt.user.Limits == nil {
			tt.user.Limits = []api.Limit{}
		}
		if tt.user.Decisions == nil {
			tt.user.Decisions = []api.Decision{}
		}
		user, err := json.Marshal(tt.user)
		if err != nil {
			t.Fatal(err)
		}
		got := eval[string](b, fmt.Sprintf(`import("/page/why.js").then((m) => m.explain(%s, %d).map((s) => s.text).join("|"))`, user, at.UnixMilli()))
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Events are cut out of a stream wherever it was cut into pieces.
func TestParser(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#connection", "live")
	const stream = ": comment\r\n\r\nevent: live\r\ndata: {\"a\":\r\ndata:  1}\r\n\r\nid: 7\nretry: 5\ndata\n\nevent: lost\ndata: x:y\n\n\n\nevent: unfinished\ndata: z"
	const want = `live={"a":|n| 1};message=;lost=x:y`
	got := eval[[]string](b, fmt.Sprintf(`import("/page/stream.js").then(({Parser}) => {
		const all = %s, out = new Set();
		for (let i = 0; i <= all.length; i++) {
			const p = new Parser();
			out.add([...p.feed(all.slice(0, i)), ...p.feed(all.slice(i))].map((e) => e.event + "=" + e.data.replaceAll("\n", "|n|")).join(";"));
		}
		return Array.from(out);
	})`, quote(stream)))
	if len(got) != 1 || got[0] != want {
		t.Errorf("events = %q, want %q wherever the stream is cut", got, want)
	}
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
