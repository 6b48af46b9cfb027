package riverqos

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// No statement waits for ever: the loops that make them would stand still for good.
func TestNoStatementWaitsForASilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), "postgres://postgres@"+l.Addr().String()+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(pool, "")
	s.answerTimeout = 20 * time.Millisecond
	statements := map[string]func(context.Context) error{
		"wake": func(ctx context.Context) error { _, err := s.wakeJobs(ctx, []int64{1}, time.Second); return err },
		"promote": func(ctx context.Context) error {
			_, err := s.promote(ctx, []opening{{flow{"ann", "slow"}, 1, 1}})
			return err
		},
		"announce": func(ctx context.Context) error { _, err := s.execute(ctx, "announce", []string{"slow"}); return err },
		"gated": func(ctx context.Context) error {
			_, err := readAll[flow](ctx, s, s.answerTimeout, "gated", "", "", 1)
			return err
		},
		"crowded": func(ctx context.Context) error {
			_, err := readAll[crowd](ctx, s, s.answerTimeout, "crowded")
			return err
		},
		"regate": func(ctx context.Context) error {
			_, _, err := s.regate(ctx, flow{"ann", "slow"}, 1, nil, time.Second)
			return err
		},
		"ungate": func(ctx context.Context) error { _, err := s.ungate(ctx, 1); return err },
	}
	t.Cleanup(func() { _ = l.Close(); pool.Close() }) // ends the connections that are being made
	var all sync.WaitGroup
	for name, statement := range statements {
		all.Go(func() {
			late, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := statement(late); !errors.Is(err, context.DeadlineExceeded) || late.Err() != nil {
				t.Errorf("%s() = %v when its caller's context ended (%v), want %v before", name, err, late.Err(), context.DeadlineExceeded)
			}
		})
	}
	all.Wait()
}
