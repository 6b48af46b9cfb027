package page

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// TestJobs looks at whose background jobs run and wait, on a real River with its PostgreSQL.
func TestJobs(t *testing.T) {
	program, worker := filepath.Join(t.TempDir(), "example"), proctest.FreeAddr(t)
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, "github.com/sluice-qos/sluice/jobs/riverqos/example").CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	proctest.Start(t, nil, program, "-jobs", "400", "-each", "1h", "-listen", worker)
	away := proctest.FreeAddr(t)
	up := startUpOf(t, 1, limitFile, "--jobs-worker", worker, "--jobs-worker", away)
	b := newTab(t, up.admin, desktop)
	b.theme("dark")
	b.open("http://" + up.admin + "/")
	b.awaitText("#job-rows", "paula")
	row := func(user string) string {
		return `Array.from(document.querySelectorAll("#job-rows tr")).find((r) => r.cells[0].innerText === "` + user + `")`
	}
	cells := func(user string) string {
		return "Array.from(" + row(user) + `?.cells ?? [], (c) => c.innerText).join(" | ")`
	}
	for user, want := range map[string]string{
		"fred":  `/^fred \| free \| 1 \| 399 \| .+ \(job \d+\) \| limit of all jobs: 1 at a time$/`,
		"paula": `/^paula \| pro \| 3 \| 397 \| .+ \(job \d+\) \| limit of all jobs: 3 at a time$/`,
	} {
		b.await("what is said of "+user, want+`.test(`+cells(user)+`)`, cells(user))
	}
	b.awaitText("#jobs-count", "2")
	b.awaitText("#jobs-problems", "No answer of worker "+away+": nothing listens at "+away)
	b.check("jobs in the dark")
	eval[bool](b, `(document.getElementById("jobs").scrollIntoView(), true)`)
	b.shoot("jobs-dark")
	b.theme("light")
	b.check("jobs in the light")
	picture := b.shootPart("jobs-light", "#jobs")
	b.size(phone)
	b.check("jobs on a phone")
	b.shootAll("jobs-phone")
	updateImage(t, "page-jobs.png", picture)

	// The same in a terminal.
	run := func(arguments ...string) string {
		out, err := exec.Command(up.program, append(arguments, "--admin", up.admin)...).CombinedOutput()
		if err != nil {
			t.Errorf("sluice %v: %v", arguments, err)
		}
		return string(out)
	}
	list := run("top", "--jobs", "--once")
	for _, want := range []string{`(?m)^fred +free +1 +399 +\S+ +(\d+) +total +1$`, `(?m)^paula +pro +3 +397 +\S+ +\d+ +total +3$`, "nothing listens at " + regexp.QuoteMeta(away)} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("sluice top --jobs prints\n%s\nwant %s in it", list, want)
		}
	}
	if oldest := regexp.MustCompile(`(?m)^fred +free +1 +399 +\S+ +(\d+)`).FindStringSubmatch(list); oldest != nil {
		const want = ": gated\nIts user may run 1 at a time in all, and 1 of their jobs go before it.\n"
		if why := run("explain", "--job", oldest[1]); !strings.Contains(why, want) {
			t.Errorf("sluice explain prints\n%s\nwant in it\n%s", why, want)
		}
	}
}

// A list of jobs that is complete, and nobody who knows of any.
func TestJobsOfAFake(t *testing.T) {
	f := startFake(t)
	since := f.live.Time.Add(-200 * time.Second)
	id := int64(4711)
	f.set(func(f *fake) {
		f.jobs = api.Jobs{Found: 213, Partial: true, Workers: []api.JobWorker{{Address: "w:9092"}}, Users: []api.UserJobs{
			{Name: name("<b>bulk</b>"), Tier: "free", Running: 1, Waiting: 1400, AtLeast: true, Oldest: &id, Since: &since, Held: &workerapi.HeldBy{Service: "analysis", Max: 1}},
			{Name: name("ann"), Tier: "pro", Running: 0, Waiting: 3, Oldest: &id, Since: &since},
			{Name: name("dave"), Tier: "pro", Running: 2},
		}}
	})
	b := newTab(t, f.host(), desktop, "503")
	b.open(f.URL)
	b.awaitText("#job-rows", "dave")
	for i, want := range []string{
		"<b>bulk</b> | free | 1 | 1\u202f400+ | 3 min ago (job 4711) | limit of analysis: 1 at a time",
		"ann | pro | 0 | 3 | 3 min ago (job 4711) | no limit of theirs: they wait for a worker",
		"dave | pro | 2 | 0 | – | –",
	} {
		cells := fmt.Sprintf(`Array.from(document.querySelectorAll("#job-rows tr")[%d].cells, (c) => c.innerText).join(" | ")`, i)
		b.await("row", cells+" === "+quote(want), cells)
	}
	b.awaitText("#jobs-count", "213 or more")
	b.awaitText("#jobs-note", "The first 3 of 213 users. There are more users with jobs than workers look at.")
	b.check("jobs")
	// While it cannot be asked, what was last said stays.
	f.set(func(f *fake) { f.down = true })
	b.awaitText("#jobs-note", "Not heard now: too many streams; trying again.")
	b.awaitText("#job-rows", "dave")
	f.set(func(f *fake) { f.down, f.jobs.Users, f.jobs.Found, f.jobs.Partial = false, []api.UserJobs{}, 0, false })
	b.awaitText("#jobs-note", "No job runs or waits.")
	b.await("the table is gone", `document.getElementById("jobs-table").hidden`, `document.getElementById("jobs").innerText`)
	f.set(func(f *fake) { f.jobs.Workers = []api.JobWorker{} })
	b.await("the section is gone", `document.getElementById("jobs").hidden`, `document.getElementById("jobs").innerText`)
}
