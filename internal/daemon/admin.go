package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// AdminOptions are those of a daemon's admin server.
type AdminOptions struct {
	Gatherer prometheus.Gatherer
	Ready    func() error                         // why the daemon is not ready, or nil; everybody may read PublicText of it
	Lost     func() string                        // the shards of Redis that it goes on without, "" for none; nil if it never does
	Reload   func() error                         // nil if there is nothing to reload
	Routes   func(*http.ServeMux)                 // adds more paths; nil for none
	Forward  func(next http.Handler) http.Handler // passes requests to another process; nil answers everything here
	Gate     *Gate                                // nil lets everybody through
}

// AdminHandler serves what operators need of a daemon: metrics, health and reload.
//
//	GET  /metrics     Prometheus' text format
//	GET  /-/healthy   200 while the process works
//	GET  /-/ready     200 when it fully serves, otherwise 503 and the reason
//	POST /-/reload    reads the limit file again; 400 and its errors if it is broken
func AdminHandler(o AdminOptions) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // clients who may ask without a token keep no connection
		fmt.Fprintln(w, "healthy")
	})
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		o.answerReady(w, strings.Contains(r.Header.Get("Accept"), "application/json"))
	})
	if o.Reload != nil {
		mux.HandleFunc("POST /-/reload", func(w http.ResponseWriter, r *http.Request) {
			// A form of another site needs no permission to send a POST.
			if !FromOwnOrigin(r) {
				http.Error(w, ErrForeignOrigin.Error(), http.StatusForbidden)
				return
			}
			if err := o.Reload(); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			fmt.Fprintln(w, "reloaded")
		})
	}
	if o.Routes != nil {
		o.Routes(mux)
	}
	var h http.Handler = mux
	if o.Forward != nil {
		h = o.Forward(h)
	}
	// Before the token is looked at: a page of another site must not even find out whether one is wanted.
	return refuseForeignPages(o.Gate, o.Gate.requireToken(h))
}

type readiness struct {
	Ready     bool   `json:"ready"`
	Reason    string `json:"reason,omitempty"`     // why it is not
	RedisLost string `json:"redis_lost,omitempty"` // "3 7 registry", or "all": shards
}

// answerReady says why the daemon is not ready, or that it is, and what it goes on without.
func (o *AdminOptions) answerReady(w http.ResponseWriter, asJSON bool) {
	said, status, text := readiness{Ready: true}, http.StatusOK, "ready"
	if err := o.Ready(); err != nil {
		// Without the causes, for everybody may ask this. They are in the log.
		said, status = readiness{Reason: PublicText(err)}, http.StatusServiceUnavailable
		text = said.Reason
	}
	if o.Lost != nil {
		// A lost shard does not make it unready: whoever took its HAProxy away would lose the limits that it still holds.
		if said.RedisLost = o.Lost(); said.RedisLost != "" {
			text += "\nredis lost: shards " + said.RedisLost
		}
	}
	if asJSON {
		WriteJSON(w, status, said)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// PublicText is the text of an error of Ready without wrapped causes, which everybody may read.
// The causes may have addresses; they are in the log.
func PublicText(err error) string {
	text := err.Error()
	var causes []error
	// The text of a wrapped error stands in that of the error around it, which is cut there.
	switch wraps := err.(type) { //nolint:errorlint // this error, not those within
	case interface{ Unwrap() error }:
		causes = []error{wraps.Unwrap()}
	case interface{ Unwrap() []error }:
		causes = wraps.Unwrap()
	}
	if len(causes) == 0 {
		return text
	}
	for _, cause := range causes {
		if cause != nil {
			text, _, _ = strings.Cut(text, cause.Error())
		}
	}
	return cmp.Or(strings.TrimRight(text, ": "), "not ready") + " (the log says why)"
}

// refuseForeignPages refuses requests that pages of other sites make in the browser of somebody who may
// ask: those that the browser marks as such, and those of a site that made its own name
// mean this machine. A link from there may be followed, because the reader sees where it
// leads. A frame is refused, because the reader may not see it.
func refuseForeignPages(g *Gate, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// No page can set this field: it is the browser that says where a request comes from. Older ones do
		// not, and programs never.
		site := r.Header.Get("Sec-Fetch-Site")
		// A GET changes nothing here, and its answer the other site cannot read.
		follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		if (site == "cross-site" || site == "same-site") && !follows {
			http.Error(w, "a page of another site may not ask", http.StatusForbidden)
			return
		}
		// A site can have its own name lead to 127.0.0.1, and is then of the same origin for the browser. Only
		// the name in the Host field gives it away.
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.IsLoopback() && !cannotBeRebound(r.Host) && !g.provenByTLS(r) {
			http.Error(w, "this address is for this machine alone: ask for localhost or an address, not for a name", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cannotBeRebound reports whether nobody else can make a Host field mean this machine.
func cannotBeRebound(host string) bool {
	// The port is left out where it is that of the scheme.
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	// Names below localhost lead to this machine in every browser (RFC 6761), and of an address nobody has the
	// say.
	host = strings.ToLower(strings.Trim(host, "[]"))
	return host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil
}

// ServeAdmin answers on the listener until ctx ends. Streams end then; other answers that are
// under way have a second. A client who takes more than 30 s for an answer that is not a
// stream is dropped.
func ServeAdmin(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	return serveWithin(ctx, l, h, log, 30*time.Second, time.Second)
}

// serveWithin is ServeAdmin with these times for an answer, and for answers under way at the end.
func serveWithin(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger, answer, end time.Duration) error {
	// Each bound is far above what an answer takes, and keeps a client who does nothing from holding a
	// connection.
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		WriteTimeout:      answer, // streams set times of their own
		MaxHeaderBytes:    16 << 10,
		BaseContext: func(net.Listener) context.Context {
			return WithClosing(context.WithoutCancel(ctx), ctx.Done())
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	// So that a client without a request under way is the first to make room for another.
	TrackRequests(server)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), end)
		defer cancel()
		// Streams have ended by then: they are told that the server ends.
		if server.Shutdown(last) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	<-ended // server.Serve does not wait for answers under way
	return nil
}

// closingKey is of the contexts of requests: a channel that is closed when the server
// begins to end.
type closingKey struct{}

// WithClosing returns the context of a server that begins to end when the channel is closed.
func WithClosing(ctx context.Context, closing <-chan struct{}) context.Context {
	return context.WithValue(ctx, closingKey{}, closing)
}

// Closing is the channel of WithClosing, nil if there is none.
func Closing(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(closingKey{}).(<-chan struct{})
	return c
}

// ErrForeignOrigin refuses a request that FromOwnOrigin does not allow.
var ErrForeignOrigin = errors.New("a page of another origin may not do this")

// FromOwnOrigin reports whether a request comes from a page of this address, or from no page.
func FromOwnOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	// An empty field is not the same as none: a page whose origin the browser hides sends "null" or nothing in
	// it.
	if origin == "" {
		return len(r.Header["Origin"]) == 0
	}
	// Host and port alone: behind a proxy that ends TLS the schemes differ.
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

type apiError struct {
	Error string `json:"error"`
}

// WriteError answers with a text: as JSON if the path is one of the API.
func WriteError(w http.ResponseWriter, r *http.Request, status int, text string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		WriteJSON(w, status, apiError{text})
		return
	}
	http.Error(w, text, status)
}

// WriteJSON answers with a value.
func WriteJSON(w http.ResponseWriter, status int, answer any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	// What users do is in it: no proxy and no browser is to keep that.
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // fails only if the client has gone
}
