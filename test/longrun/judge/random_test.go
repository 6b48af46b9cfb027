package judge

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/test/longrun/history"
	"pgregory.net/rapid"
)

// limiter is a simulated one, exact unless one of its mutations is on.
type limiter struct {
	rate, places int // 0: no limit

	oneMore    bool // of a second's requests
	countTwice bool // each request
	keepCount  bool // of the second before, now and then
	leak       bool // every second place
	freeTwice  bool // every place

	used, second, inProgress, ends int
	free                           []int // when places come back, sorted
}

// decide is its answer to a request at a millisecond, which if admitted goes on until over.
func (l *limiter) decide(at, over int) (reason string) {
	for len(l.free) > 0 && l.free[0] <= at {
		l.free = l.free[1:]
		l.ends++
		switch {
		case l.leak && l.ends%2 == 0:
		case l.freeTwice:
			l.inProgress = max(0, l.inProgress-2)
		default:
			l.inProgress--
		}
	}
	if second := at / 1000; second != l.second {
		if l.second = second; !l.keepCount || second%2 == 0 {
			l.used = 0
		}
	}
	most := l.rate
	if l.oneMore {
		most++
	}
	switch {
	case l.rate > 0 && l.used >= most:
		return "request-rate"
	case l.places > 0 && l.inProgress >= l.places:
		return "concurrent-requests"
	}
	l.used++
	if l.countTwice {
		l.used++
	}
	l.inProgress++
	i, _ := slices.BinarySearch(l.free, over)
	l.free = slices.Insert(l.free, i, over)
	return ""
}

// drawn is a request: when it is sent, decided and at the origin, and how long it takes there, in milliseconds.
type drawn struct{ sent, decided, at, over int }

// draw makes requests of a few seconds, each with the same number of requests. Those near the end of a second may be decided in the next one.
func draw(t *rapid.T, seconds, each, longest int, straddling bool) []drawn {
	var all []drawn
	for s := range seconds {
		for range each {
			last := 900
			if straddling {
				last = 999
			}
			sent := 1000*s + rapid.IntRange(20, last).Draw(t, "sent")
			decided := sent + rapid.IntRange(0, 40).Draw(t, "until decided")
			at := decided + rapid.IntRange(0, 40).Draw(t, "until it arrives")
			all = append(all, drawn{sent, decided, at, at + rapid.IntRange(1, longest).Draw(t, "takes")})
		}
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.decided, b.decided) })
	return all
}

// played is what clients and origin write down of a limiter.
func (l limiter) played(requests []drawn) *scene {
	s := newScene().limit("hot", l.rate, l.places, 0)
	for i, d := range requests {
		id := fmt.Sprint(i)
		r := history.Request{User: "hot", Method: "GET", ID: id, Sent: ms(d.sent), Done: ms(d.over + 1), Status: 200}
		if r.Reason = l.decide(d.decided, d.over); r.Reason != "" {
			r.Status, r.Done = 429, ms(d.at)
		} else {
			s.Arrivals = append(s.Arrivals, history.Arrival{ID: id, User: "hot", Method: "GET", At: ms(d.at), Ended: ms(d.over)})
		}
		s.Requests = append(s.Requests, r)
	}
	return s
}

// An exact limiter passes, whatever is asked of it.
func TestExactLimiterPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := limiter{rate: rapid.IntRange(0, 12).Draw(t, "rate"), places: rapid.IntRange(0, 5).Draw(t, "places")}
		s := l.played(draw(t, 3, rapid.IntRange(1, 30).Draw(t, "each second"), rapid.SampledFrom([]int{5, 300, 1500}).Draw(t, "longest"), true))
		if got := s.judged(); got != "" {
			t.Fatalf("rate %d, places %d:\n%s", l.rate, l.places, got)
		}
	})
}

// One that is wrong in any of these ways fails, by the property that it breaks.
func TestWrongLimitersFail(t *testing.T) {
	rated, placed := limiter{rate: 10}, limiter{places: 5}
	tests := []struct {
		name   string
		exact  limiter
		mutate func(*limiter)
		want   string
	}{
		{"admits one more", rated, func(l *limiter) { l.oneMore = true }, "was admitted 11 of 10 GET requests"},
		{"counts twice", rated, func(l *limiter) { l.countTwice = true }, "was refused through instance 0 with 5 of 10 GET requests"},
		{"keeps the count of the second before", rated, func(l *limiter) { l.keepCount = true }, "was refused through instance 0 with 0 of 10 GET requests"},
		{"leaks places", placed, func(l *limiter) { l.leak = true }, "was refused through instance 0 with 0 of 5 requests in progress"},
		{"frees places twice", placed, func(l *limiter) { l.freeTwice = true }, "requests in progress at"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				requests := draw(t, 4, 60, 300, false)
				if got := tt.exact.played(requests).judged(); got != "" {
					t.Fatalf("the exact one:\n%s", got)
				}
				wrong := tt.exact
				tt.mutate(&wrong)
				if got := wrong.played(requests).judged(); !strings.Contains(got, tt.want) {
					t.Fatalf("violations:\n%s\nwant one with %q", got, tt.want)
				}
			})
		})
	}
}

// Whatever a file says, it is judged or refused.
func FuzzJudge(f *testing.F) {
	var file bytes.Buffer
	w := history.NewWriter(&file)
	s := newScene().limit("hot", 5, 2, 1000).refuse("hot", 300, "request-rate").transfer("hot", 500, 100).leak("hot").fault(history.Kill, "agent-1", 0, 900).
		costs("rich", 40, 0, true).spends("rich", 2, 700, 4, 2).overspend("rich", 900, 4)
	w.Write(s.Run)
	for _, r := range s.Requests {
		w.Write(r)
	}
	for _, a := range s.Arrivals {
		w.Write(a)
	}
	for _, x := range s.Transfers[:1] {
		w.Write(x)
	}
	for _, x := range s.Faults {
		w.Write(x)
	}
	for _, x := range s.Limits {
		w.Write(x)
	}
	w.Write(s.Leaks[0])
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := history.Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		r, err := Judge(h)
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil || !strings.HasSuffix(text.String(), r.Verdict()+"\n") {
			t.Errorf("WriteText = %v, and ends with %q", err, r.Verdict())
		}
	})
}
