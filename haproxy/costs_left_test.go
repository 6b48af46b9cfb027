package haproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// sayAsTheyGoOn is an origin of streams: of each that it begins it sends a channel, takes the totals of its events there, and ends it
// when the channel is closed.
func sayAsTheyGoOn(begun chan<- chan int) func(w http.ResponseWriter, q *http.Request) {
	return func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		totals := make(chan int)
		begun <- totals
		for total := range totals {
			_, _ = io.WriteString(w, usage(total))
			w.(http.Flusher).Flush()
		}
	}
}

func usage(total int) string {
	return fmt.Sprintf("data: {\"usage\":{\"total_tokens\":%d}}\n\n", total)
}

// Of a stream that the client leaves, what it has said counts; and each event is with the client before
// the next one is sent.
func TestSettledStreamThatIsLeft(t *testing.T) {
	begun := make(chan chan int, 1)
	c := shared(t, costly.with(sayAsTheyGoOn(begun)))
	c.charge("", "1000")
	e := c.begin(t, post("{}", "application/json", "X-User: ann"))
	totals := <-begun
	resp := e.response()
	for i := range 3 {
		totals <- 100 * (i + 1)
		got, event := make([]byte, len(usage(100))), usage(100*(i+1))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != event {
			t.Fatalf("read %q, %v, want %q", got, err, event)
		}
	}
	_ = e.Conn.(*net.TCPConn).SetLinger(0)
	e.Close()
	testkit.Eventually(t, "HAProxy finds that the client has left", func() error {
		totals <- 300
		if out := c.cli(t, "show sess"); strings.Contains(out, "be=asked") {
			return errors.New(out)
		}
		return nil
	})
	c.wantSettled(t, map[string]int64{"ann tokens 1764003600": -700})
	close(totals)
}

// While a stream goes on that says as it does what it has cost so far, all of its estimate stays charged, and what is more than that
// is charged at once.
func TestSettledStreamThatSaysAsItGoesOn(t *testing.T) {
	begun := make(chan chan int, 1)
	c := shared(t, costly.with(sayAsTheyGoOn(begun)))
	charged := map[string]string{"ann": "1000", "ben": "200", "eve": "1000"}
	c.answerTold(func(q told) vars { return vars{"charged_1": charged[q.User] + "@1764003600"} })
	ends := map[string]func(){}
	for _, user := range []string{"ann", "ben"} {
		e := c.begin(t, post("{}", "application/json", "X-User: "+user))
		totals := <-begun
		ends[user] = sync.OnceFunc(func() { close(totals) })
		defer ends[user]()
		resp := e.response()
		totals <- 300
		if _, err := io.ReadFull(resp.Body, make([]byte, len(usage(300)))); err != nil {
			t.Fatal(err)
		}
	}
	// HAProxy has one thread, which tells of this one after it told of those.
	go func() {
		totals := <-begun
		totals <- 400
		close(totals)
	}()
	c.send(t, post("{}", "application/json", "X-User: eve"))
	want := map[string]int64{"ben tokens 1764003600": 100, "eve tokens 1764003600": -600}
	c.wantSettled(t, want)
	ends["ann"]()
	want["ann tokens 1764003600"] = -700
	c.wantSettled(t, want)
}

// A request that no origin got costs nothing: HAProxy refuses it by a rule of its own. One that the origin got and whose answer
// never came costs its estimate, whether the client has left or the origin is late: else clients had the origin work for nothing.
func TestSettledWithoutAnAnswer(t *testing.T) {
	var reached sync.Map // users whose requests the origin has got
	late := make(chan struct{})
	c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		reached.Store(q.Header.Get("X-User"), true)
		<-late
	}))
	defer close(late)
	c.charge("100", "1000")
	const kind = "application/json"
	if got := c.send(t, post("{}", kind, "X-User: denied", "X-Deny: 1"))[0]; got.Status != 403 {
		t.Errorf("denied: status %d, want 403", got.Status)
	}
	want := map[string]int64{"denied exports 1764003600": -100, "denied tokens 1764003600": -1000}
	c.wantSettled(t, want)

	if got := c.send(t, post("{}", kind, "X-User: late", "X-Late: 1"))[0]; got.Status != 504 {
		t.Errorf("late: status %d, want 504", got.Status)
	}

	whole := post("{}", "text/plain", "X-User: uploads") // no cost is looked for in it, so it is not waited for
	uploads := c.begin(t, whole[:len(whole)-1])
	testkit.Eventually(t, "the origin is there", func() error {
		if out := c.cli(t, "show sess"); !strings.Contains(out, "srv=origin") {
			return errors.New(out)
		}
		return nil
	})
	uploads.Close()

	q, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+c.addr+"/", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", kind)
	q.Header.Set("X-User", "cancels")
	cancelled(t, q, func() {
		testkit.Eventually(t, "the origin has the request", func() error {
			if _, has := reached.Load("cancels"); !has {
				return errors.New("it has not")
			}
			return nil
		})
	})
	if versionAtLeast(t, 3, 0) {
		c.streamsBecome(t, 0)
	}
	// HAProxy has one thread, which tells of this one last.
	c.send(t, post("{}", kind, "X-User: last", "X-Deny: 1"))
	want["last exports 1764003600"], want["last tokens 1764003600"] = -100, -1000
	c.wantSettled(t, want)
}

// A body whose bytes are held, for its user's bandwidth is limited, is read all the same.
func TestSettledBodyThatIsHeld(t *testing.T) {
	for _, size := range []int{3_000, 40_000} {
		next := make(chan struct{})
		c := shared(t, costly.with(func(w http.ResponseWriter, q *http.Request) {
			body := fmt.Sprintf(`{"a":"%s","usage":{"total_tokens":21},"b":"%s"}`, strings.Repeat("x", size), strings.Repeat("y", 100))
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-next
			_, _ = io.WriteString(w, body)
		}))
		c.answerTold(func(told) vars {
			return vars{"charged_1": "1000@1764003600", "down": uint32(size / 20)} // of 64 bytes a second
		})
		resp := c.begin(t, post("{}", "application/json", "X-User: ann")).response()
		close(next)
		if body, err := io.ReadAll(resp.Body); err != nil || len(body) < size {
			t.Errorf("%d bytes, %v, want all", len(body), err)
		}
		c.wantSettled(t, map[string]int64{"ann tokens 1764003600": -979})
	}
}
