package overload

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/clock"
)

const (
	crowd    = 10_000 // users who each ask for less than they may
	few      = 8      // users who each ask for far more, of "hot" and of "minute"
	newName  = "name-"
	sources  = 16 // addresses that clients come from
	patience = 2 * time.Second
	planned  = 2_000_000 // requests that a flood plans ahead
)

// Flood is clients who do not wait for each other.
type Flood struct {
	Targets  []string
	Seed     uint64
	Users    string // who sends: see draw
	Rate     float64
	For      time.Duration
	Conns    int // at most to each target
	Ahead    int // of them opened at once, before anything is sent
	Patience time.Duration
}

// draw chooses whose a request is.
func (f *Flood) draw(random *rand.Rand) (kind string, number uint64) {
	n := random.Uint64N(10)
	switch {
	case f.Users == "hot" || f.Users == "all" && n < 5:
		return "hot-", random.Uint64N(few)
	case f.Users == "crowd" || n < 8:
		return "user-", random.Uint64N(crowd)
	case n < 9:
		return "minute-", random.Uint64N(few)
	}
	return newName, random.Uint64()
}

// Tally is what became of requests.
type Tally struct {
	Offered, Sent     int
	Admitted, Refused int
	GaveUp, Unsent    int         // after the patience: without an answer, or without a connection
	Broken, Unlinked  int         // closed or malformed; not connected
	Failed            map[int]int // other answers, by status
	Answered          Waits       // from when a request was sent

	mu sync.Mutex
}

// SendFlood sends a flood that is given as JSON, and writes the tally: one process has too few file descriptors for all clients.
func SendFlood(ctx context.Context, flood string, out io.Writer) error {
	var f Flood
	if err := json.Unmarshal([]byte(flood), &f); err != nil {
		return err
	}
	t := &Tally{}
	return errors.Join(f.send(ctx, t), json.NewEncoder(out).Encode(t))
}

// send offers requests in slices, of which each begins when the one before has been offered, and ends when the time is over.
func (f *Flood) send(ctx context.Context, t *Tally) error {
	end := time.Now().Add(f.For)
	if f.Ahead > 0 {
		end = end.Add(f.Patience) // what was sent is waited for
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	slice := min(f.For, time.Duration(planned/f.Rate*float64(time.Second)))
	slices := int((f.For + slice - 1) / slice)
	failed := make(chan error, slices)
	var all sync.WaitGroup
	for i := range slices {
		all.Go(func() {
			if !clock.Sleep(ctx, time.Duration(i)*slice) {
				return
			}
			if err := f.slice(ctx, t, uint64(i), min(slice, f.For-time.Duration(i)*slice)); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (f *Flood) slice(ctx context.Context, t *Tally, number uint64, d time.Duration) error {
	targets, err := load.Spread("even", f.Targets...)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(f.Seed, number))
	var headers []byte
	report, err := load.Run(ctx, load.Spec{
		Targets: targets, Rate: f.Rate, Duration: d, Arrivals: load.Poisson, Seed: f.Seed + number,
		Conns: f.Conns, Ahead: f.Ahead, Sources: sources, Timeout: f.Patience, Settled: t.settled,
		Requests: func(int) load.Request {
			kind, user := f.draw(random)
			headers = append(append(headers[:0], "X-User: "...), kind...)
			headers = append(strconv.AppendUint(headers, user, 10), "\r\n"+headerSent+": "...)
			headers = append(strconv.AppendInt(headers, time.Now().UnixNano(), 10), "\r\n"...)
			return load.Request{Headers: headers}
		},
	})
	if report == nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Offered += len(report.Results)
	return nil // any other error is that the time was over
}

// settled counts a request.
func (t *Tally) settled(_, _ string, r load.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Sent > 0 {
		t.Sent++
	}
	switch {
	case r.Failure == load.TimedOut:
		t.GaveUp++
	case r.Failure == load.Dropped:
		t.Unsent++
	case r.Failure == load.NoConnect:
		t.Unlinked++
	case r.Failure != load.Answered:
		t.Broken++
	case r.Admitted():
		t.Admitted++
	case r.Refused():
		t.Refused++
	default:
		if t.Failed == nil {
			t.Failed = map[int]int{}
		}
		t.Failed[int(r.Status)]++
	}
	if r.Failure == load.Answered {
		t.Answered.add(time.Duration(r.Answered - r.Sent))
	}
}

// merge adds another one.
func (t *Tally) merge(o *Tally) {
	t.Offered, t.Sent = t.Offered+o.Offered, t.Sent+o.Sent
	t.Admitted, t.Refused = t.Admitted+o.Admitted, t.Refused+o.Refused
	t.GaveUp, t.Unsent = t.GaveUp+o.GaveUp, t.Unsent+o.Unsent
	t.Broken, t.Unlinked = t.Broken+o.Broken, t.Unlinked+o.Unlinked
	for status, n := range o.Failed {
		if t.Failed == nil {
			t.Failed = map[int]int{}
		}
		t.Failed[status] += n
	}
	t.Answered.merge(o.Answered)
}

func (t *Tally) failed() (n int) {
	for _, of := range t.Failed {
		n += of
	}
	return n
}
