// Package pgserver starts a PostgreSQL server of one's own, for the example and the
// tests. Nothing of it is kept.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Server is a running one.
type Server struct {
	DSN string // of the superuser postgres and the database of that name

	cmd *exec.Cmd
	dir string
}

// starting bounds how long the server may take until it answers.
const starting = 30 * time.Second

// Start makes an empty server and waits until it answers. It listens on a free port of
// 127.0.0.1 alone, lets everybody there in, and does not wait for the disk.
func Start() (*Server, error) {
	bin, err := Programs()
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if s.dir, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us: we end it when we are done
	if os.Geteuid() == 0 {                      // whom the server refuses
		if err := s.changeOwner(attr); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
	}
	initdb := exec.Command(filepath.Join(bin, "initdb"), "--pgdata="+s.dir, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = attr, "/"
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, out), s.Stop())
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", s.dir, "-c", "listen_addresses="+host, "-c", "port="+port,
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=200")
	cmd.SysProcAttr, cmd.Dir = attr, "/"
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.cmd = cmd
	s.DSN = fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
	if err := s.waitUntilReady(filepath.Join(bin, "pg_isready"), host, port); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Stop ends the server, clients or not, and deletes its directory.
func (s *Server) Stop() error {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGINT) // a fast shutdown
		kill := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
		_ = s.cmd.Wait()
		kill.Stop()
	}
	return os.RemoveAll(s.dir)
}

// changeOwner makes the directory that of the user whom the server is to run as.
func (s *Server) changeOwner(attr *syscall.SysProcAttr) error {
	uid, gid, err := Account()
	if err != nil {
		return err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // they are those of a user
	return os.Chown(s.dir, uid, gid)
}

// Account is the user postgres: the server does not run as root.
func Account() (uid, gid int, err error) {
	account, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("PostgreSQL does not run as root: %w: as root 'apt-get install postgresql'", err)
	}
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	return uid, gid, errors.Join(uidErr, gidErr)
}

func (s *Server) waitUntilReady(ready, host, port string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), starting)
	defer cancel()
	for ctx.Err() == nil {
		if err = exec.CommandContext(ctx, ready, "--host="+host, "--port="+port, "--timeout=1").Run(); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("PostgreSQL does not answer: %w", err)
}

// Programs is the directory of the newest PostgreSQL's programs. Debian has one for each
// version, outside of PATH.
func Programs() (dir string, err error) {
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	newest := 0
	for _, path := range all {
		bin := filepath.Dir(path)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(bin))); err == nil && v > newest {
			newest, dir = v, bin
		}
	}
	if dir != "" {
		return dir, nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("PostgreSQL is not installed: run 'scripts/setup postgresql', or as root 'apt-get install postgresql'")
	}
	return filepath.Dir(path), nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
