package riverqos

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Handler answers GET /jobs/{id} with Why as JSON, and GET /jobs?n= with Users: n is 100
// if it is left out, and workerapi.MaxListed at most. It says which users have jobs: let only
// operators reach it, and polygen.
func (f *Fairness) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jobs", f.serveUsers)
	mux.HandleFunc("GET /jobs/{id}", f.serveWhy)
	return mux
}

func (f *Fairness) serveWhy(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		answer(w, http.StatusBadRequest, map[string]string{"error": "the id of a job is a positive number"})
		return
	}
	why, err := f.Why(r.Context(), id)
	switch {
	case errors.Is(err, ErrNoJob):
		answer(w, http.StatusNotFound, map[string]string{"error": err.Error()})
	// The error may name hosts and users, so that only the log has it.
	case err != nil:
		f.runner.Report("why", "the state of a job could not be read", err)
		answer(w, http.StatusServiceUnavailable, map[string]string{"error": "the database or the slots do not answer"})
	default:
		answer(w, http.StatusOK, why)
	}
}

func (f *Fairness) serveUsers(w http.ResponseWriter, r *http.Request) {
	n, err := 100, error(nil)
	if text := r.URL.Query().Get("n"); text != "" {
		n, err = strconv.Atoi(text)
	}
	if err != nil || n < 1 || n > workerapi.MaxListed {
		answer(w, http.StatusBadRequest, map[string]string{"error": fmt.Sprintf("n is a number from 1 to %d", workerapi.MaxListed)})
		return
	}
	list, err := f.Users(r.Context(), n)
	if err != nil {
		f.runner.Report("users", "the users with jobs could not be read", err)
		answer(w, http.StatusServiceUnavailable, map[string]string{"error": "the database or the slots do not answer"})
		return
	}
	answer(w, http.StatusOK, list)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // it fails only if the client has left
}
