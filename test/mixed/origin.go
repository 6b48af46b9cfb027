package mixed

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
)

// Origin is a server behind the one that Run talks to. It answers
//
//	/bytes/N   with N bytes
//	/sleep/MS  after so many milliseconds
//	/dead      with 503
//	/hangup    with nothing: it closes the connection
//	/cut       with half of the body that it announced
//	/hang      after two seconds, or never when the request ends before
//	/upgrade   with 101, and what the client sends from then on
//	else       with 200 once the body has been read
func Origin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/bytes/{n}", func(w http.ResponseWriter, q *http.Request) {
		n, err := number(q, "n")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(n))
		_, _ = io.CopyN(w, zeros{}, n)
	})
	mux.HandleFunc("/sleep/{ms}", func(w http.ResponseWriter, q *http.Request) {
		ms, err := number(q, "ms")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		clock.Sleep(q.Context(), time.Duration(ms)*time.Millisecond)
	})
	mux.HandleFunc("/dead", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/hangup", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "2000")
		_, _ = io.CopyN(w, zeros{}, 1000)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, q *http.Request) { clock.Sleep(q.Context(), 2*time.Second) })
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
	mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	return mux
}

func number(q *http.Request, name string) (n int64, err error) {
	_, err = fmt.Sscan(q.PathValue(name), &n)
	return n, err
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
