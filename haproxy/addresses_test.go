package haproxy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Neither SPOE nor peers has authentication: HAProxy does not start with an address of
// either that other machines can reach, and says what to do.
func TestAddressesBeyondThisMachineAreRefused(t *testing.T) {
	t.Parallel()
	check := func(variable, address string, local bool) {
		cmd := exec.Command(testkit.HAProxyPath(t), "-c", "-f", "haproxy.cfg")
		cmd.Env = append(os.Environ(), variable+"="+address)
		out, err := cmd.CombinedOutput()
		want := variable + "=" + address + " can be reached from other machines, and "
		if local && err != nil || !local && (err == nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), ": use unix@/path, or 127.0.0.1:PORT")) {
			t.Errorf("haproxy -c with %s=%s: %v, %s", variable, address, err, out)
		}
	}
	for _, address := range []string{"unix@/run/a.sock", "/run/a.sock", "127.0.0.1:8079", "ipv4@127.0.0.1:8079", "localhost:8079", "[::1]:8079"} {
		check("SLUICE_PEER", address, true)
	}
	for _, address := range []string{
		"0.0.0.0:8079", ":8079", "*:8079", "[::]:8079", "10.0.0.7:8079", "ipv4@10.0.0.7:8079", "edge.example:8079", "127.0.0.1.example:8079",
		"127.0.0.1:8079,0.0.0.0:8079", "unix@/run/a.sock,0.0.0.0:8079", "fd@7", "",
	} {
		check("SLUICE_PEER", address, false)
	}
	for _, variable := range []string{"SLUICE_SPOE", "SLUICE_RUNTIME", "SLUICE_STATS", "SLUICE_COSTS"} {
		check(variable, "127.0.0.1:8079", true)
		check(variable, "10.0.0.7:8079", false)
	}
}

// The agent reaches HAProxy's sockets as one of their group, which is the folder's.
func TestSocketsAreTheirGroups(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sluice") // short, for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	group := os.Getgid()
	if os.Getuid() == 0 {
		group = 65534 // root may give the folder to any group
	}
	if err := os.Chown(dir, -1, group); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, os.ModeSetgid|0o770); err != nil {
		t.Fatal(err)
	}
	peers, runtime := filepath.Join(dir, "peers.sock"), filepath.Join(dir, "runtime.sock")
	newRig(t, setup{Config: Config{Env: []string{"SLUICE_PEER=unix@" + peers, "SLUICE_RUNTIME=" + runtime}}})
	for _, socket := range []string{peers, runtime} {
		var info os.FileInfo
		testkit.Eventually(t, "the socket is there", func() error { // HAProxy may serve clients before
			info, err = os.Stat(socket)
			return err
		})
		if got := int(info.Sys().(*syscall.Stat_t).Gid); info.Mode().Perm() != 0o660 || got != group {
			t.Errorf("%s has mode %v and group %d, want 0660 and its folder's group, %d", socket, info.Mode(), got, group)
		}
	}
}
