// Package api serves polygen's API and page, next to what every daemon serves. Answers are JSON (see internal/polygen/view):
//
//	GET /api/v1/users?sort=&n=          the users with most: by rate, refused, concurrent, down, up or recent
//	GET /api/v1/users/{user}  one user: limits, use, shares, state and why
//	GET /api/v1/unknown-users?sort=&n=  users whom the limit file does not name: by recent or active
//	GET /api/v1/instances               instances and the version of the limits that they enforce
//	GET /api/v1/jobs?n=                 users with background jobs that run or wait
//	GET /api/v1/jobs/{id}               why a background job waits
//
// It also tells what happens, in the first and the last of these as server-sent events:
//
//	GET /api/v1/live?sort=&n=&user=&by=  every second: totals, the users with most, those limited now, instances, one user
//	GET /api/v1/history/{user}?by=       what a user used in each of the last 300 seconds
//	GET /api/v1/events/{user}?by=        requests of one user that started and ended in each of the last 50 seconds
//	GET /api/v1/policies?user=&kind=               each policy as it is decided
//
// At / is the page that shows all of that (internal/polygen/api/page).
//
// These change something by hand:
//
//	GET    /api/v1/overrides                        users' limits set by hand for a time
//	PUT    /api/v1/overrides/{user}       sets a user's limits for a time
//	DELETE /api/v1/overrides/{user}       removes these limits
//	POST   /api/v1/users/{user}/unblock   lets a user in who is blocked
package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
)

// API is what answers questions about users and instances.
type API interface {
	Users(by api.Sort, n int) api.Users
	UnknownUsers(by api.Sort, n int) api.UnknownUsers
	User(who api.Who) api.User
	Instances() api.Instances
	Jobs(ctx context.Context, n int) api.Jobs
	Job(ctx context.Context, id int64) (api.Job, error)
}

const (
	defaultN = 100 // users in a list
	maxN     = api.MaxTop
	// maxName bounds a user's name: HAProxy's headers are shorter.
	maxName = 16 << 10
)

// usersOrders are the orders of lists of users. The first one is the default, and the last one stands for those
// by each unit of cost.
var usersOrders = []api.Sort{api.ByRate, api.ByRefused, api.ByConcurrent, api.ByDown, api.ByUp, api.ByRecent, anyCost}

var anyCost = api.ByCost("UNIT")

// apiPaths are the paths that exist, for answers to requests for others.
var apiPaths = []string{
	"/api/v1/users", "/api/v1/users/{user}", "/api/v1/unknown-users", "/api/v1/instances",
	"/api/v1/live", "/api/v1/history/{user}", "/api/v1/events/{user}", "/api/v1/policies",
	"/api/v1/jobs", "/api/v1/jobs/{id}",
	"/api/v1/overrides", "/api/v1/overrides/{user}", "/api/v1/users/{user}/unblock",
}

// Routes adds the paths of the API and the page, for daemon.AdminOptions. Each source may be nil.
func Routes(source API, live Live, hand Overrider) func(*http.ServeMux) {
	return func(mux *http.ServeMux) {
		if source != nil {
			mux.Handle("/", Page())
			serveAPI(mux, source)
		}
		if hand != nil {
			serveOverrides(mux, hand)
		}
		if live != nil {
			serveLive(mux, live)
		}
	}
}

