//go:build images

package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// TestCompose runs deploy/compose.yaml without a container engine: the very images of ours, and this machine's programs
// in place of the official images. All but Grafana, which Debian does not have.
func TestCompose(t *testing.T) {
	work := os.Getenv("SLUICE_WORK")
	if work == "" {
		t.Fatal("run this by scripts/test-images")
	}
	config := filepath.Join(work, "config")
	m := &machine{
		t: t, project: load(t, "SLUICE_SECRETS="+secrets(t), "SLUICE_CONFIG="+config), dir: work, images: filepath.Join(work, "images"),
		addresses: map[string]string{}, containers: map[string]*container{},
	}
	m.write(filepath.Join(config, "limits.yaml"), read(t, repository+"/config/limits.yaml"))
	m.connect()
	for _, name := range []string{"haproxy-1", "haproxy-2", "prometheus"} {
		m.start(name)
	}
	for _, c := range m.containers {
		if c.HealthCheck != nil {
			m.awaitHealthy(c)
		}
	}
	m.requestsAreLimited()
	m.prometheusSeesAll()
	m.newLimitsAreRead(filepath.Join(config, "limits.yaml"))
	m.probesSayWhatIsWrong()
}

// ask makes a request of mary's, and returns the answer's status.
func (m *machine) ask(haproxy string) (int, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+m.addresses[haproxy]+":8080/", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("X-User", "mary")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// requestsAreLimited makes requests until some are refused, by both HAProxies in turn.
func (m *machine) requestsAreLimited() {
	m.t.Helper()
	seen := map[string]int{}
	await(m.t, "each HAProxy admits some requests and refuses others", func() error {
		for n := range 40 {
			haproxy := fmt.Sprintf("haproxy-%d", 1+n%2)
			status, err := m.ask(haproxy)
			if err != nil {
				return err
			}
			if status != http.StatusOK && status != http.StatusTooManyRequests {
				m.t.Fatalf("%s answers %d", haproxy, status)
			}
			seen[fmt.Sprint(haproxy, " ", status)]++
		}
		if len(seen) < 4 {
			return fmt.Errorf("there were %v", seen)
		}
		return nil
	})
	m.t.Logf("requests: %v", seen)
}

// prometheusSeesAll waits until each target is up: by TLS and a token, but for HAProxy.
func (m *machine) prometheusSeesAll() {
	m.t.Helper()
	await(m.t, "Prometheus has all targets", func() error {
		response, err := http.Get("http://" + m.addresses["prometheus"] + ":9090/api/v1/query?query=up==1")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var answer struct{ Data struct{ Result []any } }
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return err
		}
		if n := len(answer.Data.Result); n != 6 {
			return fmt.Errorf("%d are up, want 6: %v", n, answer.Data.Result)
		}
		return nil
	})
}

// newLimitsAreRead replaces the limit file as an editor does.
func (m *machine) newLimitsAreRead(file string) {
	m.t.Helper()
	m.write(file+".new", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100000}}}\n")
	if err := os.Rename(file+".new", file); err != nil {
		m.t.Fatal(err)
	}
	await(m.t, "new limits are in force", func() error {
		for range 60 {
			if status, err := m.ask("haproxy-1"); err != nil || status != http.StatusOK {
				return fmt.Errorf("status %d: %w", status, err)
			}
		}
		return nil
	})
}

// probesSayWhatIsWrong stops services, and looks at the health of others.
func (m *machine) probesSayWhatIsWrong() {
	m.t.Helper()
	stop := func(name string) {
		c := m.containers[name]
		// The engine sends SIGTERM, and SIGKILL at the end of the time.
		if err := c.process.Process.Signal(syscall.SIGTERM); err != nil {
			m.t.Fatal(err)
		}
		grace := types.Duration(10 * time.Second)
		if c.StopGracePeriod != nil {
			grace = *c.StopGracePeriod
		}
		if err := c.await(time.Duration(grace)); err != nil {
			m.t.Errorf("%s: %v", name, err)
		}
	}
	want := func(name, text string) {
		await(m.t, name+" is unhealthy", func() error {
			out, err := m.probe(m.containers[name])
			if err == nil {
				return errors.New("it is healthy")
			}
			if !strings.HasPrefix(out, text) || strings.Count(out, "\n") != 1 {
				return fmt.Errorf("it says %q, want %q", out, text)
			}
			return nil
		})
	}
	stop("haproxy-2")
	want("agent-2", "spoa: not ready: no peers session with HAProxy")
	stop("agent-2")
	want("agent-2", "spoa: 0.0.0.0:9091 does not answer: connect: connection refused")
	stop("redis")
	want("polygen-1", "polygen: not ready: redis cannot be reached")
	for _, name := range []string{"polygen-1", "polygen-2", "agent-1"} {
		stop(name)
	}
}
