package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// Every command that asks an API asks with a token and by TLS, and says what to do
// when it may not ask.
func TestAsksWithTokenAndTLS(t *testing.T) {
	for _, name := range []string{"SLUICE_ADMIN_TOKEN_FILE", "SLUICE_ADMIN_CA"} {
		t.Setenv(name, "") // restores it
		os.Unsetenv(name)
	}
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	address, expired := apitest.ServeTLS(t, ca, time.Now().Add(time.Hour)), apitest.ServeTLS(t, ca, time.Now().Add(-time.Hour))
	plain := apitest.Serve(apitest.Cluster())
	defer plain.Close()
	clear := plain.Listener.Addr().String()
	good := apitest.WriteFile(t, dir, "token", "# mine\n"+apitest.Token+"\n")
	other := apitest.WriteFile(t, dir, "other", "bob 0123456789abcdefg")
	short := apitest.WriteFile(t, dir, "short", "short")
	limits := apitest.WriteFile(t, dir, "limits.yaml", goodLimits)

	for _, command := range [][]string{{"top", "--once"}, {"explain", "bob", "--limits", limits}} {
		for _, tt := range []struct {
			name string
			args []string
			want string // the error; "" is none
		}{
			{"with all", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", good}, ""},
			{"with a slash at the end", []string{"--admin", "https://" + address + "/", "--admin-ca", ca.File, "--admin-token-file", good}, ""},
			{"in the clear to this machine", []string{"--admin", clear}, ""},
			{"the same with its scheme", []string{"--admin", "http://" + clear, "--admin-token-file", good}, ""},
			{"without a token", []string{"--admin", "https://" + address, "--admin-ca", ca.File},
				"https://" + address + " wants a token: give one with --admin-token-file"},
			{"with another token", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", other},
				"https://" + address + " does not know the token of " + other + ": give another one with --admin-token-file"},
			{"with no token of the kind", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", short},
				"--admin-token-file: token file " + short + ": line 1: a token of 5 characters: want 16 to 1024, such as from: openssl rand -hex 32"},
			{"without a token file that is named", []string{"--admin", clear, "--admin-token-file", dir + "/none"},
				"--admin-token-file: token file: open " + dir + "/none: no such file or directory"},
			{"without the authority", []string{"--admin", "https://" + address, "--admin-token-file", good},
				"https://" + address + " has a certificate that nobody known signed: name its authority's with --admin-ca"},
			{"with no authority", []string{"--admin", "https://" + address, "--admin-ca", good},
				"--admin-ca: " + good + " holds no certificate in PEM form"},
			{"without the authority that is named", []string{"--admin", "https://" + address, "--admin-ca", dir + "/none"},
				"--admin-ca: open " + dir + "/none: no such file or directory"},
			{"with TLS where there is none", []string{"--admin", "https://" + clear, "--admin-ca", ca.File},
				clear + " speaks HTTP: use http://" + clear + " with --admin"},
			{"without TLS where there is", []string{"--admin", address},
				address + " speaks HTTPS: use https://" + address + " with --admin"},
			{"a token for others in the clear", []string{"--admin", "192.0.2.1:9090", "--admin-token-file", good},
				"a token is not sent to 192.0.2.1:9090 unencrypted: use https://192.0.2.1:9090 with --admin"},
			{"a token for a name in the clear", []string{"--admin", "http://polygen.example:9090", "--admin-token-file", good},
				"a token is not sent to http://polygen.example:9090 unencrypted: use https://polygen.example:9090 with --admin"},
		} {
			t.Run(command[0]+" "+tt.name, func(t *testing.T) {
				var stdout, stderr bytes.Buffer
				code := runCommand(append(command, tt.args...), &stdout, &stderr)
				want := ""
				if tt.want != "" {
					want = "sluice " + command[0] + ": " + tt.want + "\n"
				}
				if stderr.String() != want || code != map[bool]int{true: 0, false: 1}[want == ""] || (stdout.Len() > 0) != (want == "") {
					t.Errorf("sluice %q ended with %d: %s\nwant %s", append(command, tt.args...), code, &stderr, want)
				}
			})
		}
		t.Run(command[0]+" with a certificate that has expired", func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := runCommand(append(command, "--admin", "https://"+expired, "--admin-ca", ca.File, "--admin-token-file", good), &stdout, &stderr)
			if want := "sluice " + command[0] + ": https://" + expired + ": x509: certificate has expired or is not yet valid: "; code != 1 || !strings.HasPrefix(stderr.String(), want) {
				t.Errorf("it ended with %d: %s\nwant %s…", code, &stderr, want)
			}
		})
	}

	t.Run("by its environment", func(t *testing.T) {
		t.Setenv("SLUICE_ADMIN_TOKEN_FILE", good)
		t.Setenv("SLUICE_ADMIN_CA", ca.File)
		var stdout, stderr bytes.Buffer
		if code := runCommand([]string{"top", "--once", "--admin", "https://" + address}, &stdout, &stderr); code != 0 {
			t.Errorf("sluice top ended with %d: %s", code, &stderr)
		}
	})
}
