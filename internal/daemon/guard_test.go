package daemon

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A name that somebody else's server of names makes mean this machine is refused.
func TestNameOfSomebodyElse(t *testing.T) {
	s := httptest.NewServer(AdminHandler(AdminOptions{Gatherer: prometheus.NewRegistry()}))
	defer s.Close()
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "LocalHost:9090": 200, "sluice.localhost:9090": 200, "127.0.0.1:9090": 200, "[::1]:9090": 200, "::1": 200,
		"192.0.2.1": 200, "evil.example": 403, "evil.example:9090": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "xlocalhost": 403,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/-/healthy", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("Host %q: %d, want %d", host, res.StatusCode, want)
		}
	}
}
