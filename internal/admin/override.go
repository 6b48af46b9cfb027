package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-qos/sluice/internal/api"
)

// Overrider sets and removes overrides and unblocks users. Its errors are those of package api, or about the
// request.
type Overrider interface {
	Overrides() api.Overrides
	Override(context.Context, api.OverrideRequest) (api.Override, error)
	RemoveOverride(context.Context, api.OverrideRequest) (api.Override, error)
	Unblock(context.Context, api.OverrideRequest) (api.Unblocked, error)
	Refuse(api.OverrideRequest, error) // notes a request that was refused before one of the methods above was called
}

const (
	maxBody    = 64 << 10 // bytes
	maxReason  = 200      // characters
	minFor     = time.Second
	maxFor     = 7 * 24 * time.Hour
	defaultFor = time.Hour
)

// serveOverrides adds the paths that change something.
func serveOverrides(mux *http.ServeMux, hand Overrider) {
	mux.HandleFunc("GET /api/v1/overrides", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, hand.Overrides()) })
	act := func(w http.ResponseWriter, r *http.Request, action api.Action, user string, do func(context.Context, api.OverrideRequest) (any, error)) {
		// Even what is refused is noted, with who asked for it: the audit log is to show attempts.
		a, status, err := readRequest(w, r, action, user)
		if err != nil {
			hand.Refuse(a, err)
			writeJSON(w, status, apiError{err.Error()})
			return
		}
		answer, err := do(r.Context(), a)
		if err != nil {
			writeJSON(w, statusOf(err), apiError{err.Error()})
			return
		}
		status = http.StatusOK
		if o, ok := answer.(api.Override); ok && o.Unsafe != "" {
			status = http.StatusAccepted
		}
		writeJSON(w, status, answer)
	}
	// One function for all methods, because a pattern with a method would not match a user called "/".
	overrides := func(w http.ResponseWriter, r *http.Request) {
		// As it was sent, for a user may have a slash in the name.
		user := strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/overrides/")
		switch r.Method {
		case http.MethodPut:
			act(w, r, api.SetOverride, user, func(ctx context.Context, a api.OverrideRequest) (any, error) { return hand.Override(ctx, a) })
		case http.MethodDelete:
			act(w, r, api.RemoveOverride, user, func(ctx context.Context, a api.OverrideRequest) (any, error) { return hand.RemoveOverride(ctx, a) })
		default:
			notAllowed(w, r, "PUT, DELETE")
		}
	}
	mux.HandleFunc("/api/v1/overrides/", overrides)
	mux.HandleFunc("/api/v1/overrides", func(w http.ResponseWriter, r *http.Request) { notAllowed(w, r, "GET, HEAD") })
	mux.HandleFunc("POST /api/v1/users/", func(w http.ResponseWriter, r *http.Request) {
		// A user may be called "unblock", and then the path ends with it twice.
		user, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/users/"), "/unblock")
		if !ok {
			notAllowed(w, r, "GET, HEAD")
			return
		}
		act(w, r, api.UnblockUser, user, func(ctx context.Context, a api.OverrideRequest) (any, error) { return hand.Unblock(ctx, a) })
	})
}

func notAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	first, _, _ := strings.Cut(allow, ", HEAD")
	writeJSON(w, http.StatusMethodNotAllowed, apiError{"method " + r.Method + " is not allowed: use " + strings.ReplaceAll(first, ", ", " or ")})
}

