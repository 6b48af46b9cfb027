package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/pgserver"
)

func TestTheExampleRunsToItsEnd(t *testing.T) {
	server, err := pgserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	pool, err := pgxpool.New(t.Context(), server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := prepare(t.Context(), pool, newSchema()); err != nil { // and then it was killed
		t.Fatal(err)
	}
	var out strings.Builder
	if err := runExample(t.Context(), &out, options{database: server.DSN, jobs: 5, each: 50 * time.Millisecond}); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	if got, want := out.String(), "■■■■■                        ■■■■■\n\n\ndone\nAt most 1 of fred's jobs ran at a time, as many as example/limits.yaml allows. The first began "; !strings.Contains(got, want) {
		t.Errorf("it wrote\n%s\nwant in it\n%s", got, want)
	}
	if want := "That the others waited cost no attempt: each job spent 1.\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("it wrote\n%s\nwant an end of\n%s", &out, want)
	}
	var schemas int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'sluice%'").Scan(&schemas); err != nil || schemas != 1 {
		t.Errorf("%d schemas are left, %v, want only the one of the run that was killed", schemas, err)
	}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) == 3 && (strings.Contains(f[1], "▶▶") || strings.Contains(f[2], "▶▶▶▶")) {
			t.Errorf("more than one of fred's or three of paula's run: %s", line)
		}
	}
}

func TestTheExampleTellsWhatItSaw(t *testing.T) {
	var seen tally
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	seen.inserted(at)
	for _, now := range []time.Duration{1500 * time.Millisecond, 2 * time.Second, 3 * time.Second} {
		seen.jobBegan("fred", at.Add(now))
		if now == 2*time.Second {
			seen.jobEnded("fred")
		}
	}
	if got, want := seen.userTally("fred"), (user{running: 2, most: 2, first: 1500 * time.Millisecond}); got != want {
		t.Errorf("user(fred) = %+v, want %+v", got, want)
	}
	for _, c := range []struct {
		most, limit int
		want        string
	}{
		{2, 1, "MORE than the 1 that example/limits.yaml allows"},
		{2, 3, "fewer than the 3 that example/limits.yaml allows"},
		{3, 3, "as many as example/limits.yaml allows"},
	} {
		if got := compareWithLimit(c.most, c.limit); got != c.want {
			t.Errorf("judge(%d, %d) = %q, want %q", c.most, c.limit, got, c.want)
		}
	}
}

func TestTheExampleEndsWhenItIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{word: "▶", found: cancel}
	if err := runExample(ctx, w, options{jobs: 3, each: time.Hour}); err != nil {
		t.Fatalf("run() = %v\n%s", err, w)
	}
	if !strings.HasSuffix(w.String(), "\nstopped\n") {
		t.Errorf("it wrote\n%s\nwant an end of stopped", w)
	}
}

// watch says when a word is written.
type watch struct {
	strings.Builder
	word  string
	found func()
}

func (w *watch) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.word) {
		w.found()
	}
	return w.Builder.Write(b)
}
