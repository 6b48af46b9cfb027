package testkit

import (
	"testing"
)

// Postgres runs PostgreSQL with an empty database until the test ends. Settings, such as
// "fsync=on", are added to those of InitPostgres.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	// Not a port that the kernel gives to who names none: a server that is killed and run again
	// might find somebody else on it.
	server, err := InitPostgres(FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if err := server.Run(settings...); err != nil {
		t.Fatal(err)
	}
	return server
}
