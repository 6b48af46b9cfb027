package up

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/internal/testcert"
)

// The admin API wants what its flags say, and is told of with its scheme.
func TestAdminWithTokenAndTLS(t *testing.T) {
	dir := t.TempDir()
	ca := testcert.New(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := start(t, func(o *Options) { o.Access = admin.Access{TokenFile: tokens, Cert: cert, Key: key} })
	m.awaitReady(t)
	if want := ", admin at https://" + m.Admin + "\n"; !strings.HasSuffix(m.stdout.String(), want) {
		t.Errorf("it printed %q, want …%q", m.stdout, want)
	}
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	m.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	for path, want := range map[string]int{"/-/ready": 200, "/metrics": 401, "/api/v1/instances": 401} {
		proctest.Eventually(t, path, func() error {
			res, err := m.client.Get("https://" + m.Admin + path)
			if err != nil {
				return err
			}
			res.Body.Close()
			if res.StatusCode != want {
				return fmt.Errorf("GET = %s, want %d", res.Status, want)
			}
			return nil
		})
	}
}
