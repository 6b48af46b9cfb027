package costfeed

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// rig is a listener on a unix socket, and what it has heard.
type rig struct {
	path string
	reg  *prometheus.Registry

	mu    sync.Mutex
	heard []Correction
	late  []Question
	most  int // corrections at a time
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice") // short: a unix socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{path: filepath.Join(dir, "costs.sock"), reg: prometheus.NewPedanticRegistry()}
	l, err := daemon.Socket("costs", "unix:"+r.path)
	if err != nil {
		t.Fatal(err)
	}
	o.Registerer = r.reg
	o.Apply = func(batch []Correction) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.heard = append(r.heard, batch...)
		r.most = max(r.most, len(batch))
	}
	o.Unheard = func(question Question) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.late = append(r.late, question)
	}
	ctx, cancel := context.WithCancel(context.Background())
	listener, ended := New(o), make(chan error, 1)
	go func() { ended <- listener.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return r
}

// say sends a text over a connection of its own, and returns when it has been heard to its end.
func (r *rig) say(t *testing.T, text string) {
	t.Helper()
	conn, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The other end may have closed it in the middle of what it cannot read.
	_, _ = io.WriteString(conn, text)
	_ = conn.(*net.UnixConn).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
}

func (r *rig) take() []Correction {
	r.mu.Lock()
	defer r.mu.Unlock()
	heard := r.heard
	r.heard = nil
	return heard
}

func (r *rig) counted(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestListenerHearsCorrections(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.say(t, "unheard 8589934591 Ann Lee of it\nunheard 0 ~\n188 1000@1764003600 tokens alice\n1000000000000 0@1764003601 exports @api/Ann Lee\ndropped 12\nunreadable 3\n5 5@1 tokens even\n1 0@1 a ~\n")
	want := []Correction{{1764003600, "tokens", -812, "alice"}, {1764003601, "exports", 1000000000000, "@api/Ann Lee"}, {1, "a", 1, "~"}}
	if got := r.take(); !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
	if want := []Question{{8589934591, "Ann Lee of it"}, {0, "~"}}; !slices.Equal(r.late, want) {
		t.Errorf("heard of the questions %v, want %v", r.late, want)
	}
	for name, want := range map[string]float64{
		"sluice_settle_corrections_total": 3, "sluice_settle_dropped_corrections_total": 12,
		"sluice_settle_unreadable_answers_total": 3, "sluice_settle_bad_lines_total": 0,
	} {
		if got := r.counted(t, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if problems, err := testutil.GatherAndLint(r.reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

// A line that cannot be read ends its connection. What came before it holds, and nothing behind it does.
func TestListenerClosesOnBadLines(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"empty":              "",
		"a word":             "hello",
		"no question":        "unheard ",
		"nobody's question":  "unheard 1",
		"a nameless one":     "unheard 1 ",
		"a question of text": "unheard x alice",
		"a large question":   "unheard 8589934592 alice",
		"three parts":        "5 0@1 tokens",
		"no second":          "5 0 tokens alice",
		"a second of nobody": "5 0@-1 tokens alice",
		"a far second":       "5 0@10000000000 tokens alice",
		"a sign":             "+5 0@1 tokens alice",
		"a sign behind":      "5 +1@1 tokens alice",
		"no number":          "5x 0@1 tokens alice",
		"a fraction":         "5.0 0@1 tokens alice",
		"too much":           "1000000000001 0@1 tokens alice",
		"too much before":    "5 1000000000001@1 tokens alice",
		"too little":         "-5 0@1 tokens alice",
		"beyond 64 bits":     "99999999999999999999 0@1 tokens alice",
		"a unit's letters":   "5 0@1 Tokens alice",
		"a long unit":        "5 0@1 " + strings.Repeat("a", 25) + " alice",
		"no unit":            "5 0@1  alice",
		"nobody":             "5 0@1 tokens ",
		"a control byte":     "5 0@1 tokens ali\x00ce",
		"a carriage return":  "5 0@1 tokens alice\r",
		"a long key":         "5 0@1 tokens " + strings.Repeat("a", maxUser+1),
		"a long line":        strings.Repeat("a", 1<<20),
		"a count":            "dropped 0",
		"a count below":      "unreadable -1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.say(t, "5 0@1 tokens before\n"+bad+"\n5 0@1 tokens behind\n")
			if got, want := r.take(), []Correction{{1, "tokens", 5, "before"}}; !slices.Equal(got, want) {
				t.Errorf("heard %v, want %v", got, want)
			}
			if got := r.counted(t, "sluice_settle_bad_lines_total"); got != 1 {
				t.Errorf("%v bad lines, want 1", got)
			}
			// The next connection is a new beginning.
			r.say(t, "5 0@2 tokens next\n")
			if got, want := r.take(), []Correction{{2, "tokens", 5, "next"}}; !slices.Equal(got, want) {
				t.Errorf("heard %v afterwards, want %v", got, want)
			}
		})
	}
}

// Half a line of a HAProxy that ended is neither a correction nor one that nobody understands.
func TestListenerIgnoresHalfALine(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.say(t, "5 0@1 tokens alice\n6 0@2 tokens bo")
	if got, want := r.take(), []Correction{{1, "tokens", 5, "alice"}}; !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
	if got := r.counted(t, "sluice_settle_bad_lines_total"); got != 0 {
		t.Errorf("%v bad lines, want 0", got)
	}
}

// More connections than there may be are closed, and one that ends makes room.
func TestListenerBoundsConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{MaxConns: 1})
	first, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	testkit.Eventually(t, "the first connection", func() error {
		if n := r.counted(t, "sluice_settle_connections"); n != 1 {
			return fmt.Errorf("%v open", n)
		}
		return nil
	})
	r.say(t, "5 0@1 tokens refused\n")
	if got, n := r.take(), r.counted(t, "sluice_settle_refused_connections_total"); len(got) != 0 || n != 1 {
		t.Errorf("heard %v, %v connections refused, want nothing and 1", got, n)
	}
	first.Close()
	testkit.Eventually(t, "room for another connection", func() error {
		r.say(t, "5 0@2 tokens alice\n")
		if got := r.take(); !slices.Equal(got, []Correction{{2, "tokens", 5, "alice"}}) {
			return fmt.Errorf("heard %v", got)
		}
		return nil
	})
}

