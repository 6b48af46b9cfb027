package haproxy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// Neither SPOE nor peers has authentication: HAProxy does not start with an address of
// either that other machines can reach, and says what to do.
func TestAddressesBeyondThisMachineAreRefused(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range []string{"SLUICE_PEER", "SLUICE_SPOE", "SLUICE_RUNTIME", "SLUICE_STATS"} {
		for address, local := range map[string]bool{
			"unix@/run/a.sock":              true,
			"/run/a.sock":                   true,
			"127.0.0.1:8079":                true,
			"ipv4@127.0.0.1:8079":           true,
			"localhost:8079":                true,
			"[::1]:8079":                    true,
			"0.0.0.0:8079":                  false,
			":8079":                         false,
			"*:8079":                        false,
			"[::]:8079":                     false,
			"10.0.0.7:8079":                 false,
			"ipv4@10.0.0.7:8079":            false,
			"edge.example:8079":             false,
			"127.0.0.1.example:8079":        false,
			"127.0.0.1:8079,0.0.0.0:8079":   false,
			"unix@/run/a.sock,0.0.0.0:8079": false,
			"fd@7":                          false,
			"":                              false,
		} {
			if variable == "SLUICE_SPOE" && address == "/run/a.sock" {
				continue // which HAProxy takes for a host's name
			}
			cmd := exec.Command(proctest.HAProxyPath(t), "-c", "-f", "haproxy.cfg")
			cmd.Dir = here
			cmd.Env = append(os.Environ(), variable+"="+address)
			out, err := cmd.CombinedOutput()
			want := variable + "=" + address + " can be reached from other machines, and "
			if local && err != nil || !local && (err == nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), ": use unix@/path, or 127.0.0.1:PORT")) {
				t.Errorf("haproxy -c with %s=%s: %v, %s", variable, address, err, out)
			}
		}
	}
}

// The agent reaches HAProxy's sockets as one of their group, which is the folder's.
func TestSocketsAreTheirGroups(t *testing.T) {
	dir, err := os.MkdirTemp("", "sluice") // short, for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	group := os.Getgid()
	if os.Getuid() == 0 {
		group = 65534 // who may give the folder to any group gives it to another one
	}
	if err := os.Chown(dir, -1, group); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, os.ModeSetgid|0o770); err != nil {
		t.Fatal(err)
	}
	peers, runtime := filepath.Join(dir, "peers.sock"), filepath.Join(dir, "runtime.sock")
	newRig(t, setup{Config: Config{Peer: "unix@" + peers, Runtime: runtime}})
	for _, socket := range []string{peers, runtime} {
		var info os.FileInfo
		proctest.Eventually(t, "the socket is there", func() error { // HAProxy may serve clients before
			info, err = os.Stat(socket)
			return err
		})
		if got := int(info.Sys().(*syscall.Stat_t).Gid); info.Mode().Perm() != 0o660 || got != group {
			t.Errorf("%s has mode %v and group %d, want 0660 and its folder's group, %d", socket, info.Mode(), got, group)
		}
	}
}
