package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/sluice-qos/sluice/internal/daemon"

	"github.com/sluice-qos/sluice/internal/terminal"
)

// baseURL returns the address of an admin API, host:port, http:// or https:// before
// it, as a URL without a path.
func baseURL(address string, flags Flags) (string, error) {
	scheme, host, ok := strings.Cut(strings.TrimSuffix(address, "/"), "://")
	if !ok {
		scheme, host = "http", address
	}
	u, err := url.Parse(scheme + "://" + host)
	if err == nil {
		_, _, err = net.SplitHostPort(host)
	}
	if err != nil || u.Host != host || scheme != "http" && scheme != "https" {
		return "", fmt.Errorf("address %q: want host:port or https://host:port: %s", address, flags.Hint())
	}
	return u.String(), nil
}

func (a Access) transport(flags Flags) (*http.Transport, error) {
	t := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if a.CA == "" {
		return t, nil
	}
	pem, err := os.ReadFile(a.CA)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flags.CA, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no certificate in PEM form", flags.CA, a.CA)
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}

// request makes a request with the token, which is read anew: a command may run for
// long. Nobody on the way gets to see a token.
func (a *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("address %q: want host:port or https://host:port: %s", a.address, a.flags.Hint())
	}
	if a.access.TokenFile == "" {
		return req, nil
	}
	if req.URL.Scheme != "https" && !daemon.Loopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("a token is not sent to %s unencrypted: use https://%s with %s", a.address, req.URL.Host, a.flags.Address)
	}
	token, err := daemon.ReadToken(a.access.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.flags.TokenFile, err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req, nil
}

// unauthorized says what to do about an answer 401.
func (a *Client) unauthorized() error {
	if a.access.TokenFile == "" {
		return fmt.Errorf("%s wants a token: give one with %s", a.address, a.flags.TokenFile)
	}
	return fmt.Errorf("%s does not know the token of %s: give another one with %s", a.address, a.access.TokenFile, a.flags.TokenFile)
}

// wrongScheme says what to do if one side speaks TLS and the other does not.
func (a *Client) wrongScheme(speaks string) error {
	host := a.base[strings.Index(a.base, "://")+3:]
	return fmt.Errorf("%s speaks %s: use %s://%s with %s", host, strings.ToUpper(speaks), speaks, host, a.flags.Address)
}

// distrust says what to do about a certificate; it is nil if that is not what is
// wrong.
func (a *Client) distrust(err error) error {
	var bad *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%s has a certificate that nobody known signed: name its authority's with %s", a.address, a.flags.CA)
	case errors.As(err, &bad):
		return fmt.Errorf("%s: %s", a.address, terminal.Printable(bad.Err.Error()))
	}
	return nil
}
