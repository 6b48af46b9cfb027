package daemon

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSocket(t *testing.T) {
	t.Run("a stale socket is replaced", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		old.SetUnlinkOnClose(false)
		_ = old.Close()
		l, err := Socket("SPOE", "unix:"+path)
		if err != nil {
			t.Fatalf("Socket() = %v", err)
		}
		defer l.Close()
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != socketMode {
			t.Errorf("the socket's mode is %v (%v), want %o", info.Mode(), err, socketMode)
		}
	})
	t.Run("a socket in use is not", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := Socket("SPOE", "unix:"+path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Socket("SPOE", "unix:"+path); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("Socket() = %v, want EADDRINUSE", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the socket in use is gone: %v", err)
		}
	})
	t.Run("nor is a file of another kind", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		want := "listen for SPOE: " + path + " exists and is not a socket"
		if _, err := Socket("SPOE", "unix:"+path); err == nil || err.Error() != want {
			t.Errorf("Socket() = %v, want %s", err, want)
		}
		if b, _ := os.ReadFile(path); string(b) != "precious" {
			t.Errorf("the file holds %q now", b)
		}
	})
	t.Run("the socket goes with its listener", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := Socket("SPOE", "unix:"+path)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stat = %v, want not to exist", err)
		}
	})
	t.Run("an address that makes no sense", func(t *testing.T) {
		if _, err := Socket("SPOE", "nowhere"); err == nil || !strings.HasPrefix(err.Error(), "listen for SPOE: ") {
			t.Errorf("Socket() = %v, want an error that names the operation", err)
		}
	})
}
