package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/api"
)

const why = "redis cannot be reached: lead: redis is unavailable: dial tcp 192.0.2.7:6379: connect: connection refused"

// A polygen that is cut off says so where it else says that it leads, and why in words
// that need no pointing at.
func TestCutOff(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	b.awaitText("#leading", "leads")
	if got := b.text(".degraded"); got != "" {
		t.Errorf("all is well, and it says %q", got)
	}
	height := eval[int](b, `document.querySelector(".degraded").offsetHeight`)
	if height != 0 {
		t.Errorf("nothing is said in %d px", height)
	}
	f.set(func(f *fake) { f.live.Leading, f.live.Degraded = false, why })
	b.awaitText("#leading", "cut off")
	for _, s := range []struct {
		name, red string
		size      size
	}{
		{"dark", "rgb(255, 148, 139)", desktop}, {"light", "rgb(177, 38, 28)", desktop}, {"light", "rgb(177, 38, 28)", phone}, {"dark", "rgb(255, 148, 139)", phone},
	} {
		b.theme(s.name)
		b.size(s.size)
		where := fmt.Sprintf("cut off, %s, %d px", s.name, s.size.width)
		if got := b.text(".degraded"); !strings.Contains(got, "This polygen is cut off") || !strings.Contains(got, why) {
			t.Errorf("%s: it says %q, want %q in it", where, got, why)
		}
		for _, e := range []string{"#leading", "#degraded", "#degraded-why"} {
			if got := eval[string](b, "getComputedStyle(document.querySelector("+quote(e)+")).color"); got != s.red {
				t.Errorf("%s: %s is %s, want %s", where, e, got, s.red)
			}
			if !eval[bool](b, `(() => { const r = document.querySelector(`+quote(e)+`).getBoundingClientRect(); return r.width > 0 && r.left >= 0 && r.right <= innerWidth; })()`) {
				t.Errorf("%s: %s is not within the window", where, e)
			}
		}
		b.check(where)
		b.shoot("cut-off-" + s.name + fmt.Sprintf("-%d", s.size.width))
	}
	f.set(func(f *fake) { f.live.Degraded = strings.Repeat("x", 2000) + "<b>" })
	b.awaitText("#degraded-why", "xxx")
	b.check("a reason without an end")
	f.set(func(f *fake) { f.live.Degraded = "polygen two does not answer: what it knows is missing here" })
	b.awaitText("#leading", "incomplete")
	if got := b.text(".degraded"); !strings.Contains(got, "Some users are missing here.") || !strings.Contains(got, "polygen two does not answer") {
		t.Errorf("without another polygen's answer it says %q", got)
	}
	f.set(func(f *fake) { f.live.Leading, f.live.Degraded = true, "" })
	b.awaitText("#leading", "leads")
	if got := b.text(".degraded"); got != "" {
		t.Errorf("all is well again, and it says %q", got)
	}
}

// What is read aloud changes with the state, and with nothing else.
func TestStatusIsHeard(t *testing.T) {
	f := startFake(t)
	b := newTab(t, f.host(), desktop, "503", "ERR_INCOMPLETE_CHUNKED", "Failed to load resource")
	b.open(f.URL)
	b.awaitText("#connection", "live")
	eval[bool](b, `(() => { // nothing becomes old before the test says so
		const real = Date;
		window.time = real.now();
		window.Date = class extends real {
			constructor(...of) { super(...(of.length > 0 ? of : [time])); }
		};
		return true;
	})()`)
	f.set(func(f *fake) { f.live.Totals.Rate = 70 })
	b.awaitText("#totals", "70")
	b.awaitText("#connection", "live")
	if got := eval[string](b, `Array.from(document.querySelectorAll("#connection, #degraded"), (e) => e.role).join(" ")`); got != "status status" {
		t.Errorf("roles %q, want two of status", got)
	}
	eval[bool](b, `(() => {
		window.said = [];
		for (const id of ["connection", "degraded"]) {
			const node = document.getElementById(id);
			new MutationObserver(() => said.push(node.textContent)).observe(node, {childList: true, characterData: true, subtree: true});
		}
		return true;
	})()`)
	said := func() string { return eval[string](b, `said.join("|")`) }
	tick := func(rate float64, shown string) {
		t.Helper()
		f.set(func(f *fake) {
			f.live.Totals.Rate = rate
			f.live.Degraded = strings.Replace(f.live.Degraded, "refused", shown, 1)
		})
		b.awaitText("#totals", shown)
	}
	tick(71, "71")
	tick(72, "72")
	if got := said(); got != "" {
		t.Errorf("two answers alike are read aloud as %q, want nothing", got)
	}
	f.set(func(f *fake) { f.live.Degraded = why })
	b.awaitText("#degraded", "cut off")
	tick(73, "73") // for another reason
	tick(74, "74")
	if got, want := said(), "This polygen is cut off: what is seen here may be old."; got != want {
		t.Errorf("being cut off, for changing reasons, is read aloud as %q, want %q", got, want)
	}
	f.set(func(f *fake) { f.live.Degraded = "" })
	b.awaitText("#leading", "leads")
	eval[bool](b, `(said.length = 0, true)`)

	eval[bool](b, `((time += 60000), true)`)
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	f.drop()
	b.awaitText("#connection", "stale since")
	b.awaitText("#connection", "too many streams")
	f.set(func(f *fake) { f.down = false; f.live.Totals.Rate = 75 })
	b.awaitText("#connection", "live")
	all := strings.Split(said(), "|")
	if len(all) > 6 || !strings.Contains(strings.Join(all, "|"), "stale since") || all[len(all)-1] != "live" {
		t.Errorf("an outage is read aloud as %q, want that it reconnects, is stale, and live again", all)
	}
}

// From an endpoint a link leads to what the user does elsewhere.
func TestElsewhere(t *testing.T) {
	f := startFake(t)
	f.set(func(f *fake) {
		f.live.User = &api.User{Name: api.Name{User: "alice", Endpoint: "up", Href: api.Path("alice", "up")}, Tier: "free", Known: true, State: api.OK,
			Why: []api.Why{}, Limits: []api.Limit{}, Instances: []api.Place{}, Decisions: []api.Decision{}, Endpoints: []string{"", "down"}}
	})
	b := newTab(t, f.host(), desktop)
	b.open(f.URL + "/#/user/alice@up")
	b.awaitText("#user-also", "everywhere else")
	if got := eval[string](b, `Array.from(document.querySelectorAll("#user-endpoints a"), (a) => a.innerText + " " + a.getAttribute("href")).join("|")`); got != "everywhere else #/user/alice|down #/user/alice@down" {
		t.Errorf("links %q, want one to alice and one to her at down", got)
	}
	b.check("a user seen elsewhere")
}
