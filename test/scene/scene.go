// Package scene is what tests of whole clusters share: a cluster in front of an origin that counts, loads of it, and checks
// of what became of them.
//
// Its clusters have time-outs of seconds (cluster.LongWait), so a correct Sluice is exact on any machine. Tests of what happens
// in time set ShortWait.
package scene

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// ShortWait is the Options.MaxWait of tests that kill and stop parts: ten times the shipped wait. HAProxy's time-outs and the
// loss of Redis follow it.
const ShortWait = 200 * time.Millisecond

// clockSlack is by how much the instant at which an agent decides may lie outside the time between a request's sending and
// its answer, by the clock of Redis: the clocks are one, the agents' estimates of it are not.
const clockSlack = 2 * time.Millisecond

// Scene is a running cluster.
type Scene struct {
	*cluster.Cluster
	Origin *origin.Origin            // counts the requests of each user
	Bytes  *transfer.Origin          // of /endless and /sink
	Runs   map[string]*closed.Origin // of users whose requests in progress are recorded
	Server string                    // the address of Redis for the test itself; that of the options may want TLS

	holds sync.Map // *hold by path
}

type hold struct {
	running atomic.Int64
	done    chan struct{}
}

// Start starts a cluster until the test ends. The requests of some users are recorded in Runs.
func Start(t testing.TB, o cluster.Options, recorded ...string) *Scene {
	t.Helper()
	s := &Scene{Origin: origin.New(), Runs: map[string]*closed.Origin{}}
	s.Origin.MaxUsers = 1000
	for _, user := range recorded {
		s.Runs[user] = closed.NewOrigin(0)
		s.Runs[user].Begin()
	}
	transfers, err := transfer.NewOrigin()
	if err != nil {
		t.Fatal(err)
	}
	s.Bytes = transfers
	t.Cleanup(func() { _ = transfers.Close() })
	if o.Origin == "" {
		o.Origin = Serve(t, s)
	}
	s.Cluster = cluster.Start(t, o)
	s.Server = s.RedisAddr
	return s
}

// ServeHTTP is the origin.
func (s *Scene) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	run := s.Runs[r.Header.Get("X-User")]
	held, _ := s.holds.Load(r.URL.Path)
	switch h, _ := held.(*hold); {
	case h != nil:
		h.running.Add(1)
		<-h.done
	case r.URL.Path == "/endless" || r.URL.Path == "/sink":
		s.Bytes.ServeHTTP(w, r)
	case run != nil:
		run.ServeHTTP(w, r)
	default:
		s.Origin.ServeHTTP(w, r)
	}
}

