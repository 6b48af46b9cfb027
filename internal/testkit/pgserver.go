package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PostgresServer is one that listens on 127.0.0.1 alone and lets everybody there in.
type PostgresServer struct {
	DSN string // of the superuser postgres and the database of that name

	programs, dir string // where the programs are, and the data
	host, port    string
	attributes    *syscall.SysProcAttr // of its processes
	running       *exec.Cmd            // nil while it does not run
	log           bytes.Buffer         // of the server; to be read when it has ended
}

// starting bounds how long the server may take until it answers.
const starting = 30 * time.Second

// StartPostgres makes an empty server on a free port, and runs it.
func StartPostgres() (*PostgresServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	s, err := InitPostgres(l.Addr().String())
	if err != nil {
		return nil, err
	}
	// No sooner: to make a server takes seconds, in which the kernel may give its port to anybody else.
	l.Close()
	if err := s.Run(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// InitPostgres makes an empty server, which does not run yet. Stop deletes it.
func InitPostgres(addr string) (_ *PostgresServer, err error) {
	// Ctrl-C is for us: we end it when we are done, and the kernel does should we be killed.
	s := &PostgresServer{attributes: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	if s.host, s.port, err = net.SplitHostPort(addr); err != nil {
		return nil, err
	}
	s.DSN = fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)
	if s.programs, err = findPrograms(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 { // whom the server refuses
		if err := s.changeUser(); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
	}
	initdb := s.command("initdb", "--pgdata="+s.dir, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, out), s.Stop())
	}
	return s, nil
}

// Run runs the server, and waits until it answers. It does not wait for the disk, unless a
// setting "fsync=on" makes it. One that was killed recovers from its log, as after a crash.
func (s *PostgresServer) Run(settings ...string) error {
	var args []string
	for _, setting := range append([]string{"listen_addresses=" + s.host, "port=" + s.port, "unix_socket_directories=", "fsync=off", "max_connections=200"}, settings...) {
		args = append(args, "-c", setting)
	}
	cmd := s.command("postgres", append([]string{"-D", s.dir}, args...)...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.running = cmd
	ctx, cancel := context.WithTimeout(context.Background(), starting)
	defer cancel()
	for {
		err := exec.CommandContext(ctx, filepath.Join(s.programs, "pg_isready"), "--host="+s.host, "--port="+s.port, "--timeout=1").Run()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			s.end(syscall.SIGKILL)
			return fmt.Errorf("PostgreSQL does not answer: %w\n%s", err, &s.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Processes are those that the server consists of now: the one that was started, and its children.
func (s *PostgresServer) Processes() ([]int, error) {
	pid := s.running.Process.Pid
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, fmt.Errorf("processes of PostgreSQL: %w", err)
	}
	pids := []int{pid}
	for field := range strings.FieldsSeq(string(list)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("processes of PostgreSQL: %w", err)
		}
		pids = append(pids, child)
	}
	return pids, nil
}

// Kill ends the server as a crash does. It can be run again.
func (s *PostgresServer) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server, clients or not, and deletes its directory.
func (s *PostgresServer) Stop() error {
	s.end(syscall.SIGINT) // a fast shutdown
	return os.RemoveAll(s.dir)
}

func (s *PostgresServer) end(how syscall.Signal) {
	running := s.running
	if running == nil {
		return
	}
	s.running = nil
	_ = running.Process.Signal(how)
	kill := time.AfterFunc(5*time.Second, func() { _ = running.Process.Kill() })
	_ = running.Wait()
	kill.Stop()
}

// command is a program of PostgreSQL's, as the server's user, who may not be allowed where we run.
func (s *PostgresServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, program), args...)
	cmd.SysProcAttr, cmd.Dir = s.attributes, "/"
	return cmd
}

// changeUser makes the programs run, and the directory belong to, the user postgres.
func (s *PostgresServer) changeUser() error {
	account, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("PostgreSQL does not run as root: %w: as root 'apt-get install postgresql'", err)
	}
	uid, uidErr := strconv.ParseUint(account.Uid, 10, 31)
	gid, gidErr := strconv.ParseUint(account.Gid, 10, 31)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return err
	}
	s.attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, int(uid), int(gid))
}

// findPrograms is the directory of PostgreSQL's programs: that of SLUICE_POSTGRES, or of the
// newest version. Debian has one for each version, outside of PATH.
func findPrograms() (dir string, err error) {
	if dir := os.Getenv("SLUICE_POSTGRES"); dir != "" {
		return dir, nil
	}
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
