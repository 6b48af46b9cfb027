package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

type server struct {
	workers chan struct{}
	waiting atomic.Int64
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.waiting.Add(1) > queue {
		s.waiting.Add(-1)
		http.Error(w, "too many requests wait", http.StatusServiceUnavailable)
		return
	}
	// Who waits for longest is next.
	select {
	case s.workers <- struct{}{}:
		s.waiting.Add(-1)
	case <-r.Context().Done(): // the client has gone
		s.waiting.Add(-1)
		return
	}
	time.Sleep(work)
	<-s.workers
	fmt.Fprintln(w, "done")
}

// serve answers until ctx ends, and cuts off what is left then.
func serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: &server{workers: make(chan struct{}, workers)}, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	if err := h.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}
