package mixed

import (
	"io"
	"net/http"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/origin"
)

// Origin is a server behind the one that Run talks to: the demo origin, which besides answers
//
//	/dead      with 503
//	/hangup    with nothing: it closes the connection
//	/cut       with half of the body that it announced
//	/hang      after two seconds, or never when the request ends before
//	/upgrade   with 101, and what the client sends from then on
func Origin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", origin.New())
	mux.HandleFunc("/dead", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/hangup", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "2000")
		_, _ = w.Write(make([]byte, 1000))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, q *http.Request) { daemon.Sleep(q.Context(), 2*time.Second) })
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		_, _ = io.Copy(conn, buf)
	})
	return mux
}
