package overload

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
)

// calmKind is a kind of users who ask for much less than they may, and wait for as long as it takes.
type calmKind struct {
	user  string
	alone bool // each request has a connection of its own
}

// One has credit, the agent is asked about the next one, and the last one connects anew each time.
var calmKinds = []calmKind{{"calm", false}, {"minute-calm", false}, {"calm-new", true}}

const (
	calmEvery = 200 * time.Millisecond // of each kind at each HAProxy
	// calmPatience is longer than any wait may be.
	calmPatience = 70 * time.Second
)

// tookRules have a HAProxy tell by its own clock how long a request was there, in microseconds.
var tookRules = []string{
	"http-request set-var(txn.overload_begun) date(0,us)",
	"http-after-response set-header " + headerTook + " %[date(0,us),sub(txn.overload_begun)]",
}

const headerTook = "X-Took"

// visit is a calm user's request.
type visit struct {
	sent    time.Time
	took    time.Duration
	haproxy time.Duration // of which since HAProxy had read the request; 0: not known
	status  int           // 0: no answer
	err     error
}

// calm are the calm users.
type calm struct {
	mu     sync.Mutex
	visits map[string][]visit // by user
}

// run has them ask until ctx ends, and waits for all answers.
func (c *calm) run(ctx context.Context, addresses []string) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, kind := range calmKinds {
		for _, address := range addresses {
			client := &http.Client{Timeout: calmPatience, Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableKeepAlives: kind.alone}}
			all.Go(func() {
				defer client.CloseIdleConnections()
				var asked sync.WaitGroup
				defer asked.Wait()
				for clock.Sleep(ctx, calmEvery) {
					asked.Go(func() { c.visit(client, kind.user, address) })
				}
			})
		}
	}
}

func (c *calm) visit(client *http.Client, user, address string) {
	v := visit{sent: time.Now()}
	q, err := http.NewRequest(http.MethodGet, "http://"+address, nil)
	if err == nil {
		q.Header["X-User"] = []string{user}
		q.Header[headerSent] = []string{strconv.FormatInt(v.sent.UnixNano(), 10)}
		var res *http.Response
		if res, err = client.Do(q); err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			v.status = res.StatusCode
			us, _ := strconv.ParseInt(res.Header.Get(headerTook), 10, 64)
			v.haproxy = time.Duration(us) * time.Microsecond
		}
	}
	v.took, v.err = time.Since(v.sent), err
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visits[user] = append(c.visits[user], v)
}

// Calm is what a calm user saw of a phase.
type Calm struct {
	User              string
	Alone             bool // each request had a connection of its own
	Before, During    Waits
	Verdict           Waits // in HAProxy, of those who were refused meanwhile
	Admitted, Refused int
	Failed            []string
	Recovered         time.Duration // after the end
}

// judge is what a calm user saw of a phase; all visits are over.
func (c *calm) judge(kind calmKind, begin, end time.Time) Calm {
	of := Calm{User: kind.user, Alone: kind.alone}
	var after []visit
	for _, v := range c.visits[kind.user] {
		switch {
		case v.sent.Before(begin.Add(-calmFor)) || v.sent.After(end.Add(calmFor)):
			continue
		case v.sent.Before(begin):
			of.Before.add(v.took)
			continue
		case v.sent.After(end):
			after = append(after, v)
			continue
		case v.status == http.StatusOK:
			of.Admitted++
		case v.status == http.StatusTooManyRequests:
			of.Refused++
			of.Verdict.add(v.haproxy)
		default:
			of.Failed = append(of.Failed, fmt.Sprintf("%d %v after %v", v.status, v.err, v.took.Round(time.Millisecond)))
		}
		of.During.add(v.took)
	}
	of.Recovered = recovered(after, end, usual(&of.Before))
	return of
}

// usual is how long a request takes at most on a machine that has nothing else to do.
func usual(before *Waits) time.Duration { return max(50*time.Millisecond, 3*before.quantile(0.95)) }

// never is when what has not recovered while it was looked at does.
const never = time.Hour

// recovered is after which time visits were admitted as soon as usual, for a second on end, but for one in ten: a machine with
// other work is late now and then.
func recovered(visits []visit, end time.Time, usual time.Duration) time.Duration {
	slices.SortFunc(visits, func(a, b visit) int { return a.sent.Compare(b.sent) })
	for i, first := range visits {
		good, n := 0, 0
		for _, v := range visits[i:] {
			if v.sent.Sub(first.sent) >= time.Second {
				break
			}
			if n++; v.status == http.StatusOK && v.took <= usual {
				good++
			}
		}
		if n >= 5 && good*10 >= n*9 {
			return first.sent.Sub(end)
		}
	}
	return never
}
