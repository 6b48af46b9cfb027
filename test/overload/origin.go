package overload

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/chaos"
)

// headerSent says when a client sent a request, in nanoseconds since 1970.
const headerSent = "X-Sent"

// takePath is where the origin tells what has arrived.
const takePath = "/taken"

// slack is by how much HAProxy's clock may be late: it has read the time before it reads a request.
const slack = 100 * time.Millisecond

// origin is behind the HAProxies, in a process of its own, for it has as many connections as the clients. It counts what
// they let through, also for clients who are gone by then.
type origin struct {
	mu      sync.Mutex
	arrived map[string]map[load.Span]int // by user and by the seconds in which it can have been admitted
	waits   Waits                        // from a client to here
}

// ServeOrigin serves at an address that it prints, for as long as the process lives.
func ServeOrigin() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: &origin{arrived: map[string]map[load.Span]int{}}, ReadHeaderTimeout: calmPatience}
	return server.Serve(listener)
}

func (o *origin) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == takePath {
		first, _ := strconv.ParseInt(q.FormValue("first"), 10, 64)
		last, _ := strconv.ParseInt(q.FormValue("last"), 10, 64)
		_ = json.NewEncoder(w).Encode(o.take(load.Span{First: first, Last: last}))
		return
	}
	now := time.Now()
	_, _ = io.WriteString(w, "ok\n")
	ns, err := strconv.ParseInt(q.Header.Get(headerSent), 10, 64)
	if err != nil {
		return
	}
	sent, user := time.Unix(0, ns), q.Header.Get("X-User")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits.add(now.Sub(sent))
	if strings.HasPrefix(user, newName) {
		return
	}
	spans := o.arrived[user]
	if spans == nil {
		spans = map[load.Span]int{}
		o.arrived[user] = spans
	}
	spans[load.Span{First: sent.Add(-slack).Unix(), Last: now.Unix()}]++
}

// Arrived is what came to the origin in a time.
type Arrived struct {
	Limits Exactness
	Waited Waits // from the client to the origin
}

// take tells what has arrived since it was last called, of hot users in some seconds.
func (o *origin) take(seconds load.Span) Arrived {
	o.mu.Lock()
	arrived, waits := o.arrived, o.waits
	o.arrived, o.waits = map[string]map[load.Span]int{}, Waits{}
	o.mu.Unlock()
	return Arrived{exactness(arrived, seconds), waits}
}

// startOrigin starts this program once more, as the origin.
func startOrigin(t *chaos.Scene) (addr string) {
	p := startSelf(t, "origin")
	proctest.Eventually(t, "the origin serves", func() error {
		var ended bool
		if addr, _, ended = strings.Cut(p.Output(), "\n"); !ended {
			return fmt.Errorf("it printed %q", p.Output())
		}
		return nil
	})
	return addr
}

// startSelf starts this program once more.
func startSelf(t *chaos.Scene, args ...string) *proctest.Process {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return proctest.Start(t, nil, program, args...)
}

// takeArrived asks the origin what has arrived since it was last asked, of hot users in the whole seconds between two times.
func takeArrived(addr string, from, to time.Time) (a Arrived, err error) {
	res, err := http.Get(fmt.Sprintf("http://%s%s?first=%d&last=%d", addr, takePath, from.Unix()+1, to.Unix()-1))
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	return a, json.NewDecoder(res.Body).Decode(&a)
}
