package testkit

import (
	"net/url"
	"testing"
)

func TestPostgresReturnsAfterItWasKilled(t *testing.T) {
	server := Postgres(t)
	u, err := url.Parse(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := dial(u.Host); err != nil {
			t.Fatalf("dial(%s) = %v", u.Host, err)
		}
		server.Kill()
		if err := dial(u.Host); err == nil {
			t.Error("the address still answers after Kill()")
		}
		if err := server.Run("fsync=on"); err != nil {
			t.Fatal(err)
		}
	}
}
