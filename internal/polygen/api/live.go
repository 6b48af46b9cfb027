package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
)

// Live tells what happens, as it happens. The messages of a stream come until stop is
// called or the channel is closed; an error says that there are too many streams.
type Live interface {
	Watch(q api.Question) (answers <-chan *api.Message, stop func(), err error)
	Policies(f api.Filter) (events <-chan *api.Message, stop func(), err error)
	History(who api.Who) api.History
	Events(ctx context.Context, who api.Who) (api.Events, error)
}

// liveN is the usual number of users in a live list.
const liveN = 50

// serveLive adds the paths of live answers, histories and the stream of policies.
func serveLive(mux *http.ServeMux, live Live) {
	mux.HandleFunc("GET /api/v1/live", func(w http.ResponseWriter, r *http.Request) {
		q, err := parseWatch(r.URL.Query())
		if err != nil {
			daemon.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		serveStream(w, r, func() (<-chan *api.Message, func(), error) { return live.Watch(q) })
	})
	mux.HandleFunc("GET /api/v1/policies", func(w http.ResponseWriter, r *http.Request) {
		f, err := parseFilter(r.URL.Query())
		if err != nil {
			daemon.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		serveStream(w, r, func() (<-chan *api.Message, func(), error) { return live.Policies(f) })
	})
	mux.HandleFunc("GET /api/v1/events/", serveEvents(live))
	// Not "history/{user}", which a user called "/" would not match.
	mux.HandleFunc("GET /api/v1/history/", func(w http.ResponseWriter, r *http.Request) {
		who, err := parseUser(strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/history/"), r.URL.Query())
		if err != nil {
			daemon.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		daemon.WriteJSON(w, http.StatusOK, live.History(who))
	})
}

func serveEvents(live Live) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := parseUser(strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/events/"), r.URL.Query())
		if err != nil {
			daemon.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		// It reads Redis, so it ends when the client goes.
		events, err := live.Events(r.Context(), who)
		if err != nil {
			daemon.WriteError(w, r, statusOf(err), err.Error())
			return
		}
		daemon.WriteJSON(w, http.StatusOK, events)
	}
}

func parseWatch(q url.Values) (api.Question, error) {
	by, n, err := parseList(q, usersOrders...)
	if err != nil {
		return api.Question{}, err
	}
	// Fewer than in a list that is asked for once: this comes every second.
	if q.Get("n") == "" {
		n = liveN
	}
	u, err := parseOptionalUser(q)
	return api.Question{Sort: by, N: n, User: u.User, IsKey: u.IsKey}, err
}

// parseOptionalUser reads the user of a query, which may have none.
func parseOptionalUser(q url.Values) (api.Who, error) {
	// A stream may be about nobody, but a user who is named must be one that there can be.
	user := q.Get("user")
	missing := user == ""
	if missing {
		user = "-" // stands in for the user, so that the other parameters are checked in any case
	}
	u, err := parseUser(url.PathEscape(user), q)
	if err != nil || missing {
		return api.Who{}, err
	}
	return u, nil
}

// parseFilter reads which events are wanted.
func parseFilter(q url.Values) (api.Filter, error) {
	u, err := parseOptionalUser(q)
	if err != nil {
		return api.Filter{}, err
	}
	f := api.Filter{User: u.User, IsKey: u.IsKey}
	f.Kinds, err = parseKinds(q.Get("kind"))
	return f, err
}
