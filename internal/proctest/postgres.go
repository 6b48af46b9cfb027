package proctest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/pgserver"
)

// Postgres starts PostgreSQL with an empty database on a free port and returns it
// with its connection string. Settings, such as "fsync=on", are added to those of a
// test's server: see PostgresData.Start.
func Postgres(t testing.TB, settings ...string) (*Process, string) {
	t.Helper()
	data := InitPostgres(t)
	return data.Start(t, settings...), data.DSN
}

// PostgresData is the directory of a PostgreSQL server that can be started more than
// once: for tests in which it dies and returns.
type PostgresData struct {
	DSN string // of the superuser postgres, who needs no password

	bin, dir, addr string
}

// InitPostgres makes a directory for a server, with the newest PostgreSQL there is.
// It is gone when the test ends.
func InitPostgres(t testing.TB) *PostgresData {
	t.Helper()
	dir, err := os.MkdirTemp("", "postgres-") // not in t.TempDir(), which no other user can enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &PostgresData{bin: postgresBin(t), dir: dir, addr: FreeAddr(t)}
	d.DSN = fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", d.addr)
	if uid, gid, ok := postgresUser(t); ok {
		if err := os.Chown(d.dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	args := d.command(t, "initdb", "--pgdata="+d.dir, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/" // the server's user may not be allowed where the test runs
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	return d
}

// Start starts the server and waits until it answers. It is set up as it comes,
// except that it does not wait for the disk: "fsync=on" makes it. A server that was
// killed recovers from its log, as it would after a crash.
func (d *PostgresData) Start(t testing.TB, settings ...string) *Process {
	t.Helper()
	host, port, err := net.SplitHostPort(d.addr)
	if err != nil {
		t.Fatal(err)
	}
	args := d.command(t, "postgres", "-D", d.dir)
	for _, s := range append([]string{"listen_addresses=" + host, "port=" + port, "unix_socket_directories=", "fsync=off"}, settings...) {
		args = append(args, "-c", s)
	}
	p := Start(t, nil, args[0], args[1:]...)
	p.Name = "postgres at " + d.addr
	t.Cleanup(func() { // before Stop, whose SIGTERM waits for the clients to leave
		_ = p.Signal(syscall.SIGINT)
		_ = p.Wait()
	})
	ready := d.command(t, "pg_isready", "--host="+host, "--port="+port, "--timeout=1")
	p.waitFor(t, p.Name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, ready[0], ready[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
	return p
}

// command is a program of PostgreSQL with its arguments, as the user postgres if the
// test runs as root, whom the server refuses.
func (d *PostgresData) command(t testing.TB, program string, args ...string) []string {
	t.Helper()
	command := append([]string{filepath.Join(d.bin, program)}, args...)
	uid, gid, ok := postgresUser(t)
	if !ok {
		return command
	}
	// The kernel forgets who ends with whom when a process changes its user, so this
	// says it once more.
	return append([]string{lookup(t, "setpriv"), "--reuid=" + strconv.Itoa(uid), "--regid=" + strconv.Itoa(gid),
		"--clear-groups", "--pdeathsig=KILL", "--"}, command...)
}

// postgresUser is the user that PostgreSQL runs as, if that is not the test's own.
func postgresUser(t testing.TB) (uid, gid int, ok bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	uid, gid, err := pgserver.Account()
	if err != nil {
		t.Fatal(err)
	}
	return uid, gid, true
}

func postgresBin(t testing.TB) string {
	t.Helper()
	dir, err := pgserver.Programs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
