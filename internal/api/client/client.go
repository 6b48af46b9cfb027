// Package client asks the admin API of a running polygen, or of sluice up, and workers of
// background jobs, for the commands that people type. Its errors say what to do.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
)

const (
	// Hint says what to do without a polygen that answers.
	Hint = "name the address of a polygen's admin API with --admin"

	askTimeout = 10 * time.Second // reading a file with a million users takes seconds
	maxAnswer  = 8 << 20          // bytes
)

// Access is how to be let in.
type Access struct {
	TokenFile string // file with the token; "" sends none
	CA        string // file with the certificates to trust instead of the system's; "" trusts those
}

// Flags are what messages call the flags by which a client was given its address and access.
type Flags struct{ Address, TokenFile, CA string }

// The flags of commands.
var (
	AdminFlags  = Flags{"--admin", "--admin-token-file", "--admin-ca"}
	WorkerFlags = Flags{"--worker", "--admin-token-file", "--admin-ca"}
)

// Hint says what to do without anybody who answers.
func (f Flags) Hint() string {
	if f.Address == AdminFlags.Address {
		return Hint
	}
	return "name the address of a worker's riverqos handler with " + f.Address
}

// Client asks a running polygen, or sluice up. Its errors are for people, and may be
// printed on a terminal whatever the other side said. It is safe for concurrent use.
type Client struct {
	address string // of the admin API, as it was given
	base    string // the same as a URL
	access  Access
	flags   Flags
	client  http.Client
}

// NewClient returns a client for the admin API at an address: host:port, or with http:// or https://
// before it. It connects with the first question.
func NewClient(address string, access Access) (*Client, error) {
	return newClient(address, access, AdminFlags)
}

func newClient(address string, access Access, flags Flags) (*Client, error) {
	base, err := baseURL(address, flags)
	if err != nil {
		return nil, err
	}
	transport, err := access.transport(flags)
	if err != nil {
		return nil, err
	}
	return &Client{address, base, access, flags, http.Client{
		Transport:     transport,
		Timeout:       askTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // no API has any
	}}, nil
}

// Close closes idle connections.
func (a *Client) Close() { a.client.CloseIdleConnections() }

// GetJSON reads an answer, one of package api that begins with an api.From. When ctx
// has ended the error is that of ctx.
func (a *Client) GetJSON(ctx context.Context, path string, answer any) error {
	req, err := a.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return a.doRequest(ctx, req, answer)
}

// SendJSON is get for what changes something, which the body says in JSON.
func (a *Client) SendJSON(ctx context.Context, method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := a.request(ctx, method, path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return a.doRequest(ctx, req, answer)
}

func (a *Client) doRequest(ctx context.Context, req *http.Request, answer any) error {
	res, body, err := a.fetch(req)
	if err != nil {
		return a.failed(ctx, err)
	}
	return a.readAnswer(res, body, answer)
}

// readAnswer decodes an answer, or says why it is none.
func (a *Client) readAnswer(res *http.Response, body []byte, answer any) error {
	var told struct {
		api.From
		Error string `json:"error"`
	}
	err := json.Unmarshal(body, &told)
	ok := res.StatusCode == http.StatusOK || res.StatusCode == http.StatusAccepted
	switch {
	case res.StatusCode == http.StatusUnauthorized:
		return a.unauthorized()
	case res.StatusCode == http.StatusBadRequest && strings.HasPrefix(string(body), "Client sent an HTTP request to an HTTPS server"):
		return a.wrongScheme("https")
	case !ok && err == nil && told.Error != "":
		return fmt.Errorf("ask %s: %s", a.address, terminal.QuoteName(told.Error))
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("what listens at %s is no polygen, or an older one without this API (it answers %s): %s", a.address, terminal.QuoteName(res.Status), Hint)
	case !ok || err != nil || told.Polygen == "" || json.Unmarshal(body, answer) != nil:
		return fmt.Errorf("what listens at %s is no polygen (it answers %s): %s", a.address, terminal.QuoteName(res.Status), Hint)
	}
	return nil
}

// fetch returns an answer with its body, as much of it as an answer may have.
func (a *Client) fetch(req *http.Request) (*http.Response, []byte, error) {
	res, err := a.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return res, body, err
}

func (a *Client) failed(ctx context.Context, err error) error {
	var timeout net.Error
	var request *url.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, http.ErrSchemeMismatch):
		return a.wrongScheme("http")
	case a.distrust(err) != nil:
		return a.distrust(err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s: start polygen or \"sluice up\", or %s", a.address, Hint)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer within %v: %s", a.address, askTimeout, Hint)
	case errors.As(err, &request):
		err = request.Err // without the path, which may be long
	}
	return fmt.Errorf("ask %s: %s", a.address, terminal.Printable(err.Error()))
}