// A listener that was closed by somebody else ends Run with an error.
func TestListenerFails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(Options{Apply: func([]Correction) {}}).Run(context.Background(), l); err == nil {
		t.Error("Run() = nil, want that the listener is closed")
	}
}

// Whatever is sent, what is taken for a correction is one, and reads the same as it was written.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"188 1000@1764003600 tokens alice", "dropped 12", "unreadable 3", "1 0@1 a-b_c @api/Ann Lee", "5 0@1 tokens ~", "x", "", "5 0@1  a"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		said, err := parse(text)
		if err != nil {
			if said != (line{}) {
				t.Errorf("parse(%q) = %v, %v, want nothing with an error", text, said, err)
			}
			return
		}
		c := said.correction
		switch {
		case said.dropped > 0:
			if said != (line{dropped: said.dropped}) || !strings.HasPrefix(string(text), "dropped ") {
				t.Errorf("parse(%q) = %v", text, said)
			}
		case said.unreadable > 0:
			if said != (line{unreadable: said.unreadable}) || !strings.HasPrefix(string(text), "unreadable ") {
				t.Errorf("parse(%q) = %v", text, said)
			}
		case c.Second < 1 || c.Unit == "" || c.User == "" || strings.ContainsAny(c.User, "\x00\n\r\x7f"):
			t.Errorf("parse(%q) = %v, want an error", text, said)
		default:
			again, err := parse(fmt.Appendf(nil, "%d %d@%d %s %s", max(0, c.Change), max(0, -c.Change), c.Second, c.Unit, c.User))
			if err != nil || again != said || len(text) > maxLine+20 {
				t.Errorf("parse(%q) = %v, and again %v, %v", text, said, again, err)
			}
		}
	})
}
