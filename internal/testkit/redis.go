package testkit

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/deploy/redis"
)

// Redis starts redis-server without persistence on a free port and returns it
// with its address. Further arguments are passed on.
func Redis(t testing.TB, args ...string) (*Process, string) {
	t.Helper()
	addr := FreeAddr(t)
	return RedisAt(t, addr, args...), addr
}

// RedisWithUsers starts redis-server with the users of RedisUsers. The default user may do
// everything, for the test itself.
func RedisWithUsers(t testing.TB, args ...string) (*Process, string) {
	t.Helper()
	return Redis(t, append([]string{"--aclfile", RedisUsers(t)}, args...)...)
}

// RedisUsers writes a file of the users of deploy/redis/users.acl, whose passwords are their names, and
// returns its path.
func RedisUsers(t testing.TB) string {
	t.Helper()
	var users strings.Builder
	for line := range strings.Lines(redis.Users) {
		name := strings.Fields(line)[1]
		fmt.Fprintf(&users, "%s on >%s\n", strings.TrimSpace(line), name)
	}
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte(users.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// SecureRedis is how Redis is started, and reached, that wants a certificate of everybody, and has the users of RedisUsers.
type SecureRedis struct {
	Args          []string // of the server, without its port
	CA, Cert, Key string   // files of who connects
}

// NewSecureRedis makes certificates and users until the test ends.
func NewSecureRedis(t testing.TB) SecureRedis {
	t.Helper()
	dir := t.TempDir()
	ca := NewAuthority(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	return SecureRedis{
		Args: []string{"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca.File, "--tls-replication", "yes", "--aclfile", RedisUsers(t)},
		CA:   ca.File, Cert: cert, Key: key,
	}
}

// Client is how to connect to it.
func (s SecureRedis) Client(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(s.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots}
}

// RedisAt starts redis-server at an address: for tests in which it dies and
// returns.
func RedisAt(t testing.TB, addr string, args ...string) *Process {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, args...)
	p := Start(t, nil, lookup(t, "redis-server"), args...)
	p.waitFor(t, "redis-server at "+addr, func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		reply := make([]byte, 5)
		if _, err := conn.Read(reply); err != nil {
			return err
		}
		if !bytes.HasPrefix(reply, []byte("+PONG")) {
			return fmt.Errorf("answered %q", reply)
		}
		return nil
	})
	return p
}
