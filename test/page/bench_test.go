package page

import (
	"strconv"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
)

// BenchmarkPage is what an answer costs Chromium's main thread when every number of
// 100 users changes. There is one answer a second, so 10 ms are 1 % of a core.
func BenchmarkPage(b *testing.B) {
	f := startFake(b)
	f.set(func(f *fake) { f.live.Users = crowd(100, f.live.Time) })
	tab := newTab(b, f.host(), desktop)
	tab.open(f.URL)
	tab.awaitText("#user-rows", "user-99")
	call(tab, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	work := func() float64 {
		for _, m := range call(tab, performance.GetMetrics, cdp.Empty{}).Metrics {
			if m.Name == "TaskDuration" {
				return m.Value
			}
		}
		b.Fatal("Chromium has no TaskDuration")
		return 0
	}
	before, answers := work(), 0
	for b.Loop() {
		f.set(func(f *fake) {
			for j := range f.live.Users {
				u := &f.live.Users[j]
				u.Rate, u.InProgress, u.Down, u.Up = float64((answers*37+j)%400), (answers+j)%50, int64(answers*j)<<12, int64(answers+j)<<10
				u.Near.Used = int64((answers*7 + j) % 100)
			}
			one, other := answers%100, (answers+1)%100
			f.live.Users[one], f.live.Users[other] = f.live.Users[other], f.live.Users[one]
			f.live.Totals.Rate = float64(1000 + answers%9000)
		})
		want := strconv.Itoa(1000 + answers%9000)
		want = want[:1] + "\u202f" + want[1:]
		tab.await("it is shown", `document.querySelector("#totals .value").textContent === `+quote(want), `document.querySelector("#totals .value").textContent`)
		answers++
	}
	b.ReportMetric(1000*(work()-before)/float64(answers), "CPU-ms/answer")
	b.ReportMetric(0, "ns/op") // the page draws when it wants to
}
