package riverqos_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// hole is a way to the server on which everything can be lost, as when a firewall forgets
// its connections, or a machine stops: nobody is told.
type hole struct {
	dsn    string // through it
	server string // address
	mu     sync.Mutex
	mute   *atomic.Bool // of the connections that are made now
	conns  []net.Conn
	over   bool // the test has ended
}

func newHole(t testing.TB, dsn string) *hole {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{server: u.Host, mute: new(atomic.Bool)}
	u.Host = l.Addr().String()
	h.dsn = u.String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { h.serve(t, c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.mu.Lock()
		h.over = true
		for _, c := range h.conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		all.Wait()
	})
	return h
}

// silence loses everything, also of connections that are made from now on. What goes on
// an old one is lost for ever.
func (h *hole) silence() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mute.Store(true)
}

// heal is for connections that are made from now on.
func (h *hole) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mute = new(atomic.Bool)
}

func (h *hole) serve(t testing.TB, c net.Conn) {
	s, err := net.Dial("tcp", h.server)
	if err != nil {
		t.Errorf("Dial(%s) = %v", h.server, err)
		return
	}
	h.mu.Lock()
	// One that was accepted just before the end is none of those that were closed then: nobody would end it.
	if h.over {
		_, _ = c.Close(), s.Close()
	}
	h.conns = append(h.conns, c, s)
	mute := h.mute
	h.mu.Unlock()
	var both sync.WaitGroup
	for to, from := range map[net.Conn]net.Conn{c: s, s: c} {
		both.Go(func() {
			_, _ = io.Copy(mutable{to, mute}, from)
			if !mute.Load() {
				_ = to.Close()
			}
		})
	}
	both.Wait()
}

// mutable drops what is written while it is mute.
type mutable struct {
	io.Writer
	mute *atomic.Bool
}

func (m mutable) Write(b []byte) (int, error) {
	if m.mute.Load() {
		return len(b), nil
	}
	return m.Writer.Write(b)
}

// running calls Run until it is stopped, and waits for its end.
func running(t testing.TB, fair *riverqos.Fairness) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fair.Run(ctx) }()
	return sync.OnceFunc(func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(testkit.Patience):
			t.Errorf("Run has not returned %v after its context's end", testkit.Patience)
		}
	})
}

// behind is Fairness that has the server behind a hole, without River. The pool is of
// its database, past the hole.
func behind(t *testing.T, cfg riverqos.Config) (h *hole, fair *riverqos.Fairness, pool *pgxpool.Pool) {
	t.Helper()
	pool, dsn := fresh(t)
	h = newHole(t, dsn)
	through, err := pgxpool.New(t.Context(), h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pool, cfg.Runner.Slots, cfg.Runner.Tiers, cfg.User = through, jobs.NewMemory(nil), &tiers{}, riverqos.FromArgs("user")
	cfg.Runner.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	if fair, err = riverqos.New(cfg.AnsweredWithin(time.Second)); err != nil {
		t.Fatal(err)
	}
	return h, fair, pool
}

// gatedIn puts a job behind the gate of a database.
func gatedIn(t *testing.T, pool *pgxpool.Pool, user string) (id int64) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue, state, scheduled_at)
		VALUES ('{}', 'task', 25, jsonb_build_object('sluice:user', $1::text, 'sluice:wait', 'gated'), 'slow_default', 'scheduled', now() + interval '1 h')
		RETURNING id`, user).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func isAvailable(t *testing.T, pool *pgxpool.Pool, id int64) {
	t.Helper()
	testkit.Eventually(t, "a job is let through", func() error {
		var state string
		err := pool.QueryRow(t.Context(), "SELECT state::text FROM river_job WHERE id = $1", id).Scan(&state)
		if err == nil && state != "available" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}

func TestADatabaseThatWasSilentIsSweptAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cfg  riverqos.Config
	}{
		{"by the sweeps", riverqos.Config{}.SweptEvery(100 * time.Millisecond)},
		{"by what lets all jobs go", riverqos.Config{Runner: jobs.RunnerConfig{Disabled: true}}.SweptEvery(100 * time.Millisecond)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &rig{TB: t, reg: prometheus.NewRegistry()}
			c.cfg.Runner.Registry = r.reg
			h, fair, pool := behind(t, c.cfg)
			stop := running(t, fair)
			defer stop()
			isAvailable(t, pool, gatedIn(t, pool, "ann"))
			h.silence()
			testkit.Eventually(t, "it is noticed", func() error {
				if r.value("sluice_jobs_sweeps_total", "error")+r.value("sluice_jobs_errors_total", "ungate") == 0 {
					return fmt.Errorf("no error is counted")
				}
				return nil
			})
			h.heal()
			isAvailable(t, pool, gatedIn(t, pool, "bob"))
			h.silence()
			stop()
		})
	}
}

func TestRunEndsWhileTheDatabaseIsSilent(t *testing.T) {
	t.Parallel()
	r := &rig{TB: t, reg: prometheus.NewRegistry()}
	h, fair, _ := behind(t, riverqos.Config{Runner: jobs.RunnerConfig{Registry: r.reg}}.SweptEvery(time.Second))
	stop := running(t, fair)
	testkit.Eventually(t, "it sweeps", func() error { return r.counted("sluice_jobs_sweeps_total", "done") })
	h.silence()
	stop()
}
