package polygen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// layout makes a limit file with users from users.d and returns both paths.
func layout(t *testing.T) (path, users string) {
	t.Helper()
	dir := t.TempDir()
	path, users = filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "users.d")
	must(t, os.Mkdir(users, 0o700))
	write(t, path, limitsOf(1)+"users_from: users.d/*.yaml\n")
	return path, users
}

// user is a users file in which one user has a limit of their own.
func user(name string, concurrent int) string {
	return fmt.Sprintf("users: {%s: {concurrent: %d}}\n", name, concurrent)
}

// wantUser waits until a user has a limit.
func (h *harness) wantUser(name string, concurrent int) {
	h.t.Helper()
	testkit.Eventually(h.t, "limit of "+name, func() error {
		if got := h.Set().User(name).Concurrent; got != concurrent {
			return fmt.Errorf("got %d, want %d", got, concurrent)
		}
		return nil
	})
}

// wantFailures waits until so many loads have failed.
func (h *harness) wantFailures(n float64) {
	h.t.Helper()
	testkit.Eventually(h.t, "failed loads", func() error {
		if got := testutil.ToFloat64(h.metrics.reloads.WithLabelValues(string(limitfile.Failed))); got < n {
			return fmt.Errorf("got %v, want %v", got, n)
		}
		return nil
	})
}

func TestUsersFrom(t *testing.T) {
	path, users := layout(t)
	h := start(t, path, fastPoll)
	alice, bob := filepath.Join(users, "alice.yaml"), filepath.Join(users, "bob.yaml")
	write(t, alice, user("alice", 2)) // new
	h.wantUser("alice", 2)
	write(t, alice, user("alice", 3)) // written in place, of the same size
	h.wantUser("alice", 3)
	write(t, filepath.Join(users, ".bob.swp"), user("bob", 4)) // renamed to
	must(t, os.Rename(filepath.Join(users, ".bob.swp"), bob))
	h.wantUser("bob", 4)
	must(t, os.Remove(alice)) // gone
	h.wantUser("alice", 1)
	h.wantUser("bob", 4)
	write(t, path, limitsOf(1)) // users_from gone
	h.wantUser("bob", 1)
}

func TestUsersFromBroken(t *testing.T) {
	path, users := layout(t)
	alice, bob := filepath.Join(users, "alice.yaml"), filepath.Join(users, "bob.yaml")
	write(t, alice, user("alice", 2))
	h := start(t, path, fastPoll)
	write(t, bob, user("bob", 0))
	h.wantLogged(bob + `:1:27: user \"bob\": concurrent must be 1 or more`)
	h.wantValid(0)
	write(t, alice, user("alice", 3)) // good, but the whole is not
	h.wantFailures(2)
	if got := h.Set().User("alice").Concurrent; got != 2 {
		t.Errorf("beside a broken file alice has the limit %d, want 2 as before", got)
	}
	write(t, bob, user("bob", 4))
	h.wantUser("bob", 4)
	h.wantUser("alice", 3)
	h.wantValid(1)
}

func TestUsersFromFolderComesLater(t *testing.T) {
	path, users := layout(t)
	must(t, os.Remove(users))
	h := start(t, path, fastPoll)
	must(t, os.Mkdir(users, 0o700))
	write(t, filepath.Join(users, "alice.yaml"), user("alice", 2))
	h.wantUser("alice", 2)
}

// TestUsersFromIsOneReload: however many files one change writes.
func TestUsersFromIsOneReload(t *testing.T) {
	path, users := layout(t)
	h := start(t, path, fastPoll)
	h.wantUser("anyone", 1)
	began := time.Now()
	for i := range 20 {
		write(t, filepath.Join(users, fmt.Sprintf("u%d.yaml", i)), user(fmt.Sprintf("u%d", i), 5))
	}
	h.wantUser("u19", 5)
	changed := testutil.ToFloat64(h.metrics.reloads.WithLabelValues(string(limitfile.Changed)))
	failed := testutil.ToFloat64(h.metrics.reloads.WithLabelValues(string(limitfile.Failed)))
	// The first, one that may have been about to come of the files before, one for all,
	// and as many as fit when the machine is slow.
	if most := 3 + 2*time.Since(began).Seconds()/settle.Seconds(); changed+failed > most {
		t.Errorf("20 new files are %v changes and %v failures, want at most %v", changed, failed, most)
	}
}

// old is long ago to every file system.
var old = time.Now().Add(-time.Hour)

func TestReloadOfUsersFrom(t *testing.T) {
	path, users := layout(t)
	h := start(t, path, slowPoll)
	write(t, path, limitsOf(1)+"users_from: users.d/alice.yaml\n")
	want := path + `:4:13: users_from: there is no file "users.d/alice.yaml"`
	if err := h.Reload(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Reload without the users file = %v, want %s", err, want)
	}
	write(t, filepath.Join(users, "alice.yaml"), user("alice", 2))
	if err := h.Reload(); err != nil {
		t.Errorf("Reload with the users file = %v, want nil", err)
	}
	h.wantUser("alice", 2)
}
