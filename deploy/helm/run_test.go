package helm

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// origin is a server behind HAProxy, which answers /slow when the test lets it.
func origin(t *testing.T) (address string, slow chan struct{}) {
	slow = make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			slow <- struct{}{} // it is here
			<-slow
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), slow
}

func get(url, user string) (*http.Response, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-User", user)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	return response, response.Body.Close()
}

// awaitLimited asks until a user's requests are refused because of a limit.
func awaitLimited(t *testing.T, url, user, want string) {
	t.Helper()
	testkit.Eventually(t, user+" is limited", func() error {
		response, err := get(url, user)
		if err != nil {
			return err
		}
		if got := response.Header.Get("RateLimit-Policy"); response.StatusCode != http.StatusTooManyRequests || got != want {
			return fmt.Errorf("%s, RateLimit-Policy %q, want %q", response.Status, got, want)
		}
		return nil
	})
}

// ports are values by which the pods of one machine are not in each other's way.
func ports(t *testing.T, redis, origin string) (values, http string) {
	http = testkit.FreeAddr(t)
	return fmt.Sprintf(`
identify: header:X-User
origin: %s
haproxy: {maxconn: 1000, endpointSeconds: 0, env: {SLUICE_BIND: %q}}
agent: {env: {SLUICE_REDIS: %q, SLUICE_ADMIN: %q}}
polygen: {env: {SLUICE_REDIS: %q, SLUICE_ADMIN: %q}}
`, origin, http, redis, testkit.FreeAddr(t), redis, testkit.FreeAddr(t)), "http://" + http + "/"
}

// What the chart installs by default limits a user, follows a ConfigMap that changes, and lets requests in progress end.
func TestChartRuns(t *testing.T) {
	origin, slow := origin(t)
	_, redis := testkit.Redis(t, smallRedis(t)...)
	values, url := ports(t, redis, origin)
	k := newKubelet(t, values, nil)
	polygen := k.start(t, "polygen")
	edge := k.start(t, "haproxy")

	testkit.Eventually(t, "the first answer", func() error {
		_, err := get(url, "somebody")
		return err
	})
	awaitLimited(t, url, "mary", `"GET";q=10;w=1`)

	publish(t, polygen.folders["limits"], map[string]string{"limits.yaml": "version: 1\ndefault_tier: less\ntiers: {less: {requests: {GET: 3}}}\n"})
	awaitLimited(t, url, "mary", `"GET";q=3;w=1`)

	edge.endsGracefully(t, url, slow)
}

// A pod that starts while Redis cannot be reached lets requests through, and is ready: its agent waits, and HAProxy does not.
func TestChartStartsWithoutRedis(t *testing.T) {
	origin, _ := origin(t)
	values, url := ports(t, testkit.FreeAddr(t), origin)
	k := newKubelet(t, values, nil)
	k.patience = "0.1"
	k.start(t, "haproxy")
	response, err := get(url, "mary")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("the first answer: %v %v", response, err)
	}
}

// smallRedis are the arguments of the chart's own Redis.
func smallRedis(t *testing.T) []string {
	c := deployments(t, render(t, ""))["redis"].Spec.Template.Spec.Containers[0]
	if c.Command[0] != "valkey-server" {
		t.Fatalf("the small Redis is %s", c.Command[0])
	}
	return c.Command[1:]
}

// endsGracefully ends HAProxy as the kubelet does, while a request is in progress.
func (p *pod) endsGracefully(t *testing.T, url string, slow chan struct{}) {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		response, err := get(url+"slow", "ann")
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %s", response.Status)
		}
		answered <- err
	}()
	select {
	case <-slow:
	case err := <-answered:
		t.Fatalf("the slow request ended at once: %v", err)
	}
	haproxy := p.running["haproxy"]
	script, signals := p.container("haproxy").Lifecycle.PreStop.Exec.Command[2], regexp.MustCompile(`kill (-\w+) 1;`)
	if got := signals.FindAllString(script, -1); len(got) != 2 || strings.Count(script, "kill") != 2 {
		t.Fatalf("preStop signals %q, want two signals to process 1 of its container: %s", got, script)
	}
	// Process 1 is another one here.
	stop := exec.Command("/bin/sh", "-c", signals.ReplaceAllString(script, fmt.Sprintf("kill $1 %d;", haproxy.Pid())))
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "no new requests", func() error {
		if response, err := get(url, "somebody"); err == nil {
			return fmt.Errorf("answered %s", response.Status)
		}
		return nil
	})
	if !haproxy.Running() {
		t.Error("HAProxy ended before its last request")
	}
	slow <- struct{}{}
	if err := <-answered; err != nil {
		t.Errorf("the request in progress: %v", err)
	}
	if err := stop.Wait(); err != nil {
		t.Errorf("preStop: %v", err)
	}
	if err := haproxy.Wait(); err != nil {
		t.Errorf("HAProxy: %v", err)
	}
}

// With all that a Redis may ask for, and metrics for others.
func TestChartRunsWithSecrets(t *testing.T) {
	const token = "0123456789abcdef"
	secure := testkit.NewSecureRedis(t)
	address := testkit.FreeAddr(t)
	port := testkit.PortOf(address)
	testkit.Start(t, nil, "redis-server", append(secure.Args, "--save", "", "--port", "0", "--tls-port", port)...)
	origin, _ := origin(t)
	values, url := ports(t, address, origin)
	values = strings.NewReplacer("{SLUICE_BIND:", fmt.Sprintf("{SLUICE_METRICS: %q, SLUICE_BIND:", testkit.FreeAddr(t)), "polygen: {env: {", `polygen: {env: {SLUICE_USER_METRICS_TOP: "5", `).Replace(values) + fmt.Sprintf(`
redis:
  addresses: [%q]
  shards: 4
  agentUser: sluice-agent
  polygenUser: sluice-polygen
  passwords: {secret: redis}
  tls: {enabled: true, caSecret: redis-tls, certSecret: redis-tls}
metrics: {enabled: true, tlsSecret: redis-tls, tokenSecret: token}
`, address)
	k := newKubelet(t, values, map[string]map[string]string{
		"redis":     {"agent": "sluice-agent\n", "polygen": "sluice-polygen\n"},
		"redis-tls": {"ca.crt": readFile(t, secure.CA), "tls.crt": readFile(t, secure.Cert), "tls.key": readFile(t, secure.Key)},
		"token":     {"token": token},
	})
	polygen := k.start(t, "polygen")
	edge := k.start(t, "haproxy")
	awaitLimited(t, url, "mary", `"GET";q=10;w=1`)

	for at, want := range map[string]string{
		"https://" + polygen.address(polygen.container("polygen"), "polygen"): `sluice_user_limit{.*user="mary"`,
		"https://" + edge.address(edge.container("agent"), "agent"):           `sluice_redis_lost 0`,
		"http://" + edge.address(edge.container("haproxy"), "haproxy"):        `haproxy_process_uptime_seconds \d`,
	} {
		testkit.Eventually(t, at, func() error {
			if body := scrape(t, at+"/metrics", token); !regexp.MustCompile(want).MatchString(body) {
				return fmt.Errorf("no %s in %d bytes", want, len(body))
			}
			return nil
		})
	}
}

// scrape reads metrics as Prometheus does.
func scrape(t *testing.T, url, token string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
