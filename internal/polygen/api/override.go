package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
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

func serveOverrides(mux *http.ServeMux, hand Overrider) {
	mux.HandleFunc("GET /api/v1/overrides", func(w http.ResponseWriter, _ *http.Request) { daemon.WriteJSON(w, http.StatusOK, hand.Overrides()) })
	act := func(w http.ResponseWriter, r *http.Request, action api.Action, user string, do func(context.Context, api.OverrideRequest) (any, error)) {
		// Even what is refused is noted, with who asked for it: the audit log is to show attempts.
		a, status, err := readRequest(w, r, action, user)
		if err != nil {
			hand.Refuse(a, err)
			daemon.WriteError(w, r, status, err.Error())
			return
		}
		answer, err := do(r.Context(), a)
		if err != nil {
			daemon.WriteError(w, r, statusOf(err), err.Error())
			return
		}
		daemon.WriteJSON(w, http.StatusOK, answer)
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
	daemon.WriteError(w, r, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed: use "+strings.ReplaceAll(first, ", ", " or "))
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, api.ErrNoOverride):
		return http.StatusNotFound
	case errors.Is(err, api.ErrFull):
		return http.StatusConflict
	case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrNotLeading):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// readRequest reads a request, as far as it can, and returns the status of an error.
func readRequest(w http.ResponseWriter, r *http.Request, action api.Action, user string) (a api.OverrideRequest, status int, err error) {
	a = api.OverrideRequest{Action: action, User: user, By: operatorOf(r)}
	// First, so that the note of a refusal says whom it was about. What it does not allow is an error further
	// down.
	who, err := parseUser(user, r.URL.Query())
	if err == nil {
		a.User, a.IsKey = who.User, who.IsKey
	}
	if !daemon.FromOwnOrigin(r) {
		return a, http.StatusForbidden, daemon.ErrForeignOrigin
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

// operatorOf names the client, and the address that the request came from: that of a standby, if one has forwarded it, and of
// whom that says.
func operatorOf(r *http.Request) string {
	// Of the connection: fields such as X-Forwarded-For anybody can write.
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if ip := net.ParseIP(r.Header.Get(forwardedHeader)); ip != nil {
		host += " for " + ip.String()
	}
	return daemon.Caller(r) + " from " + host
}
