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
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/internal/testcert"
	"github.com/sluice-qos/sluice/test/cluster"
)

// The admin API is open to other machines with a token and TLS, and not without.
func TestAdminBeyondThisMachine(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: limitFile(10)})
	bin := c.Bin()
	dir := t.TempDir()
	ca := testcert.New(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	const token = "0123456789abcdef"
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("ann "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, polygenPort, _ := net.SplitHostPort(proctest.FreeAddr(t))
	_, spoaPort, _ := net.SplitHostPort(proctest.FreeAddr(t))
	polygen := []string{"--admin", "0.0.0.0:" + polygenPort, "--limits", c.LimitsFile, "--redis", c.RedisAddr, "--name", "outside"}
	spoa := []string{"--admin", "0.0.0.0:" + spoaPort, "--redis", c.RedisAddr, "--instance", "outside",
		"--spoe", "unix:" + c.Instances[0].SPOE + "2", "--peers", "unix:" + c.Instances[0].Peers + "2"}

	for command, args := range map[string][]string{"polygen": polygen, "spoa": spoa} {
		for _, tt := range []struct {
			more    []string
			missing string
		}{
			{nil, "--admin-token-file and --admin-cert and --admin-key"},
			{[]string{"--admin-token-file", tokens}, "--admin-cert and --admin-key"},
			{[]string{"--admin-cert", cert, "--admin-key", key}, "--admin-token-file"},
		} {
			p := proctest.Start(t, nil, filepath.Join(bin, command), append(args, tt.more...)...)
			want := fmt.Sprintf("%s: address %q can be reached from other machines: set %s, or use 127.0.0.1\n", command, args[1], tt.missing)
			if err := p.Wait(); err == nil || p.Output() != want {
				t.Errorf("%s with %q ended with %v: %s\nwant %s", command, tt.more, err, p.Output(), want)
			}
		}
	}

	secure := []string{"--admin-token-file", tokens, "--admin-cert", cert, "--admin-key", key}
	daemons := []*proctest.Process{
		proctest.Start(t, nil, filepath.Join(bin, "polygen"), append(polygen, secure...)...),
		proctest.Start(t, nil, filepath.Join(bin, "spoa"), append(spoa, secure...)...),
	}
	client := trusting(t, ca.File)
	for _, port := range []string{polygenPort, spoaPort} {
		for _, tt := range []struct {
			path, token string
			status      int
		}{
			{"/-/healthy", "", 200},
			{"/metrics", "", 401},
			{"/metrics", "0123456789abcdef0", 401},
			{"/metrics", token, 200},
		} {
			proctest.Eventually(t, tt.path, func() error {
				return mayAsk(t.Context(), client, "https://127.0.0.1:"+port+tt.path, tt.token, tt.status)
			})
		}
	}

	// Somebody is seen by both polygens, and told of by this one.
	proctest.Eventually(t, "top and explain tell of a user", func() error {
		do(t, "GET", c.Instances[0].Address, "alice")
		args := []string{"--admin", "https://127.0.0.1:" + polygenPort, "--admin-ca", ca.File, "--admin-token-file", tokens}
		top, err := exec.Command(filepath.Join(bin, "sluice"), append([]string{"top", "--once"}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(top), "\nalice ") || !strings.Contains(string(top), "polygen outside, ") {
			return fmt.Errorf("sluice top: %w: %s", err, top)
		}
		explain, err := exec.Command(filepath.Join(bin, "sluice"), append([]string{"explain", "alice", "--limits", c.LimitsFile}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(explain), "last heard of at") || !strings.Contains(string(explain), "polygen outside at https://") {
			return fmt.Errorf("sluice explain: %w: %s", err, explain)
		}
		return nil
	})
	refused, err := exec.Command(filepath.Join(bin, "sluice"), "top", "--once", "--admin", "https://127.0.0.1:"+polygenPort, "--admin-ca", ca.File).CombinedOutput()
	if err == nil || !strings.Contains(string(refused), " wants a token: give one with --admin-token-file\n") {
		t.Errorf("sluice top without a token: %v: %s", err, refused)
	}
	for _, p := range daemons {
		if out := p.Output(); strings.Contains(out, token) || !strings.Contains(out, "refused for want of a good token") {
			t.Errorf("%s logs a token, or nothing of who had none", p.Name)
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
	return &http.Client{Transport: transport, Timeout: proctest.Patience}
}

// mayAsk is why a question is not answered with a status.
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
