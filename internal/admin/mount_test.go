package admin

import (
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The page is where the API is that it asks, and is given to browsers that know no
// token yet; what it shows is not.
func TestPageIsMounted(t *testing.T) {
	gate, _, _, _ := gated(t, "ann "+annsToken+"\n")
	for _, tt := range []struct {
		name, path string
		options    Options
		want       int
	}{
		{"with the API", "/", Options{API: sample{}}, 200},
		{"its files", "/page/main.js", Options{API: sample{}}, 200},
		{"without one: the agents", "/", Options{}, 404},
		{"where a token is wanted", "/", Options{API: sample{}, Gate: gate}, 200},
		{"its files, where a token is wanted", "/page/main.js", Options{API: sample{}, Gate: gate}, 200},
		{"the API, where a token is wanted", "/api/v1/users", Options{API: sample{}, Gate: gate}, 401},
		{"the API's errors stay its own", "/api/v1/nothing", Options{API: sample{}}, 404},
	} {
		tt.options.Gatherer = prometheus.NewRegistry()
		w := httptest.NewRecorder()
		Handler(tt.options).ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
		if w.Code != tt.want {
			t.Errorf("%s: GET %s = %d, want %d", tt.name, tt.path, w.Code, tt.want)
		}
	}
}
