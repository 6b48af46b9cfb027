package main

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
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
)

const (
	askTimeout = 10 * time.Second // reading a file with a million users takes seconds
	maxAnswer  = 8 << 20          // bytes
	askAtOnce  = 4                // questions
	adminHint  = "name the address of a polygen's admin API with --admin"
)

// client asks a running polygen, or sluice up. Its errors are for people, and may be
// printed on a terminal whatever the other side said.
type client struct {
	address string // of the admin API, as it was given
	base    string // the same as a URL
	access  Access
	client  http.Client
}

func newAPI(address string, access Access) (*client, error) {
	base, err := baseURL(address)
	if err != nil {
		return nil, err
	}
	transport, err := access.transport()
	if err != nil {
		return nil, err
	}
	return &client{address, base, access, http.Client{
		Transport:     transport,
		Timeout:       askTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // no API has any
	}}, nil
}

func (a *client) close() { a.client.CloseIdleConnections() }

// get reads an answer, one of package view that begins with a api.From. When ctx
// has ended the error is that of ctx.
func (a *client) get(ctx context.Context, path string, answer any) error {
	req, err := a.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return a.do(ctx, req, answer)
}

// send is get for what changes something, which the body says in JSON.
func (a *client) send(ctx context.Context, method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := a.request(ctx, method, path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return a.do(ctx, req, answer)
}

func (a *client) do(ctx context.Context, req *http.Request, answer any) error {
	res, err := a.client.Do(req)
	if err != nil {
		return a.failed(ctx, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return a.failed(ctx, err)
	}
	var told struct {
		api.From
		Error string `json:"error"`
	}
	err = json.Unmarshal(body, &told)
	switch {
	case res.StatusCode == http.StatusUnauthorized:
		return a.unauthorized()
	case res.StatusCode == http.StatusBadRequest && strings.HasPrefix(string(body), "Client sent an HTTP request to an HTTPS server"):
		return a.wrongScheme("https")
	case res.StatusCode != http.StatusOK && err == nil && told.Error != "":
		return fmt.Errorf("ask %s: %s", a.address, terminal.Name(told.Error))
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("what listens at %s is no polygen, or an older one without this API (it answers %s): %s", a.address, terminal.Name(res.Status), adminHint)
	case res.StatusCode != http.StatusOK || err != nil || told.Polygen == "" || json.Unmarshal(body, answer) != nil:
		return fmt.Errorf("what listens at %s is no polygen (it answers %s): %s", a.address, terminal.Name(res.Status), adminHint)
	}
	return nil
}

// failed says why there is no answer.
func (a *client) failed(ctx context.Context, err error) error {
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
		return fmt.Errorf("nothing listens at %s: start polygen or \"sluice up\", or %s", a.address, adminHint)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer within %v: %s", a.address, askTimeout, adminHint)
	case errors.As(err, &request):
		err = request.Err // without the path, which may be long
	}
	return fmt.Errorf("ask %s: %s", a.address, terminal.Printable(err.Error()))
}

// untilSignal ends with Ctrl-C, a service manager's signal, or the terminal's end.
func untilSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// pause waits, and says whether it may go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// outage tells, once each, that polygen went away and that it is back. Its zero
// value is an outage that has not begun.
type outage struct {
	since time.Time // of the last answer; zero: it answers
}

func (o *outage) began(w io.Writer, command string, last time.Time, err error) {
	if o.since.IsZero() {
		o.since = last
		fmt.Fprintf(w, "%s: no answer since %s: %v\n", command, last.UTC().Format(time.RFC3339), err)
	}
}

func (o *outage) ended(w io.Writer, command string, now time.Time) {
	if !o.since.IsZero() {
		fmt.Fprintf(w, "%s: there are answers again, after %v\n", command, now.Sub(o.since).Round(time.Second))
		o.since = time.Time{}
	}
}
