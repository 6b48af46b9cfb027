package spop

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// A proxy is a real HAProxy in front of a server under test.
type proxy struct {
	t     testing.TB
	url   string
	agent string // path of the socket at which it looks for its agent
	http  *http.Client
}

// startHAProxy starts HAProxy with a time that requests wait for a verdict:
// long where every request must get one, short where none comes.
func startHAProxy(t testing.TB, patience time.Duration) proxy {
	t.Helper()
	agent, frontend := socketPath(t), testkit.FreeAddr(t)
	testkit.HAProxy(t, "testdata/haproxy.cfg", frontend,
		"SLUICE_FRONTEND="+frontend, "SLUICE_AGENT="+agent, fmt.Sprintf("SLUICE_PATIENCE=%d", patience.Milliseconds()))
	tr := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(tr.CloseIdleConnections)
	return proxy{t, "http://" + frontend, agent, &http.Client{Transport: tr}}
}

func (p proxy) serve(o Options, change ...func(*bounds)) running {
	p.t.Helper()
	l, err := Listen("unix:" + p.agent)
	if err != nil {
		p.t.Fatal(err)
	}
	return serve(p.t, l, o, change...)
}

// get sends a request with headers given as name, value, … and returns what the proxy answers.
func (p proxy) get(target string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequest("GET", p.url+target, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := p.http.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return resp, err
}

// asked polls until HAProxy asks its agent, or does not any more.
func (p proxy) asked(want bool) {
	p.t.Helper()
	testkit.Eventually(p.t, "requests get a verdict", func() error {
		resp, err := p.get("/", "x-user", "probe")
		if err != nil {
			return err
		}
		if got := resp.Header.Get("x-user") == "probe"; got != want {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func TestHAProxyGetsVerdicts(t *testing.T) {
	p := startHAProxy(t, testkit.Patience)
	args := make(chan map[string]string, 1)
	var asked atomic.Int64
	s := p.serve(Options{Handler: func(r *Request) {
		asked.Add(1)
		got := map[string]string{"message": r.Message()}
		for _, name := range []string{"user", "bytes", "decoded", "missing", "src", "num", "yes"} {
			if v, ok := r.Arg(name); ok {
				got[name] = v
			}
		}
		echo(r)
		r.SetUint("remaining", 1<<32-1)
		if got["user"] == "greedy" {
			r.SetUint("refused", 1)
			r.SetString("reason", "request-rate")
		}
		select {
		case args <- got:
		default:
		}
	}}, func(b *bounds) { b.inFlight = 2 }) // few, so that HAProxy feels the back-pressure
	p.asked(true)
	<-args

	long := strings.Repeat("0123456789abcdef", 256)
	nul := "a\x00b\xff"
	for _, tt := range []struct {
		name    string
		target  string
		headers []string
		want    map[string]string // arguments beside those that are always the same
		user    string            // in the answer
	}{
		{"a user", "/", []string{"x-user", "alice"}, map[string]string{"user": "alice"}, "alice"},
		{"no user", "/", nil, map[string]string{}, ""},
		{"a user of 4 KiB", "/", []string{"x-user", long}, map[string]string{"user": long}, long},
		{"UTF-8", "/", []string{"x-user", "Zoë 🙂"}, map[string]string{"user": "Zoë 🙂"}, "Zoë 🙂"},
		{"binary with NUL", "/", []string{"x-bytes", base64.StdEncoding.EncodeToString([]byte(nul))}, map[string]string{"bytes": nul}, ""},
		{"text with control characters", "/?decoded=" + url.QueryEscape("a\x01\r\nb"), nil, map[string]string{"decoded": "a\x01\r\nb"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := p.get(tt.target, tt.headers...)
			if err != nil {
				t.Fatal(err)
			}
			got := <-args
			want := map[string]string{"message": "start-message", "num": "-7", "yes": "1", "src": "127.0.0.1"}
			for k, v := range tt.want {
				want[k] = v
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			if resp.StatusCode != 200 || resp.Header.Get("x-user") != tt.user || resp.Header.Get("x-remaining") != "4294967295" {
				t.Errorf("answered %d %v, want 200 with user %q and 4294967295 left", resp.StatusCode, resp.Header, tt.user)
			}
		})
	}
	t.Run("a refused user", func(t *testing.T) {
		resp, err := p.get("/", "x-user", "greedy")
		if err != nil || resp.StatusCode != 429 || resp.Header.Get("sluice-reason") != "request-rate" {
			t.Errorf("answered %v, %v, want 429 for request-rate", resp, err)
		}
		<-args
	})
	t.Run("a request denied by a rule is not asked about", func(t *testing.T) {
		before := asked.Load()
		resp, err := p.get("/denied", "x-user", "alice")
		if err != nil || resp.StatusCode != 403 || asked.Load() != before {
			t.Errorf("answered %v, %v and asked %d times, want 403 without asking", resp, err, asked.Load()-before)
		}
	})
	t.Run("many at a time", func(t *testing.T) {
		const clients, requests = 32, 50
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for j := range requests {
					user := fmt.Sprintf("user-%d-%d", i, j)
					resp, err := p.get("/", "x-user", user)
					if err != nil || resp.Header.Get("x-user") != user {
						t.Errorf("request of %s answered %v, %v", user, resp, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if got := testutil.ToFloat64(s.metrics.notify); got < clients*requests {
			t.Errorf("%v questions, want %d at least", got, clients*requests)
		}
	})
	if testutil.ToFloat64(s.metrics.healthcheck) == 0 {
		t.Error("no health check was counted")
	}
	for _, r := range rejections {
		if n := testutil.ToFloat64(s.metrics.rejected.WithLabelValues(string(r))); n != 0 {
			t.Errorf("HAProxy %s was rejected %v times for %s", testkit.HAProxyVersion(t), n, r)
		}
	}
}

func TestHAProxyOutlivesItsAgent(t *testing.T) {
	p := startHAProxy(t, 300*time.Millisecond)
	for range 2 {
		s := p.serve(Options{})
		p.asked(true)
		s.stop()
		p.asked(false) // and requests pass
	}
	// A HAProxy with a larger buffer than the agent's limit keeps to the limit.
	s := p.serve(Options{}, func(b *bounds) { b.frame = 1000 })
	p.asked(true)
	resp, err := p.get("/", "x-user", strings.Repeat("x", 2000))
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("x-user") != "" {
		t.Errorf("a question too large was answered %v, %v, want 200 without a verdict", resp, err)
	}
	p.asked(true)
	if got := testutil.ToFloat64(s.metrics.rejected.WithLabelValues(string(rejectOversized))); got != 0 {
		t.Errorf("%v frames too large arrived, want HAProxy to hold them back", got)
	}
}