// serveAPI adds the paths of the API. Every answer is JSON, errors too.
func serveAPI(mux *http.ServeMux, source API) {
	// What an answer can fail with is what was asked: polygen has everything in memory, and of jobs it says which
	// worker does not answer.
	get := func(path string, answer func(*http.Request) (any, error)) {
		mux.HandleFunc("GET /api/v1/"+path, func(w http.ResponseWriter, r *http.Request) {
			if a, err := answer(r); err != nil {
				daemon.WriteError(w, r, http.StatusBadRequest, err.Error())
			} else {
				daemon.WriteJSON(w, http.StatusOK, a)
			}
		})
	}
	get("users", func(r *http.Request) (any, error) {
		by, n, err := parseList(r.URL.Query(), usersOrders...)
		if err != nil {
			return nil, err
		}
		return source.Users(by, n), nil
	})
	get("unknown-users", func(r *http.Request) (any, error) {
		by, n, err := parseList(r.URL.Query(), api.ByRecent, api.ByActive)
		if err != nil {
			return nil, err
		}
		return source.UnknownUsers(by, n), nil
	})
	// Not "users/{user}", which a user called "/" would not match.
	get("users/", func(r *http.Request) (any, error) {
		who, err := parseUser(strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1/users/"), r.URL.Query())
		if err != nil {
			return nil, err
		}
		return source.User(who), nil
	})
	get("jobs", func(r *http.Request) (any, error) {
		n, err := parseLength(r.URL.Query())
		if err != nil {
			return nil, err
		}
		return source.Jobs(r.Context(), n), nil
	})
	mux.HandleFunc("GET /api/v1/jobs/{id}", serveJob(source))
	get("instances", func(*http.Request) (any, error) { return source.Instances(), nil })
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		// Behind all paths that are there. It answers in JSON, too, as clients of the API expect.
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			daemon.WriteError(w, r, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed: use GET")
			return
		}
		daemon.WriteError(w, r, http.StatusNotFound, "no such path (valid: "+strings.Join(apiPaths, ", ")+")")
	})
}

// parseList reads the order and the length of a list. The first order is the default.
func parseList(q url.Values, orders ...api.Sort) (by api.Sort, n int, err error) {
	// A question without parameters is answered, so that one can begin with curl.
	by = orders[0]
	if s := q.Get("sort"); s != "" {
		if by = api.Sort(s); !validOrder(by, orders) {
			valid := make([]string, len(orders))
			for i, o := range orders {
				valid[i] = string(o)
			}
			return "", 0, fmt.Errorf("unknown sort %.40q (valid: %s)", s, strings.Join(valid, ", "))
		}
	}
	n, err = parseLength(q)
	return by, n, err
}

func parseLength(q url.Values) (n int, err error) {
	s := q.Get("n")
	if s == "" {
		return defaultN, nil
	}
	// More than a page can show, and less than would make an answer of megabytes.
	if n, err = strconv.Atoi(s); err != nil || n < 1 || n > maxN {
		return 0, fmt.Errorf("n=%.40q: want a number from 1 to %d", s, maxN)
	}
	return n, nil
}

func serveJob(source API) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil || id < 1 {
			daemon.WriteError(w, r, http.StatusBadRequest, fmt.Sprintf("%.40q is no id of a job: want a positive number", r.PathValue("id")))
			return
		}
		switch job, err := source.Job(r.Context(), id); {
		case errors.Is(err, api.ErrNoJob):
			daemon.WriteError(w, r, http.StatusNotFound, err.Error())
		case err != nil:
			daemon.WriteError(w, r, http.StatusServiceUnavailable, err.Error())
		default:
			daemon.WriteJSON(w, http.StatusOK, job)
		}
	}
}

func validOrder(by api.Sort, orders []api.Sort) bool {
	unit, isCost := by.CostUnit()
	if !isCost {
		return slices.Contains(orders, by)
	}
	// Which units there are is known to who answers: of any other nobody is listed.
	return slices.Contains(orders, anyCost) && unit != "" && len(unit) <= 24 && strings.Trim(unit, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// parseUser reads a user from the rest of a path, which is escaped, and the query.
func parseUser(path string, q url.Values) (api.Who, error) {
	// From the path as it was sent: net/http has unescaped what it shows, and a user may be called "a/b".
	user, err := url.PathUnescape(path)
	if err != nil || strings.Contains(path, "/") {
		return api.Who{}, fmt.Errorf("%.60q is no user's name: want it with a slash as %%2F, and every other byte escaped that needs it", path)
	}
	u := api.Who{User: user}
	// A key may look like a name.
	switch by := q.Get("by"); by {
	case "", "name":
	case "key":
		u.IsKey = true
	default:
		return api.Who{}, fmt.Errorf("unknown by %.40q (valid: name, key)", by)
	}
	// Longer names no request can have. Without a bound each question could cost megabytes.
	if user == "" || len(user) > maxName {
		return api.Who{}, fmt.Errorf("a user's name of %d bytes: want 1 to %d", len(user), maxName)
	}
	return u, nil
}
