package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
)

// forwardedHeader marks a request that a standby has forwarded, with the address of the client. Such a request is not forwarded again.
const forwardedHeader = "Sluice-Forwarded-For"

const (
	leaderDial   = time.Second      // to connect to the polygen that leads
	leaderAnswer = 20 * time.Second // for its answer to begin: less than the server's time for an answer
)

// ForwardOptions are those of a Forwarder.
type ForwardOptions struct {
	Leader func() (l api.Leader, other bool) // the polygen that leads, unless this one does
	CA     string                            // file with the certificates to trust instead of the system's; "" trusts those
	Gate   *daemon.Gate                      // whose certificate the leader may have, too; nil has none
	Logger *slog.Logger
}

// A Forwarder has the polygen that leads answer requests for the API and the page. It is safe for concurrent use.
type Forwarder struct {
	ForwardOptions
	roots    *x509.CertPool // nil: the system's
	failures daemon.LogLimit

	mu        sync.Mutex
	address   string // that transport connects to
	transport *http.Transport
}

// NewForwarder reads the file of certificates.
func NewForwarder(o ForwardOptions) (*Forwarder, error) {
	f := &Forwarder{ForwardOptions: o}
	if o.CA == "" {
		return f, nil
	}
	data, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, fmt.Errorf("--leader-ca: %w", err)
	}
	f.roots = x509.NewCertPool()
	if !f.roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--leader-ca: %s has no certificate", o.CA)
	}
	return f, nil
}

// CheckLeaderAddress says what is wrong with the address of a polygen, or nil.
func CheckLeaderAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "":
		return fmt.Errorf("address %.100q: want http://host:port or https://host:port", address)
	case u.Scheme == "http" && !daemon.Loopback(u.Hostname()):
		return fmt.Errorf("address %.100q: want https, because clients' tokens are sent there", address)
	}
	return nil
}

// Wrap forwards what the polygen that leads is to answer.
func (f *Forwarder) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leader, other := f.Leader()
		// What is about this process is answered here.
		if !other || r.URL.Path == "/metrics" || strings.HasPrefix(r.URL.Path, "/-/") {
			next.ServeHTTP(w, r)
			return
		}
		// The lead has just changed hands, or an address leads to the wrong polygen.
		if r.Header.Get(forwardedHeader) != "" {
			f.refuse(w, r, fmt.Errorf("polygen %s leads, and the request was forwarded to another one: ask again. If that lasts, the address %s leads to the wrong polygen: %s",
				leader.Name, leader.Address, adviseAddress))
			return
		}
		if err := CheckLeaderAddress(leader.Address); err != nil {
			f.refuse(w, r, fmt.Errorf("polygen %s leads: %w: %s", leader.Name, err, adviseAddress))
			return
		}
		f.forward(w, r, leader)
	})
}

const adviseAddress = "set --advertise of each polygen to the address at which the others reach its --admin"

func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request, leader api.Leader) {
	u, err := url.Parse(leader.Address)
	if err != nil {
		f.refuse(w, r, err)
		return
	}
	if r.URL.Path == "/api/v1/live" || r.URL.Path == "/api/v1/policies" {
		// A stream goes on until the server ends, which waits for other answers alone.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-daemon.Closing(ctx):
				cancel()
			case <-ctx.Done():
			}
		}()
		r = r.WithContext(ctx)
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(u)
			// The leader compares it with the origin of a page.
			p.Out.Host = p.In.Host
			host, _, _ := net.SplitHostPort(p.In.RemoteAddr)
			p.Out.Header.Set(forwardedHeader, host)
		},
		Transport: f.transportTo(leader.Address, u.Hostname()),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			// The client has gone.
			if r.Context().Err() != nil {
				return
			}
			f.refuse(w, r, explain(leader, err))
		},
		ErrorLog: slog.NewLogLogger(f.Logger.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(deadlineWriter{w, http.NewResponseController(w)}, r)
}

// explain says why the polygen that leads cannot be reached, and what to do.
func explain(leader api.Leader, err error) error {
	advice := adviseAddress
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) || errors.As(err, new(x509.UnknownAuthorityError)) || errors.As(err, new(x509.HostnameError)) {
		advice = "set --leader-ca of each polygen to the CA of the others' --admin-cert, or --advertise to a name in it"
	}
	var dial *net.OpError
	if errors.As(err, &dial) {
		err = dial.Err
	}
	return fmt.Errorf("polygen %s leads, and cannot be reached at %s from here (%w): %s", leader.Name, leader.Address, err, advice)
}

func (f *Forwarder) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if skipped, ok := f.failures.Allow(); ok {
		f.Logger.Warn("request not forwarded", slog.Any("error", err), slog.Int("requests", skipped+1))
	}
	daemon.WriteError(w, r, http.StatusServiceUnavailable, err.Error())
}

func (f *Forwarder) transportTo(address, host string) *http.Transport {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.address == address {
		return f.transport
	}
	if f.transport != nil {
		f.transport.CloseIdleConnections()
	}
	f.address = address
	f.transport = &http.Transport{
		DialContext:           (&net.Dialer{Timeout: leaderDial}).DialContext,
		TLSClientConfig:       f.tlsTo(host),
		TLSHandshakeTimeout:   2 * time.Second,
		ResponseHeaderTimeout: leaderAnswer,
		IdleConnTimeout:       30 * time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // as the client asks for it
	}
	return f.transport
}

// tlsTo trusts a certificate for a host by an authority, or one with the key that this polygen itself has: polygens mostly share
// one, which need not have their addresses.
func (f *Forwarder) tlsTo(host string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         host,
		InsecureSkipVerify: true, // VerifyConnection verifies
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			if f.Gate.HasKeyOf(leaf) {
				return nil
			}
			o := x509.VerifyOptions{Roots: f.roots, DNSName: host, Intermediates: x509.NewCertPool()}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err := leaf.Verify(o)
			return err
		},
	}
}

// A deadlineWriter gives each write of a stream as long as a stream of this process has: the server's own bound is for
// answers that end.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w deadlineWriter) Write(data []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(usualPace.write)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return 0, err
	}
	return w.ResponseWriter.Write(data)
}
