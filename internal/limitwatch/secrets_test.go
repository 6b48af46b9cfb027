package limitwatch

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/proctest"
)

func secretLine(n byte) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune('a'+n)), 32))) + "\n"
}

// A rotation of secrets is read while it is watched. A secret file that is broken changes
// nothing, and no name of a limit file that is broken is in the log.
func TestSecretsAreWatched(t *testing.T) {
	dir := t.TempDir()
	path, secrets := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "secrets")
	const users = "users: {melchior: {concurrent: 7}}\n"
	write(t, path, file(1)+users)
	write(t, secrets, secretLine(0))
	h := &harness{t: t, path: path, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(h, nil))
	w, err := NewHidden(path, secrets, log, h.reg)
	if err != nil {
		t.Fatal(err)
	}
	h.Watcher = w
	fastPoll(w)
	h.run()
	old := w.Set().Key("melchior")
	has := func(what string, want int, keys ...string) {
		t.Helper()
		proctest.Eventually(t, what, func() error {
			for _, key := range keys {
				if got := w.Set().User(key).Concurrent; got != want {
					return fmt.Errorf("%s may have %d in progress, want %d", key, got, want)
				}
			}
			return nil
		})
	}
	has("the first secret", 7, old)
	if got := w.Set().User("melchior").Concurrent; got != 1 {
		t.Errorf("the name itself may have %d in progress, want 1 as everybody", got)
	}

	write(t, secrets, secretLine(1)+secretLine(0))
	proctest.Eventually(t, "the second secret", func() error {
		if ids := w.Set().Secrets().IDs(); len(ids) != 2 {
			return fmt.Errorf("the secrets are %v, want two", ids)
		}
		return nil
	})
	current := w.Set().Key("melchior")
	has("both secrets", 7, old, current)
	h.wantLogged("secrets=" + strings.Join(w.Set().Secrets().IDs(), ","))

	write(t, secrets, "correct horse battery staple\n")
	h.wantValid(0)
	h.wantLogged("line 1 is no base64")
	has("a broken secret file", 7, old, current)
	must(t, os.Remove(secrets))
	h.wantLogged("read key secret file: ")
	has("no secret file", 7, old, current)

	write(t, secrets, secretLine(1))
	h.wantValid(1)
	has("the second secret alone", 1, old)
	has("the second secret alone", 7, current)

	write(t, path, file(1)+"users: {melchior: {concurent: 7}}\n")
	h.wantValid(0)
	h.wantLogged("not valid at " + path + ":4:20: sluice check")
	write(t, path, file(1)+"users: {\"melchior*\": free}\n")
	h.wantLogged(path + ":4:9: users: a pattern cannot match users whose names are hidden")
	if err := w.Reload(); err == nil || strings.Contains(err.Error(), "melchior") {
		t.Errorf("Reload = %v, want an error without a name", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for _, secret := range []string{"melchior", "correct horse", strings.TrimSpace(secretLine(0)), strings.TrimSpace(secretLine(1))} {
		if strings.Contains(h.log.String(), secret) {
			t.Errorf("the log tells %q:\n%s", secret, &h.log)
		}
	}
}

func TestSecretFileThatOthersRead(t *testing.T) {
	dir := t.TempDir()
	path, secrets := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "secrets")
	write(t, path, file(1))
	write(t, secrets, secretLine(0))
	must(t, os.Chmod(secrets, 0o644))
	h := &harness{t: t}
	if _, err := NewHidden(path, secrets, slog.New(slog.NewTextHandler(h, nil)), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	h.wantLogged("every user of this machine can read a secret")
}

// Nothing is served with a secret file that is none: names would be told.
func TestNewFailsWithoutSecrets(t *testing.T) {
	dir := t.TempDir()
	path, secrets := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "secrets")
	write(t, path, file(1))
	for content, want := range map[string]string{"": "it holds no secret", "short": "line 1 is no base64", "YWJj": "line 1: a secret of 3 bytes"} {
		write(t, secrets, content)
		reg := prometheus.NewRegistry()
		w, err := NewHidden(path, secrets, slog.New(slog.DiscardHandler), reg)
		if w != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewHidden with %q = %v, want an error with %s", content, err, want)
		}
		if got, err := testutil.GatherAndCount(reg, "sluice_limits_valid"); err != nil || got != 1 {
			t.Errorf("sluice_limits_valid is there %d times (%v)", got, err)
		}
	}
}
