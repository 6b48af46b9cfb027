package testkit

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// PgBouncer runs PgBouncer in transaction mode before a server of Postgres until the test
// ends, with fewer connections to it than clients have to PgBouncer. It returns the DSN of
// the server's through it, for a pgx that keeps no prepared statements, which PgBouncer before 1.21 loses.
func PgBouncer(t testing.TB, dsn string) string {
	t.Helper()
	to, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	addr := FreeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	// auth_type=any: who connects has no password, and is the user of the line in databases.
	config := fmt.Sprintf("[databases]\n* = host=%s port=%s user=%s\n[pgbouncer]\nlisten_addr=%s\nlisten_port=%s\nunix_socket_dir=\nauth_type=any\n"+
		"pool_mode=transaction\ndefault_pool_size=6\nmax_client_conn=500\n", to.Hostname(), to.Port(), to.User.Username(), host, port)
	file := filepath.Join(t.TempDir(), "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{file}
	if os.Geteuid() == 0 { // whom it refuses
		args = append([]string{"--user=postgres"}, args...)
	}
	p := Start(t, nil, lookup(t, "pgbouncer"), args...)
	p.waitFor(t, "pgbouncer at "+addr, func() error { return dial(addr) })
	to.Host = addr
	query := to.Query()
	query.Set("default_query_exec_mode", "exec")
	to.RawQuery = query.Encode()
	return to.String()
}
