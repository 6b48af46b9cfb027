package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Access says which clients may ask, and how answers are kept from others. The zero Access
// is for this machine alone: everybody on it may ask, without encryption.
type Access struct {
	TokenFile string // file of the tokens that clients need; "" if they need none
	Cert, Key string // files of TLS, in PEM form; "" is plain HTTP
}

// Scheme is the scheme of the API's addresses, http or https.
func (a Access) Scheme() string {
	if a.Cert != "" {
		return "https"
	}
	return "http"
}

// CheckAddress refuses an address that would be open to other machines: on any address but one of
// loopback it wants tokens and TLS.
func (a Access) CheckAddress(address string) error {
	// By what is written, and not by what a name leads to: that may change behind the back of a check.
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return fmt.Errorf("address %q: want host:port", address)
	// Half a pair is a mistake, and must not mean plain HTTP.
	case a.Cert == "" && a.Key != "":
		return errors.New("--admin-key is set without --admin-cert")
	case a.Cert != "" && a.Key == "":
		return errors.New("--admin-cert is set without --admin-key")
	// Whoever is on this machine may read the processes' memory, or their files, as well.
	case Loopback(host):
		return nil
	}
	// All that is missing at once: people set these flags one restart at a time otherwise.
	var missing []string
	if a.TokenFile == "" {
		missing = append(missing, "--admin-token-file")
	}
	if a.Cert == "" {
		missing = append(missing, "--admin-cert", "--admin-key")
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("address %q can be reached from other machines: set %s, or use 127.0.0.1", address, strings.Join(missing, " and "))
}

// Listen listens as Check allows, to a bounded number of connections. The gate is for Options.
func (a Access) Listen(address string, log *slog.Logger, reg prometheus.Registerer) (net.Listener, *Gate, error) {
	if err := a.CheckAddress(address); err != nil {
		return nil, nil, err
	}
	// Broken files are an error before the address is taken.
	g, err := NewGate(a, log, reg)
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("admin API: %w: choose another address with --admin", err)
	}
	// Below TLS, so that clients who never finish its handshake count, too.
	l = BoundConnections(l, ForAdmin(Descriptors()), g.closed)
	// Asked for with each handshake: a new certificate needs no restart.
	if g.certificate != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return g.certificate.current(), nil
			},
		})
	}
	return l, g, nil
}
