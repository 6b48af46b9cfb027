package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"

	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// `sluice up` serves several instances on one machine, and operators see and change limits with the commands.
func TestCommands(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	bin, dir := filepath.Join(cluster.Build(t), "sluice"), t.TempDir()
	limits, admin, first := filepath.Join(dir, "limits.yaml"), testkit.FreeAddr(t), testkit.FreeAddrs(t, 2)
	port, err := strconv.Atoi(testkit.PortOf(first))
	testkit.Must(t, err)
	listen := []string{first, fmt.Sprint("127.0.0.1:", port+1)}
	write := func(get int) {
		t.Helper()
		text := fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: %d}}}}\n", get)
		if err := os.WriteFile(limits, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(10)
	up := testkit.Start(t, nil, bin, "up", "--limits", limits, "--instances", "2", "--listen", listen[0], "--admin", admin,
		"--haproxy", testkit.HAProxyPath(t), "--identify", "header:X-User", "--max-wait", cluster.LongWait.String())
	testkit.Eventually(t, "sluice up is ready", func() error {
		if !up.Running() || !strings.Contains("\n"+up.Output(), "\nready") {
			return fmt.Errorf("it printed %s", up.Output())
		}
		return nil
	})
	// says waits until a command prints all of some texts.
	says := func(args []string, want ...string) {
		t.Helper()
		testkit.Eventually(t, "sluice "+strings.Join(args, " "), func() error {
			out, err := exec.Command(bin, args...).CombinedOutput()
			for _, w := range want {
				if err == nil && !strings.Contains(string(out), w) {
					err = fmt.Errorf("no %q", w)
				}
			}
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	// spend sends requests to both instances until one is refused, and returns how many were not.
	admitted := 0
	spend := func(want int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("bob has %d requests", want), func() error {
			for i := range 20 {
				if res, _ := scene.Get(t, listen[i%2]+"/bytes/1", "bob"); res.StatusCode == http.StatusOK {
					admitted++
				}
			}
			if admitted != want {
				return fmt.Errorf("%d were admitted", admitted)
			}
			return nil
		})
	}
	live := []string{"--admin", admin}
	says([]string{"check", limits}, "1 tier")
	spend(10)
	says(append([]string{"top", "--once"}, live...), "\nbob ", "throttled", "GET/hour")
	says(append([]string{"explain", "bob", "--limits", limits}, live...), "10 of 10 this hour", "request-rate", limits+":3\n")
	says(append([]string{"override", "bob", "--for", "10m", "--reason", "a test", "requests.GET.hour=15"}, live...), "bob")
	spend(15)
	says(append([]string{"override", "--list"}, live...), "bob", "a test")
	says(append([]string{"override", "--remove", "bob"}, live...), "bob")
	write(20)
	spend(20)
	says(append([]string{"unblock", "bob", "--reason", "a test"}, live...), "bob: unblocked: ")
	for path, want := range map[string]string{
		"/api/v1/users/bob": `"state":"throttled"`, "/api/v1/users?sort=rate&n=5": `"bob"`, "/api/v1/instances": `"name":"instance-2`, "/-/ready": "ready", "/": "<html",
	} {
		if text, err := cluster.Get(admin, path); err != nil || !strings.Contains(text, want) {
			t.Errorf("GET %s = %s, %v, want %s", path, text, err, want)
		}
	}
	_ = up.Signal(syscall.SIGINT)
	if err := up.Wait(); err != nil {
		t.Errorf("sluice up ended with %v", err)
	}
	if conn, err := net.Dial("tcp", listen[1]); err == nil {
		conn.Close()
		t.Error("HAProxy accepts connections after sluice up has ended")
	}
}

// The admin API is open to other machines with a token and TLS, and not without.
func TestAdminBeyondThisMachine(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}}}\n"})
	bin, dir := s.Bin(), t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	const token = "0123456789abcdef"
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("ann "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	polygenPort, spoaPort := testkit.PortOf(testkit.FreeAddr(t)), testkit.PortOf(testkit.FreeAddr(t))
	daemons := map[string][]string{
		"polygen": {"--admin", "0.0.0.0:" + polygenPort, "--limits", s.LimitsFile, "--redis", s.RedisAddr, "--name", "outside"},
		"spoa": {"--admin", "0.0.0.0:" + spoaPort, "--redis", s.RedisAddr, "--instance", "outside",
			"--spoe", "unix:" + s.Instances[0].SPOE + "2", "--peers", "unix:" + s.Instances[0].Peers + "2"},
	}
	var running []*testkit.Process
	for command, args := range daemons {
		for _, tt := range []struct {
			more    []string
			missing string
		}{
			{nil, "--admin-token-file and --admin-cert and --admin-key"},
			{[]string{"--admin-token-file", tokens}, "--admin-cert and --admin-key"},
			{[]string{"--admin-cert", cert, "--admin-key", key}, "--admin-token-file"},
		} {
			p := testkit.Start(t, nil, filepath.Join(bin, command), append(args, tt.more...)...)
			want := fmt.Sprintf("%s: address %q can be reached from other machines: set %s, or use 127.0.0.1\n", command, args[1], tt.missing)
			if err := p.Wait(); err == nil || p.Output() != want {
				t.Errorf("%s with %q ended with %v: %s\nwant %s", command, tt.more, err, p.Output(), want)
			}
		}
		running = append(running, testkit.Start(t, nil, filepath.Join(bin, command), append(args, "--admin-token-file", tokens, "--admin-cert", cert, "--admin-key", key)...))
	}
	client := trusting(t, ca.File)
	for _, port := range []string{polygenPort, spoaPort} {
		for _, tt := range []struct {
			path, token string
			status      int
		}{
			{"/-/healthy", "", 200}, {"/metrics", "", 401}, {"/metrics", token + "0", 401}, {"/metrics", token, 200},
		} {
			testkit.Eventually(t, tt.path, func() error {
				return mayAsk(t.Context(), client, "https://127.0.0.1:"+port+tt.path, tt.token, tt.status)
			})
		}
	}
	testkit.Eventually(t, "sluice top lists a user", func() error {
		scene.Get(t, s.Instances[0].Address, "alice")
		top, err := exec.Command(filepath.Join(bin, "sluice"), "top", "--once", "--admin", "https://127.0.0.1:"+polygenPort, "--admin-ca", ca.File, "--admin-token-file", tokens).CombinedOutput()
		if err != nil || !strings.Contains(string(top), "\nalice ") {
			return fmt.Errorf("%w: %s", err, top)
		}
		return nil
	})
	for _, p := range running {
		testkit.Eventually(t, p.Name+" logs requests without a token", func() error {
			if out := p.Output(); !strings.Contains(out, "refused for want of a good token") {
				return fmt.Errorf("it says %s", out)
			}
			return nil
		})
		if strings.Contains(p.Output(), token) {
			t.Errorf("%s logs a token", p.Name)
		}
	}
}

// trusting is a client that trusts one authority.
func trusting(t *testing.T, file string) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testkit.Patience}
}

// mayAsk returns why a question is not answered with a status.
func mayAsk(ctx context.Context, client *http.Client, url, token string, status int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		return fmt.Errorf("GET %s = %s, want %d: %w: %.200s", url, res.Status, status, err, body)
	}
	return nil
}
