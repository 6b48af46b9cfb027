package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// One limit for each user, so that each of them is seen by that alone, or by none.
const oneLimitEach = `version: 1
default_tier: open
tiers:
  open: {}
  flow: {bandwidth: {down: 2MiB}}
  runs: {concurrent: 50}
users: {flo: flow, ron: runs}
`

// The default set-up is one instance. What it moves, has in progress and starts is shown
// there as with any number, by everything that shows it, and with a limit or without.
func TestOneInstance(t *testing.T) {
	up := startUpOf(t, 1, oneLimitEach)
	up.load(t, 5, "GET", "/sleep/1500", "ron")
	up.load(t, 5, "GET", "/sleep/1500", "olga") // whom nothing limits
	up.load(t, 3, "PUT", "/", "olga")
	up.load(t, 5, "GET", "/bytes/500000", "flo") // more than the limit moves: some are always in progress

	t.Run("the API", func(t *testing.T) {
		for user, want := range map[string]struct {
			class string
			down  bool
		}{"ron": {"GET", false}, "olga": {"PUT", false}, "flo": {"GET", true}} {
			proctest.Eventually(t, user+" is shown", func() error {
				var u api.User
				if err := json.Unmarshal([]byte(up.get(t, "/api/v1/users/"+user)), &u); err != nil {
					return err
				}
				if u.InProgress < 2 || u.Started[want.class] <= 0 || u.Started["*"] < u.Started[want.class] || want.down && u.Down < 1<<20 {
					return fmt.Errorf("%d in progress, %v started, %d bytes/s; want several, some %s, and bytes: %v", u.InProgress, u.Started, u.Down, want.class, want.down)
				}
				return nil
			})
		}
		var all api.Users
		if err := json.Unmarshal([]byte(up.get(t, "/api/v1/users?sort=concurrent")), &all); err != nil || len(all.Users) != 3 {
			t.Errorf("%d users are listed, %v, want 3", len(all.Users), err)
		}
	})
	t.Run("top", func(t *testing.T) {
		// user tier state rate/s in_progress down_B/s
		for user, want := range map[string]string{
			"ron":  `(?m)^ron +runs +ok +[1-9][0-9.]* +[1-9]`,
			"olga": `(?m)^olga +open +ok +[1-9][0-9.]* +[1-9]`,
			"flo":  `(?m)^flo +flow +ok +[0-9.]+ +[1-9][0-9]* +[1-9][0-9]{4,} `,
		} {
			up.prints(t, user+" in the list", want, "top", "--once", "--admin", up.admin)
		}
	})
	t.Run("explain", func(t *testing.T) {
		up.prints(t, "the use of ron's limit", `(?m)^  concurrent +[1-9][0-9]* of 50 in progress$`, "explain", "ron", "--limits", filepath.Join(up.dir, up.limits), "--admin", up.admin)
		up.prints(t, "the use of flo's limit", `(?m)^  bandwidth.down +[1-9].* of 2 MiB/s$`, "explain", "flo", "--limits", filepath.Join(up.dir, up.limits), "--admin", up.admin)
		up.prints(t, "what olga starts", `(?ms)^requests started:$.*^  PUT +[1-9][0-9.]*/s +no limit of its own$`, "explain", "olga", "--limits", filepath.Join(up.dir, up.limits), "--admin", up.admin)
	})
	t.Run("metrics", func(t *testing.T) {
		for _, want := range []string{
			`(?m)^sluice_user_requests_in_progress\{.*user="ron".*\} [1-9]`,
			`(?m)^sluice_user_requests_in_progress\{.*user="olga".*\} [1-9]`,
			`(?m)^sluice_user_bytes_per_second\{direction="down",.*user="flo".*\} [1-9]`,
			`(?m)^sluice_user_requests_per_second\{.*user="olga".*\} [1-9]`,
			`(?m)^sluice_requests_started_total\{.*tier="open",verb="PUT"\} [1-9]`,
		} {
			proctest.Eventually(t, want, func() error {
				if text := up.get(t, "/metrics"); !regexp.MustCompile(want).MatchString(text) {
					return fmt.Errorf("/metrics has no %s", want)
				}
				return nil
			})
		}
	})
	t.Run("the page", func(t *testing.T) {
		b := newTab(t, up.admin, desktop)
		b.open("http://" + up.admin + "/#/user/olga")
		b.awaitText("#user-started", "PUT")
		b.awaitText("#user-started", "no limit of its own")
		more := func(what, cell string) {
			b.await(what, `Number.parseFloat(document.querySelector(`+quote(cell)+`)?.innerText ?? "0") > 0`, `document.querySelector(".panel").parentElement.innerText`)
		}
		more("olga's requests in progress", "#user-places td:nth-child(2)")
		for _, theme := range []string{"dark", "light"} {
			b.theme(theme)
			b.check("a user without a limit, " + theme)
			b.shootAll("started-" + theme)
		}
		b.size(phone)
		b.check("a user without a limit on a phone")
		b.shootAll("started-phone")
		b.size(desktop)
		b.open("http://" + up.admin + "/#/user/flo")
		more("flo's bytes", "#user-places td:nth-child(4)")
		b.open("http://" + up.admin + "/")
		row := func(user string, cell int) string {
			return fmt.Sprintf(`Number.parseFloat(Array.from(document.querySelectorAll("#user-rows tr")).find((r) => r.cells[0].innerText === %q)?.cells[%d].innerText ?? "0") > 0`, user, cell)
		}
		for user, cells := range map[string][]int{"ron": {4, 5}, "olga": {4, 5}, "flo": {5, 6}} {
			for _, cell := range cells {
				b.await(fmt.Sprintf("cell %d of %s", cell, user), row(user, cell), `document.querySelector("#user-rows").innerText`)
			}
		}
	})
}

func (u *up) get(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get("http://" + u.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// prints waits until a command of sluice prints what is wanted.
func (u *up) prints(t *testing.T, what, want string, args ...string) {
	t.Helper()
	proctest.Eventually(t, what, func() error {
		out, err := exec.Command(u.program, args...).CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			return fmt.Errorf("sluice %s: %v, want %s in\n%s", strings.Join(args, " "), err, want, out)
		}
		return nil
	})
}
