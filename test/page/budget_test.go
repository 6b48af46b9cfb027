package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// costing is a limit of what requests cost.
func costing(unit string, window limitWindow, max, used int64, resets time.Time) api.Limit {
	left := max - min(max, used)
	return api.Limit{Name: unit + "/" + window.name, Unit: unit, Max: max, Window: window.seconds, Mode: "enforce", Used: used, Last: ptr(int64(0)), Left: &left, Resets: &resets}
}

type limitWindow struct {
	name    string
	seconds int64
}

var (
	minute = limitWindow{"minute", 60}
	day    = limitWindow{"day", 86400}
)

// What requests cost: who was charged most, and what is left of a user's day, and until when.
func TestBudget(t *testing.T) {
	f := startFake(t)
	noon := time.Date(2026, 11, 24, 12, 0, 30, 0, time.UTC)
	midnight := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	f.set(func(f *fake) { f.live.Time = noon })
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#connection", "live")
	b.awaitText("#user-rows", "alice")
	sorts := `getComputedStyle(document.getElementById("sort")).display`
	if got := eval[string](b, sorts); got != "none" {
		t.Errorf("where requests cost nothing the choice of an order is %q, want none: the columns sort", got)
	}
	if got := eval[bool](b, `document.getElementById("totals").innerText.includes("Spent")`); got {
		t.Error("where requests cost nothing the page tells who has spent a budget")
	}

	f.set(func(f *fake) {
		f.live.Units = []string{"pages", "tokens"}
		f.live.Totals.Spent = 3
	})
	b.await("the orders by cost are offered", sorts+` !== "none" && document.getElementById("sort").options.length === 7`, `document.getElementById("sort").innerText`)
	b.awaitText("#totals", "Spent")
	eval[bool](b, `((s) => (s.value = "cost:tokens", s.dispatchEvent(new Event("change")), true))(document.getElementById("sort"))`)
	proctest.Eventually(t, "the list is asked for by cost", func() error {
		if got := f.lastAsked(); got != "sort=cost:tokens&n=50" {
			return fmt.Errorf("it was asked for %q", got)
		}
		return nil
	})
	f.set(func(f *fake) {
		f.live.Sort = api.ByCost("tokens")
		spent, some := costing("tokens", day, 500_000, 512_000, midnight), costing("tokens", day, 10_000_000, 412_345, midnight)
		f.live.Users = []api.Summary{
			{Name: name("carol"), Tier: "free", Known: true, State: api.Spent, Seen: noon.Add(-3 * time.Hour), Cost: &spent, Near: &api.Near{Limit: "tokens/day", Max: 500_000, Used: 512_000, Window: 86400, Mode: "enforce"}},
			{Name: name("alice"), Tier: "pro", Known: true, State: api.OK, Rate: 2, Seen: noon, Cost: &some, Near: &api.Near{Limit: "GET", Max: 100, Used: 12, Window: 1, Mode: "enforce"}},
		}
		f.live.Limited = f.live.Users[:1]
	})
	b.awaitText("#user-rows", "512\u202f000 of 500\u202f000 a day")
	b.awaitText("#user-rows", "412\u202f345 of 10\u202f000\u202f000 a day")
	b.awaitText("#use-heading", "tokens used")
	b.awaitText("#users-note", "charged most tokens")
	b.awaitText("#limited", "spent")
	b.check("a list by cost")
	b.shootAll("list-by-cost")

	f.set(func(f *fake) {
		f.live.User = &api.User{
			Name: name("carol"), Tier: "free", Known: true, State: api.Spent, Seen: &noon,
			Why: []api.Why{{Limit: "tokens/day", Reason: api.Cost, Mode: "enforce", Since: noon.Add(-time.Hour), Until: &midnight}},
			Limits: []api.Limit{
				{Name: "*", Max: 5, Window: 1, Mode: "enforce", Used: 2, Last: ptr(int64(1))},
				costing("pages", day, 200, 170, midnight.Add(6*time.Hour)),
				costing("tokens", minute, 20_000, 1500, noon.Add(30*time.Second)),
				costing("tokens", day, 500_000, 512_000, midnight),
				{Name: "concurrent", Max: 2, Mode: "enforce", Used: 1},
			},
			InProgress: 1, Instances: []api.Place{{Instance: "instance-1", InProgress: 1, Slots: 1}}, Decisions: []api.Decision{}, Endpoints: []string{},
		}
		f.live.User.Limits[3].Origin = &api.Origin{Field: "costs.tokens/day", File: "config/limits.yaml", Line: 31}
	})
	eval[bool](b, `(document.querySelector("#user-rows a").click(), true)`)
	b.awaitText("#user-state", "spent")
	b.awaitText("#user-why", "Refused: 512\u202f000 of 500\u202f000 tokens a day are used (what costs no tokens is not refused); until 2026-11-25 00:00:00, or some are given back. The limit comes from config/limits.yaml line 31 (costs.tokens/day).")
	got := eval[[]string](b, `Array.from(document.querySelectorAll("#user-budgets li"), (e) => e.innerText.replace(/\s*\n\s*/g, "|"))`)
	want := []string{
		"pages a day|near limit|170 of 200 used, 30 left|85 %|Begins anew at 2026-11-25 06:00:00 here, 2026-11-25 06:00:00 UTC.",
		"tokens a day|spent|512\u202f000 of 500\u202f000 used, 0 left|102 %|Begins anew at 2026-11-25 00:00:00 here, 2026-11-25 00:00:00 UTC, with a debt of 12\u202f000.",
		"tokens a minute|ok|1\u202f500 of 20\u202f000 used, 18\u202f500 left|7 %|Begins anew at 12:01:00 here, 12:01:00 UTC.",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("the budget says\n%q, want\n%q", got, want)
	}
	if wide := eval[string](b, `Array.from(document.querySelectorAll("#user-budgets .fill"), (e) => e.style.width).join()`); wide != "85%,100%,7%" {
		t.Errorf("the bars are %s wide, want 85%%,100%%,7%%", wide)
	}
	for _, scheme := range []string{"dark", "light"} {
		b.theme(scheme)
		for what, s := range map[string]size{"wide": desktop, "phone": phone} {
			b.size(s)
			b.check("a budget, " + scheme + ", " + what)
			b.shootAll("budget-" + scheme + "-" + what)
		}
	}
	b.size(phone)
	eval[bool](b, `(location.hash = "#/", true)`)
	b.awaitText("#user-rows", "a day")
	b.check("a list by cost on a phone")
	b.shootAll("list-by-cost-phone")

	// A unit that the limit file has no more is no order.
	f.set(func(f *fake) { f.live.Units = nil })
	proctest.Eventually(t, "the list is asked for in the usual order", func() error {
		if got := f.lastAsked(); got != "sort=rate&n=50" {
			return fmt.Errorf("it was asked for %q", got)
		}
		return nil
	})
}

// When a window ends is said in the reader's time, and in UTC.
func TestBudgetElsewhere(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"})
	resets, noon := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	f.set(func(f *fake) {
		f.live.Time = noon
		f.live.User = &api.User{Name: name("carol"), State: api.OK, Why: []api.Why{}, Limits: []api.Limit{costing("tokens", day, 500, 12, resets)},
			Instances: []api.Place{}, Decisions: []api.Decision{}, Endpoints: []string{}}
	})
	b.open(f.URL + "/#/user/carol")
	b.awaitText("#user-budgets", "Begins anew at 2026-11-25 09:00:00 here, 2026-11-25 00:00:00 UTC.")
	// It is the 25th there already, which the day of a time would not tell.
	f.set(func(f *fake) { f.live.Time = noon.Add(6 * time.Hour) })
	b.awaitText("#user-budgets", "Begins anew at 09:00:00 here, 2026-11-25 00:00:00 UTC.")
}
