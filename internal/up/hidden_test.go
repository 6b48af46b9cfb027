package up

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	oneSecret     = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
	anotherSecret = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\n"
)

// keyWith is the key of a user with a secret.
func keyWith(t *testing.T, secret, user string) string {
	t.Helper()
	s, err := limits.ParseSecrets([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s.Keys(user)[0]
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// monitor has everything that a Redis is told from now on.
func monitor(t *testing.T, addr string) *buffer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "+OK\r\n" {
		t.Fatalf("MONITOR = %q, %v", line, err)
	}
	said, ended := &buffer{}, make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(said, in)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-ended
	})
	return said
}

// call sends something to the admin API and returns the answer.
func (m *machine) call(t *testing.T, method, path, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.Admin+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := m.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		in := bufio.NewReader(res.Body)
		for !strings.HasPrefix(answer, "data: ") { // the first message
			if answer, err = in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		return res.StatusCode, answer
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// With a key secret, nothing that is kept, sent, logged, measured or shown has a user's
// name, and people who ask by name are answered.
func TestNamesAreHidden(t *testing.T) {
	_, redis := proctest.Redis(t)
	commands := monitor(t, redis)
	output := &buffer{}
	m := start(t, func(o *Options) {
		dir := filepath.Dir(o.Limits)
		writeFile(t, o.Limits, `version: 1
# melchior pays
default_tier: free
tiers:
  free: {requests: {GET: 1000, "*": {minute: 2}}, concurrent: 3}
  pro: {requests: {GET: {hour: 3}}, concurrent: 5, bandwidth: {down: 10MiB}}
users:
  melchior: {tier: pro, comment: for melchior} # melchior
`)
		o.KeySecrets = filepath.Join(dir, "secrets")
		writeFile(t, o.KeySecrets, oneSecret)
		o.Redis, o.Instances, o.Listen = redis, 2, proctest.FreeAddrs(t, 2)
		o.Metrics = polygen.UserMetrics{Top: 10, Users: []string{"melchior"}}
		o.Stderr, o.Logger = output, slog.New(slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	m.awaitReady(t)
	addresses, err := ListenAddresses(m.Listen, 2)
	if err != nil {
		t.Fatal(err)
	}
	melchior, balthasar := keyWith(t, oneSecret, "melchior"), keyWith(t, oneSecret, "balthasar")

	for _, user := range []string{"melchior", "balthasar"} { // 3 of an hour, and 2 of a minute
		proctest.AwaitHour()
		proctest.AwaitMinute()
		refused := 0
		for i := range 12 {
			if status, _ := m.do(t, "GET", addresses[i%2], "/bytes/100", user); status == 429 {
				refused++
			}
		}
		if min := map[string]int{"melchior": 9, "balthasar": 10}[user]; refused != min {
			t.Errorf("%s was refused %d of 12 times, want %d", user, refused, min)
		}
	}

	var answers strings.Builder
	ask := func(method, path, body string, want int) string {
		t.Helper()
		status, answer := m.call(t, method, path, body)
		if status != want {
			t.Errorf("%s %s = %d %s, want %d", method, path, status, answer, want)
		}
		if status != http.StatusBadRequest { // which tells who asks what they wrote
			answers.WriteString(answer)
		}
		return answer
	}
	proctest.Eventually(t, "the API knows melchior", func() error {
		var u api.User
		if err := json.Unmarshal([]byte(ask("GET", "/api/v1/users/melchior", "", 200)), &u); err != nil {
			return err
		}
		if u.User != melchior || !u.Known || u.Tier != "pro" || u.Seen == nil || u.Entry == nil || u.Entry.Line != 8 || u.Entry.Comment != "" {
			return fmt.Errorf("got %+v, want the key %s, known, of tier pro, from line 8", u, melchior)
		}
		return nil
	})
	const set = `{"reason": "launch", "limits": {"concurrent": 7}}`
	for _, path := range []string{"/api/v1/users/" + melchior, "/api/v1/users/" + melchior + "?by=key", "/api/v1/live?user=melchior", "/api/v1/history/melchior"} {
		if answer := ask("GET", path, "", 200); !strings.Contains(answer, melchior) {
			t.Errorf("GET %s = %s, want the key of melchior", path, answer)
		}
	}
	ask("PUT", "/api/v1/overrides/melchior", set, 200)
	ask("PUT", "/api/v1/overrides/balthasar", set, 200)
	ask("PUT", "/api/v1/overrides/melchior", `{"reason": "launch"}`, 400)
	ask("PUT", "/api/v1/overrides/melchior/x", set, 400)
	ask("GET", "/api/v1/overrides", "", 200)
	proctest.Eventually(t, "the override is in force", func() error {
		if answer := ask("GET", "/api/v1/users/balthasar", "", 200); !strings.Contains(answer, `"max":7`) || !strings.Contains(answer, balthasar) {
			return errors.New(answer)
		}
		return nil
	})
	ask("POST", "/api/v1/users/melchior/unblock", `{"reason": "launch"}`, 200)
	ask("DELETE", "/api/v1/overrides/"+balthasar, "", 200)
	ask("DELETE", "/api/v1/overrides/balthasar", "", 404)
	for _, path := range []string{"/api/v1/users", "/api/v1/unknown-users", "/api/v1/instances", "/api/v1/live?n=100"} {
		ask("GET", path, "", 200)
	}
	writeFile(t, m.Limits, "version: 1\ndefault_tier: free\ntiers: {free: {}}\nusers: {melchior: gold}\n")
	if answer := ask("POST", "/-/reload", "", 400); !strings.Contains(answer, "not valid at ") || strings.Contains(answer, "melchior") {
		t.Errorf("reload of a broken file = %s, want where it is wrong, and no name", answer)
	}
	metrics := ask("GET", "/metrics", "", 200)
	proctest.Eventually(t, "reports of the current secret", func() error {
		if got := m.metric(t, `sluice_reports_by_secret_total{instance="polygen",secret="current"}`); got == "" || got == "0" {
			return fmt.Errorf("sluice_reports_by_secret_total = %q", got)
		}
		return nil
	})
	m.stop()
	if err := m.wait(t); err != nil {
		t.Error(err)
	}

	for _, place := range []struct{ name, text, has string }{
		{"Redis", commands.String(), melchior},
		{"Redis", commands.String(), balthasar},
		{"the log", output.String(), " user=" + melchior},
		{"the answers", answers.String(), balthasar},
		{"the metrics", metrics, `user="` + melchior + `"`},
		{"the standard output", m.stdout.String(), "ready"},
	} {
		if !strings.Contains(place.text, place.has) {
			t.Errorf("%s has no %s, so that it is not certain that the test sees it", place.name, place.has)
		}
		for _, secret := range []string{"melchior", "balthasar", strings.TrimSpace(oneSecret)} {
			if at := strings.Index(place.text, secret); at >= 0 {
				t.Errorf("%s has %s: …%s", place.name, secret, place.text[max(0, at-200):min(len(place.text), at+100)])
			}
		}
	}
}

// HAProxies change over to another secret one by one: both hold a named user to their
// limit, and who asks by name finds both.
func TestRotationOfSecrets(t *testing.T) {
	const fileOf = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 1000}}, pro: {requests: {GET: {hour: 3}}}}\nusers: {melchior: pro}\n"
	_, redis := proctest.Redis(t)
	m := start(t, func(o *Options) {
		writeFile(t, o.Limits, fileOf)
		o.KeySecrets = filepath.Join(filepath.Dir(o.Limits), "secrets")
		writeFile(t, o.KeySecrets, oneSecret)
		o.Redis, o.Listen = redis, proctest.FreeAddrs(t, 2)
	})
	m.awaitReady(t)
	addresses, err := ListenAddresses(m.Listen, 2)
	if err != nil {
		t.Fatal(err)
	}
	before, after := keyWith(t, oneSecret, "melchior"), keyWith(t, anotherSecret, "melchior")
	admitted := func(address string, want int) {
		t.Helper()
		got := 0
		for range want + 3 {
			if status, _ := m.do(t, "GET", address, "/bytes/1", "melchior"); status == 200 {
				got++
			}
		}
		if got != want {
			t.Errorf("%s admitted %d requests, want %d", address, got, want)
		}
	}

	// First polygen gets the new secret, in front of the old one.
	writeFile(t, m.KeySecrets, anotherSecret+oneSecret)
	if status, answer := m.call(t, "POST", "/-/reload", ""); status != 200 {
		t.Fatalf("reload = %d %s", status, answer)
	}
	// Then a HAProxy has it, and another one has not yet.
	m.instanceWith(t, addresses[1], anotherSecret+oneSecret)
	proctest.AwaitHour()
	admitted(addresses[0], 3)
	admitted(addresses[1], 3)

	proctest.Eventually(t, "both keys are found by name", func() error {
		_, answer := m.call(t, "GET", "/api/v1/users/melchior", "")
		var u api.User
		if err := json.Unmarshal([]byte(answer), &u); err != nil {
			return err
		}
		if u.User != after || len(u.Others) != 1 || u.Others[0].User != before || u.Entry == nil || u.Entry.Line != 4 {
			return fmt.Errorf("got %s, want %s, and %s among others", answer, after, before)
		}
		return nil
	})
	reported := func(secret string) string {
		return m.metric(t, `sluice_reports_by_secret_total{instance="polygen",secret="`+secret+`"}`)
	}
	proctest.Eventually(t, "reports of both secrets", func() error {
		if c, p, u := reported("current"), reported("previous"), reported("unknown"); c == "0" || p == "0" || u != "0" {
			return fmt.Errorf("current %s, previous %s, unknown %s", c, p, u)
		}
		return nil
	})

	// What is set by hand is so for both.
	if status, answer := m.call(t, "PUT", "/api/v1/overrides/melchior", `{"reason": "launch", "limits": {"requests": {"GET": {"hour": 8}}}}`); status != 200 {
		t.Fatalf("override = %d %s", status, answer)
	}
	for _, address := range addresses {
		proctest.Eventually(t, "the override is in force at "+address, func() error {
			if status, _ := m.do(t, "GET", address, "/bytes/1", "melchior"); status != 200 {
				return fmt.Errorf("status %d", status)
			}
			return nil
		})
		admitted(address, 4)
	}
	if status, answer := m.call(t, "DELETE", "/api/v1/overrides/melchior", ""); status != 200 {
		t.Errorf("DELETE = %d %s", status, answer)
	}

	// A secret that polygen does not have any more is told of: too early for the first one.
	writeFile(t, m.KeySecrets, anotherSecret)
	if status, answer := m.call(t, "POST", "/-/reload", ""); status != 200 {
		t.Fatalf("reload = %d %s", status, answer)
	}
	proctest.Eventually(t, "reports of an unknown secret", func() error {
		m.do(t, "GET", addresses[0], "/bytes/1", "melchior")
		if got := reported("unknown"); got == "0" {
			return errors.New("none")
		}
		return nil
	})
	proctest.Eventually(t, "a line in the log", func() error {
		if log := fmt.Sprint(m.Stderr); !strings.Contains(log, "by keys of a secret that polygen does not have") {
			return errors.New("there is none")
		}
		return nil
	})
}

// instanceWith runs one more instance until the test ends, whose HAProxy has the first of
// these secrets.
func (m *machine) instanceWith(t *testing.T, address, secrets string) {
	t.Helper()
	set, err := limitfile.Load(m.Limits)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := limits.ParseSecrets([]byte(secrets))
	if err != nil {
		t.Fatal(err)
	}
	if set, err = limitfile.Hide(set, parsed); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	one := &stack{Options: m.Options, registry: prometheus.NewRegistry(), maxConns: 1024}
	t.Cleanup(one.close)
	agent, err := one.newAgent("one-more", dir)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &process{program: m.HAProxy, dir: dir, address: address, options: &m.Options, set: set, wait: agent.Serving}
	if proxy.options.Origin == "" {
		origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") }))
		t.Cleanup(origin.Close)
		proxy.options.Origin = origin.Listener.Addr().String()
	}
	if err := proxy.configure(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- agent.Run(ctx) }()
	go func() { ended <- proxy.runUntil(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("the instance at %s: %v", address, err)
			}
		}
	})
	proctest.Eventually(t, "the instance at "+address, func() error {
		if err := agent.Ready(); err != nil {
			return err
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
