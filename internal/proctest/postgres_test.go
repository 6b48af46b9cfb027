package proctest

import (
	"net/url"
	"testing"
)

func TestPostgresReturnsAfterItWasKilled(t *testing.T) {
	data := InitPostgres(t)
	u, err := url.Parse(data.DSN)
	if err != nil {
		t.Fatal(err)
	}
	for _, fsync := range []string{"fsync=off", "fsync=on"} {
		p := data.Start(t, fsync)
		if err := dial(u.Host); err != nil {
			t.Fatalf("dial(%s) = %v", u.Host, err)
		}
		p.Kill()
		if p.Running() {
			t.Error("Running() after Kill() = true")
		}
		if err := dial(u.Host); err == nil {
			t.Error("the address still answers after Kill()")
		}
	}
}
