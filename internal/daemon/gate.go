package daemon

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Gate lets requests through whose clients may ask. A nil Gate lets all through. Its
// methods are safe for concurrent use.
type Gate struct {
	tokens      *rotated[tokens]          // nil: clients need none
	certificate *rotated[tls.Certificate] // nil: plain HTTP
	log         *slog.Logger

	unauthorized, closedConns prometheus.Counter
	refusals, closings        LogLimit
}

// NewGate reads the files of an Access. A broken file is an error now. If one is broken
// later, what it held before stays in force.
func NewGate(a Access, log *slog.Logger, reg prometheus.Registerer) (*Gate, error) {
	factory := Metrics(reg)
	valid := factory.Gauges("sluice_admin_file_valid",
		"1 if the file of the admin API (token or certificate) was good when it was last looked at, 0 if it is broken or gone and what it held before is in use.", "file")
	expiry := factory.Gauge("sluice_admin_certificate_expiry_timestamp_seconds",
		"When the certificate of the admin API expires, in seconds since 1970; 0 without TLS.")
	g := &Gate{
		log: log,
		unauthorized: factory.Counter("sluice_admin_unauthorized_total",
			"Requests to the admin API refused because they had no token, or an unknown one."),
		closedConns: factory.Counter("sluice_admin_closed_connections_total",
			"Connections to the admin API closed because too many were open: the one that was idle for longest or, if none was, the new one."),
	}
	// Read now: a daemon that cannot let anybody in should not start.
	if a.TokenFile != "" {
		g.tokens = &rotated[tokens]{
			what: "token", paths: []string{a.TokenFile}, log: log, every: rereadEvery, valid: valid.WithLabelValues("token"),
			parse: func(files [][]byte) (*tokens, error) { return digestTokens(a.TokenFile, files[0]) },
			good:  func(*tokens) { WarnOfReaders(log, a.TokenFile) },
		}
		if err := g.tokens.firstRead(); err != nil {
			return nil, fmt.Errorf("--admin-token-file: %w", err)
		}
	}
	if a.Cert != "" {
		g.certificate = &rotated[tls.Certificate]{
			what: "certificate", paths: []string{a.Cert, a.Key}, log: log, every: rereadEvery, valid: valid.WithLabelValues("certificate"),
			parse: func(files [][]byte) (*tls.Certificate, error) {
				c, err := tls.X509KeyPair(files[0], files[1])
				if err != nil {
					return nil, fmt.Errorf("certificate %s with key %s: %w", a.Cert, a.Key, err)
				}
				return &c, nil
			},
			good: func(c *tls.Certificate) {
				WarnOfReaders(log, a.Key)
				expiry.Set(float64(c.Leaf.NotAfter.Unix()))
				if now := time.Now(); now.After(c.Leaf.NotAfter) || now.Before(c.Leaf.NotBefore) {
					log.Warn("admin API: the certificate is not valid now", "path", a.Cert, "not_before", c.Leaf.NotBefore, "not_after", c.Leaf.NotAfter)
				}
			},
		}
		if err := g.certificate.firstRead(); err != nil {
			return nil, fmt.Errorf("--admin-cert: %w", err)
		}
	}
	return g, nil
}

// requireToken wants a token for every path that tells something of users or of the daemon, or
// changes something. Health is open to all, for load balancers, and so is the page, for a
// browser that has no token yet.
func (g *Gate) requireToken(next http.Handler) http.Handler {
	if g == nil {
		return next
	}
	mux := http.NewServeMux() // which finds the same path in a request as the one of next
	// By name, and everything else is closed: a path that is added later needs a token until somebody decides
	// otherwise.
	for _, open := range []string{"/", "/-/healthy", "/-/ready"} {
		mux.Handle(open, next)
	}
	for _, closed := range []string{"/api/", "/metrics", "/-/"} {
		mux.HandleFunc(closed, func(w http.ResponseWriter, r *http.Request) {
			if g.certificate != nil {
				g.certificate.current() // for its metrics: connections may live long
			}
			// Only on loopback: CheckAddress wants tokens for any other address.
			if g.tokens == nil {
				next.ServeHTTP(w, r)
				return
			}
			token, given := bearer(r)
			// With each request, so that a token that was taken out of the file ends at once.
			name, ok := g.tokens.current().ownerOf(token)
			if !ok {
				g.refuse(w, r, given)
				return
			}
			ctx := context.WithValue(r.Context(), callerKey{}, name)
			next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, stillKey{}, func() bool {
				_, ok := g.tokens.current().ownerOf(token)
				return ok
			})))
		})
	}
	return mux
}

func bearer(r *http.Request) (token string, given bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	// RFC 9110, section 11.1: the name of a scheme is read in any case.
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.Trim(token, " "), true
}

// refuse answers 401 at once, without a delay, because a token is too long to be guessed.
// It ends the connection, so that clients without a token keep none.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, given bool) {
	g.unauthorized.Inc()
	// Not the token: one that is nearly right would stand in the log.
	if skipped, ok := g.refusals.Allow(); ok {
		g.log.Warn("admin API: refused for want of a good token", "remote", r.RemoteAddr, "requests", skipped+1)
	}
	// RFC 6750, section 3: what is wrong is said of a token that was sent, and nothing where none was.
	challenge, why := `Bearer realm="sluice"`, "a token is wanted: send it in the header Authorization: Bearer TOKEN"
	if given {
		challenge, why = challenge+`, error="invalid_token"`, "the token is not known here"
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.Header().Set("Connection", "close")
	WriteError(w, r, http.StatusUnauthorized, why)
}

func (g *Gate) closed(c net.Conn) {
	g.closedConns.Inc()
	if skipped, ok := g.closings.Allow(); ok {
		g.log.Warn("admin API: too many connections are open, the longest idle ones are closed", "remote", c.RemoteAddr(), "connections", skipped+1)
	}
}

// provenByTLS reports whether a request comes by TLS and needs a token. Then a page of another
// site cannot ask by making its own name mean this machine: no certificate has that name,
// and the page has no token.
func (g *Gate) provenByTLS(r *http.Request) bool {
	// All three: without TLS the other site could be answered in place of this server.
	return g != nil && g.tokens != nil && r.TLS != nil
}

type callerKey struct{}

type stillKey struct{}

// TokenIsGood reports whether the token of a request is still good. Streams ask while they go
// on, because they may outlive their token.
func TokenIsGood(ctx context.Context) bool {
	still, ok := ctx.Value(stillKey{}).(func() bool)
	return !ok || still()
}

// Caller is the name of the client: that of the token, or anonymous if none is wanted.
func Caller(r *http.Request) string {
	if name, ok := r.Context().Value(callerKey{}).(string); ok {
		return name
	}
	return Anonymous
}

// HasKeyOf reports whether a certificate is for the key that this side has.
func (g *Gate) HasKeyOf(other *x509.Certificate) bool {
	if g == nil || g.certificate == nil {
		return false
	}
	key, ok := g.certificate.current().Leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(other.PublicKey)
}
