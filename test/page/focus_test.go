package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// The keyboard's focus stays on its row when others leave the list, and goes to the row
// beside it when that row itself leaves.
func TestFocusStays(t *testing.T) {
	f := startFake(t)
	users := func(n int) []api.Summary {
		all := crowd(n, f.live.Time)
		for i := range all {
			all[i].State = api.Blocked
		}
		return all
	}
	b := newTab(t, f.host(), desktop)
	b.open(f.URL)
	eval[bool](b, `(() => {
		const now = performance.now.bind(performance);
		window.later = 0;
		performance.now = () => now() + later;
		return true;
	})()`)
	for _, list := range []string{"#user-rows", "#limited"} {
		f.set(func(f *fake) { f.live.Users = users(7); f.live.Limited = f.live.Users })
		b.awaitText(list, "user-06")
		at := func() string {
			return eval[string](b, `document.activeElement.closest("#user-rows, #limited, body").id + " " + document.activeElement.innerText`)
		}
		leave := func(name, want string) {
			t.Helper()
			gone := func(u api.Summary) bool { return u.User == name }
			proctest.Eventually(t, name+" has left "+list, func() error {
				eval[bool](b, `((later += 4000), true)`) // who was limited is listed for three seconds more
				f.set(func(f *fake) {
					f.live.Users = slices.DeleteFunc(slices.Clone(f.live.Users), gone)
					f.live.Limited = slices.DeleteFunc(slices.Clone(f.live.Limited), gone)
				})
				if text := b.text(list); strings.Contains(text, name) {
					return fmt.Errorf("it has %s", text)
				}
				return nil
			})
			if got := at(); got != list[1:]+" "+want {
				t.Errorf("%s: when %s has left, the focus is at %q, want %s", list, name, got, want)
			}
		}
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("%s a")[1].focus(), true)`, list))
		b.press("\t")
		if got := at(); got != list[1:]+" user-02" {
			t.Fatalf("%s: Tab leads to %q, want user-02", list, got)
		}
		leave("user-01", "user-02")
		leave("user-02", "user-03")
		b.press("\t")
		b.press("\t")
		b.press("\t")
		if got := at(); got != list[1:]+" user-06" {
			t.Fatalf("%s: three Tabs lead to %q, want user-06", list, got)
		}
		leave("user-06", "user-05")
		eval[bool](b, `(document.activeElement.blur(), true)`)
	}

	// A row that the filter hides takes no focus.
	eval[bool](b, `(() => {
		const field = document.getElementById("find-user");
		field.value = "user-0";
		field.dispatchEvent(new Event("input"));
		document.querySelector("#user-rows a").focus();
		document.querySelectorAll("#user-rows tr")[1].hidden = true;
		return true;
	})()`)
	first, third := b.text("#user-rows tr:nth-child(1) a"), b.text("#user-rows tr:nth-child(3) a")
	f.set(func(f *fake) {
		f.live.Users = slices.DeleteFunc(slices.Clone(f.live.Users), func(u api.Summary) bool { return u.User == first })
	})
	b.await("the focus is beyond the hidden row", "document.activeElement.innerText === "+quote(third), "document.activeElement.innerText")
}
