package mixed

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestEveryKindHappens(t *testing.T) {
	server := httptest.NewUnstartedServer(Origin())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const rounds = 8
	tally, err := Run(ctx, server.Listener.Addr().String(), []string{"alice", "bob"}, rounds*len(kinds))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Kinds() {
		if got := tally.Kinds[name]; got != rounds {
			t.Errorf("%q happened %d times, want %d", name, got, rounds)
		}
	}
	for _, status := range []int{101, 200, 400, 503} {
		if tally.Statuses[status] == 0 {
			t.Errorf("answers by status = %v, want some %d", tally.Statuses, status)
		}
	}
}

func TestRunSaysThatNobodyListens(t *testing.T) {
	if _, err := Run(t.Context(), "127.0.0.1:1", []string{"alice"}, 1); err == nil {
		t.Error("Run with nobody at the address: no error")
	}
}