// Hold has requests of a user in progress, dealt out to the instances, until release is called.
func (s *Scene) Hold(t testing.TB, user string, requests int) (release func()) {
	t.Helper()
	h, path := &hold{done: make(chan struct{})}, fmt.Sprint("/hold/", user, time.Now().UnixNano())
	s.holds.Store(path, h)
	release = sync.OnceFunc(func() { close(h.done) })
	t.Cleanup(release)
	for i := range requests {
		go func() {
			for t.Context().Err() == nil {
				res, _, err := Send(t.Context(), http.MethodGet, s.Addresses()[i%len(s.Instances)]+path, user, "")
				if err == nil && res.StatusCode == http.StatusOK {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	testkit.Eventually(t, "requests of "+user+" are in progress", func() error {
		if n := h.running.Load(); n != int64(requests) {
			return fmt.Errorf("%d of %d are", n, requests)
		}
		return nil
	})
	return release
}

// Serve serves HTTP until the test ends, and returns where.
func Serve(t testing.TB, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: testkit.Patience}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String()
}

// Offer sends requests of a pattern (see load.Spread) to the instances, so many a second.
func (s *Scene) Offer(t testing.TB, pattern string, rate float64, d time.Duration, requests func(i int) load.Request) *load.Report {
	t.Helper()
	s.Settle()
	return s.offer(t, t.Context(), pattern, rate, d, requests)
}

// OfferUntil is Offer at once, until ctx ends.
func (s *Scene) OfferUntil(ctx context.Context, t testing.TB, rate float64, requests func(i int) load.Request) *load.Report {
	t.Helper()
	r := s.offer(t, ctx, "even", rate, testkit.Patience, requests)
	return r.Only(func(x load.Result) bool { return x.Failure != load.Unfinished })
}

func (s *Scene) offer(t testing.TB, ctx context.Context, pattern string, rate float64, d time.Duration, requests func(i int) load.Request) *load.Report {
	t.Helper()
	targets, err := load.Spread(pattern, s.Addresses()...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := load.Run(ctx, load.Spec{Targets: targets, Rate: rate, Duration: d, Align: true, Requests: requests, Timeout: testkit.Patience})
	if err != nil && (r == nil || ctx.Err() == nil) {
		t.Fatal(err)
	}
	return r
}

// GETs are requests of each of the users in turn.
func GETs(users ...string) func(i int) load.Request { return load.Users("GET", "/", users...) }

// CheckAnswered fails the test if a request failed or got another answer than 200 or 429.
func CheckAnswered(t testing.TB, r *load.Report) {
	t.Helper()
	if f := r.Failures(); len(f) > 0 {
		t.Errorf("failures: %v of %d requests, want none", f, len(r.Results))
	}
	for status, n := range r.Statuses() {
		if status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Errorf("%d answers have status %d, want 200 or 429 only", n, status)
		}
	}
}

// stall is how long an answer takes on a machine that has no time for all processes: usually it takes a few milliseconds.
const stall = 250 * time.Millisecond

// Stalled are the seconds in which an answer took longer than a stall, and the ones that follow: tokens of a second that a
// decision missed are lost, and attribution to seconds fills the earlier one.
func Stalled(r *load.Report) map[int64]bool {
	stalled := map[int64]bool{}
	for _, x := range r.Results {
		if x.Sent == 0 || x.Received-x.Sent < int64(stall) {
			continue
		}
		for second := x.Sent / 1e9; second <= x.Received/1e9+1; second++ {
			stalled[second] = true
		}
	}
	return stalled
}

// CheckLimit fails the test if a user was admitted above a limit in any second, refused in one with at most 0.9 of it offered, or
// admitted less than least, a fraction of what the limit allowed in the seconds in which the machine did not stall. The last tokens of
// a second may lie with another instance: who offers just the limit may be refused.
func CheckLimit(t testing.TB, all *load.Report, user string, limit int, least float64) {
	t.Helper()
	of := all.User(user)
	ratios, refused, stalled := of.Ratios(limit, clockSlack), of.Ratios(limit*9/10, clockSlack).FalseRefusals, Stalled(all)
	possible, admitted := 0, 0
	for _, row := range ratios.Rows {
		if row.Whole && !stalled[row.Second] {
			admitted += row.Admitted
			possible += min(limit, row.Offered)
		}
	}
	if ratios.Excess > 0 || float64(admitted) < least*float64(possible) || refused > 0 {
		t.Errorf("%s: %d requests above the limit of %d, want 0; %d admitted of %d that it allowed, want %.0f %% at least; %d refused below 0.9 of it, want 0; stalled: %v",
			user, ratios.Excess, limit, admitted, possible, 100*least, refused, stalled)
		for _, row := range ratios.Rows {
			t.Logf("%+v", row)
		}
	}
}

// CheckSeconds fails the test if a user was admitted more than most times in a whole second between two instants.
func CheckSeconds(t testing.TB, all *load.Report, user string, from, to time.Time, limit, most int) {
	t.Helper()
	counts := all.User(user).Attribute(limit, clockSlack)
	for second := from.Unix() + 1; second < to.Unix(); second++ {
		if n := counts.At(second); n > most {
			t.Errorf("%s: %d requests were admitted %d s after %s, want at most %d of a limit of %d", user, n, second-from.Unix(), from.Format(time.TimeOnly), most, limit)
		}
	}
}

// CheckRuns fails the test if a request of a closed load failed, or got another answer than 200 or 429.
func CheckRuns(t testing.TB, r closed.Report) {
	t.Helper()
	if r.Failed > 0 {
		t.Errorf("%d requests failed, want none: %v", r.Failed, r.Errors)
	}
	for status, n := range r.Statuses {
		if status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Errorf("%d answers have status %d, want 200 or 429 only", n, status)
		}
	}
}

// Get sends a GET of a user to an address, whose path may follow, and returns the answer and its body.
func Get(t testing.TB, address, user string) (*http.Response, string) {
	t.Helper()
	return Do(t, http.MethodGet, address, user)
}

// Do is Get of another method. Headers follow as name and value.
func Do(t testing.TB, method, address, user string, headers ...string) (*http.Response, string) {
	t.Helper()
	res, body, err := Send(t.Context(), method, address, user, "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// Send is Do for other goroutines than the test's, with a body.
func Send(ctx context.Context, method, address, user, body string, headers ...string) (*http.Response, string, error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header["X-User"] = []string{user}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res, string(answer), err
}

// Admitted counts the answers with 200 of so many requests of a user, one after the other, to the instances in turn.
func (s *Scene) Admitted(t testing.TB, method, path, user string, requests int) (admitted int) {
	t.Helper()
	for i := range requests {
		if res, _ := Do(t, method, s.Addresses()[i%len(s.Instances)]+path, user); res.StatusCode == http.StatusOK {
			admitted++
		}
	}
	return admitted
}

// Await waits until a request of a user to each instance is answered with a status.
func (s *Scene) Await(t testing.TB, what, user string, status int) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		for _, in := range s.Instances {
			if res, _ := Get(t, in.Address, user); res.StatusCode != status {
				return fmt.Errorf("%s: %s", in.Name, res.Status)
			}
		}
		return nil
	})
}

// AwaitMetric waits until a value of a metric at an admin address passes a check.
func AwaitMetric(t testing.TB, admin, metric string, passes func(float64) bool) {
	t.Helper()
	testkit.Eventually(t, metric+" of "+admin, func() error {
		v, err := cluster.ReadMetric(admin, metric)
		if err == nil && !passes(v) {
			err = fmt.Errorf("it is %v", v)
		}
		return err
	})
}

// Is is a check that a value is another one.
func Is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }

// Told has a polygen's API do something, as soon as the polygen can: without a leader or Redis it answers 503.
func Told(t testing.TB, p *cluster.Polygen, method, path, body string) (answer string) {
	t.Helper()
	tried := false
	testkit.Eventually(t, method+" "+path, func() error {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.Admin+path, bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		answer = string(data)
		deleted := tried && method == http.MethodDelete && res.StatusCode == http.StatusNotFound
		if err == nil && res.StatusCode != http.StatusOK && !deleted {
			err = fmt.Errorf("%s %s", res.Status, answer)
		}
		tried = true
		return err
	})
	return answer
}
