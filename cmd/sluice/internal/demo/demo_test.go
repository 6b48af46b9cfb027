package demo

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/bench/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// twoHalves is a show of 10 s: noisy gets half until the limits are written at 5 s and in force at
// 6 s, and quiet gets all from then on.
func twoHalves(out io.Writer) *show {
	s := &show{Options: Options{Duration: 10 * time.Second, Admin: "127.0.0.1:9", Stdout: out}, record: &record{began: noon}}
	for at := time.Duration(0); at < 11*time.Second; at += 50 * time.Millisecond {
		if at == 5*time.Second {
			s.record.write(noon.Add(at))
		}
		event := event{at: noon.Add(at), quiet: true, took: 30 * time.Millisecond}
		if limited := at >= 6*time.Second; !limited {
			event.took = 500 * time.Millisecond
			event.kind = []kind{answered, failed}[int(at/(50*time.Millisecond))%2]
		}
		s.record.add(event)
		event.quiet = false
		for i := range noisyPerQuiet {
			event.kind = []kind{answered, failed}[i%2]
			if at >= 6*time.Second && i >= noisyPerQuiet/4 {
				event.kind = refused
			} else if at >= 6*time.Second {
				event.kind = answered
			}
			s.record.add(event)
		}
	}
	return s
}

func TestPicture(t *testing.T) {
	s := twoHalves(nil)
	lines, styles := s.picture(noon.Add(11*time.Second), func() (int, int) { return margin + 22, 24 })
	want := strings.Split(`Two users of a server that can do 200 requests/s, behind 2 HAProxies
 11 s: each user has {requests: {GET: 100}, concurrent: 3}

noisy asks 400/s, now 100/s answered, 300/s refused, p99 30 ms
    400/s │                      
          │▄▄▄▄▄▄▄▄▄▄▄▄          
 answered │████████████▆▆▆▆▆▆▆▆▆▆
   500 ms │████████████          
          │████████████          
      p99 │████████████▁▁▁▁▁▁▁▁▁▁
quiet asks 20/s, now 20/s answered, p99 30 ms
     20/s │            ██████████
          │▄▄▄▄▄▄▄▄▄▄▄▄██████████
 answered │██████████████████████
   500 ms │████████████          
          │████████████          
      p99 │████████████▁▁▁▁▁▁▁▁▁▁
           without lim…└ with limits

Who uses what: http://127.0.0.1:9/   Ctrl-C ends this.`, "\n")
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("picture() (-want +got):\n%s", diff)
	}
	if len(styles) != len(lines) {
		t.Errorf("%d styles of %d lines", len(styles), len(lines))
	}
}

// No terminal is too small for it, or too large.
func TestPictureFits(t *testing.T) {
	s := twoHalves(nil)
	for _, size := range [][2]int{{minColumns, minRows}, {80, 24}, {120, 40}, {300, 100}} {
		lines, _ := s.picture(noon.Add(3*time.Second), func() (int, int) { return size[0], size[1] })
		if len(lines) >= size[1] {
			t.Errorf("%d lines in %d rows", len(lines), size[1])
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > size[0] {
				t.Errorf("%d columns in %d: %q", n, size[0], l)
			}
		}
	}
}

func TestTell(t *testing.T) {
	var out bytes.Buffer
	s := twoHalves(&out)
	s.record.end(noon.Add(11 * time.Second))
	// What the end has cut off.
	s.record.add(event{at: noon.Add(11*time.Second - time.Millisecond), quiet: true, kind: failed})
	s.tell("sluice up --help")
	want := `The last 2.5 s of each half, without limits and with them:
                   answered  refused   failed  99 % of those answered took
  quiet, without       50 %      0 %     50 %  up to 500 ms
  quiet, with         100 %      0 %      0 %  up to 30 ms
  noisy, without       50 %      0 %     50 %  up to 500 ms
  noisy, with          25 %     75 %      0 %  up to 30 ms
Next, with limits of your own:
  sluice up --help
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("tell() (-want +got):\n%s", diff)
	}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		load.Result
		want kind
	}{
		{"answered", load.Result{Status: 200}, answered},
		{"refused by a limit", load.Result{Status: 429, Reason: 1}, refused},
		{"the queue is full", load.Result{Status: 503}, failed},
		{"no answer", load.Result{Failure: load.TimedOut}, failed},
		{"an answer that broke off", load.Result{Status: 200, Failure: load.Closed}, failed},
	} {
		if got := kindOf(tt.Result); got != tt.want {
			t.Errorf("%s: kindOf() = %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The server does so many requests at a time, lets so many wait, and answers no more.
func TestServerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{workers: make(chan struct{}, workers)}
		began, codes := time.Now(), make(chan int, workers+queue+5)
		for range cap(codes) {
			go func() {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest("GET", "/", http.NoBody))
				codes <- w.Code
			}()
			synctest.Wait()
		}
		counts := map[int]int{}
		for range cap(codes) {
			counts[<-codes]++
		}
		if diff := cmp.Diff(map[int]int{200: workers + queue, 503: 5}, counts); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if took, want := time.Since(began), work*(workers+queue)/workers; took != want {
			t.Errorf("all took %v, want %v", took, want)
		}
	})
}