// statusOf is the status that answers a request with this result.
func statusOf(err error) int {
	switch {
	case errors.Is(err, api.ErrNoOverride):
		return http.StatusNotFound
	case errors.Is(err, api.ErrFull):
		return http.StatusConflict
	case errors.Is(err, api.ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// readRequest reads a request, as far as it can, and returns the status of an error.
func readRequest(w http.ResponseWriter, r *http.Request, action api.Action, user string) (a api.OverrideRequest, status int, err error) {
	a = api.OverrideRequest{Action: action, User: user, Endpoint: r.URL.Query().Get("endpoint"), By: operatorOf(r)}
	// First, so that the note of a refusal says whom it was about. What it does not allow is an error further
	// down.
	who, err := parseUser(user, r.URL.Query())
	if err == nil {
		a.User, a.IsKey = who.user, who.isKey
	}
	if !fromOwnOrigin(r) {
		return a, http.StatusForbidden, errForeignOrigin
	}
	if err != nil {
		return a, http.StatusBadRequest, err
	}
	// Read as a whole, for it is small and nothing of it may be done before all of it is known to be right.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return a, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", maxBody)
	case err != nil:
		return a, http.StatusBadRequest, errors.New("the body ends early")
	}
	// A DELETE needs no body, and no page sends one elsewhere without asking first.
	if action == api.RemoveOverride && len(body) == 0 {
		return a, 0, nil
	}
	// A form of another site can send text, and nothing of this type without being asked for permission.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return a, http.StatusUnsupportedMediaType, errors.New("the body must be JSON: send Content-Type: application/json")
	}
	if err := parseBody(body, &a); err != nil {
		return a, http.StatusBadRequest, err
	}
	return a, 0, nil
}

// operatorOf names the client, and the address that the request came from.
func operatorOf(r *http.Request) string {
	// Of the connection: fields such as X-Forwarded-For anybody can write.
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return caller(r) + " from " + host
}

var errForeignOrigin = errors.New("a page of another origin may not do this")

// fromOwnOrigin reports whether a request comes from a page of this address, or from no page.
func fromOwnOrigin(r *http.Request) bool {
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

// fieldsOf are the fields of a body.
var fieldsOf = map[api.Action][]string{
	api.SetOverride:    {"for", "reason", "limits"},
	api.RemoveOverride: {"reason"},
	api.UnblockUser:    {"reason"},
}

// parseBody reads a body.
func parseBody(body []byte, a *api.OverrideRequest) error {
	values, err := parseFields(body, fieldsOf[a.Action])
	if err != nil {
		return err
	}
	if err := textField(values, "reason", &a.Reason); err != nil {
		return err
	}
	// Never without an end: who forgets an override would have it forever.
	a.For = defaultFor
	if value, ok := values["for"]; ok {
		var text string
		if err := textField(values, "for", &text); err != nil {
			return err
		}
		// What is to hold for longer than a week belongs into the limit file.
		if a.For, err = time.ParseDuration(text); err != nil || a.For < minFor || a.For > maxFor {
			return fmt.Errorf("for must be a time from 1s to 168h, such as 15m, got %.60s", value)
		}
	}
	// What they say is judged by polygen, against the limit file that is in force.
	if a.Limits = values["limits"]; a.Limits == nil && a.Action == api.SetOverride {
		return errors.New(`limits is missing; write them as in the limit file, such as {"concurrent": 50}`)
	}
	n := utf8.RuneCountInString(a.Reason)
	needed := a.Action != api.RemoveOverride || n > 0
	// The reason is shown in the log and on the page, where control characters could forge a line.
	if needed && (strings.TrimSpace(a.Reason) == "" || n > maxReason || strings.ContainsFunc(a.Reason, func(r rune) bool { return !unicode.IsPrint(r) })) {
		return fmt.Errorf("reason must be 1 to %d printable characters, got %s", maxReason, strconv.Itoa(n))
	}
	return nil
}

// parseFields reads the fields of a JSON object. Fields are each there once, and none is unknown:
// json.Unmarshal would take the last of two, and an operator could not tell which limits hold.
func parseFields(body []byte, valid []string) (map[string]json.RawMessage, error) {
	// encoding/json would put U+FFFD in place of other bytes, without a word.
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not UTF-8 text")
	}
	// Token by token, because a map does not tell that a field was there twice.
	d := json.NewDecoder(bytes.NewReader(body))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return nil, fmt.Errorf("the body must be a JSON object with %s", strings.Join(valid, ", "))
	}
	values := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		field, _ := token.(string)
		// An override with a misspelled field would hold, and not do what it says.
		if !slices.Contains(valid, field) {
			return nil, fmt.Errorf("unknown field %.60q (valid: %s)", field, strings.Join(valid, ", "))
		}
		if _, twice := values[field]; twice {
			return nil, fmt.Errorf("%s is there twice", field)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, notJSON(err)
		}
		values[field] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	// As twice the same field: nobody could tell which of the two objects is meant.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return values, nil
}

func notJSON(err error) error { return fmt.Errorf("the body is not JSON: %w", err) }

// textField reads a text; "" if the field is missing.
func textField(values map[string]json.RawMessage, field string, to *string) error {
	value, ok := values[field]
	// null would pass for an empty text.
	if ok && (len(value) == 0 || value[0] != '"' || json.Unmarshal(value, to) != nil) {
		return fmt.Errorf("%s must be text, got %.60s", field, value)
	}
	return nil
}
