package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"

	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

func TestTheExampleRunsToItsEnd(t *testing.T) {
	server, err := testkit.StartPostgres()
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
	if _, err := newWorker(pool, pool, 0).prepare(t.Context()); err != nil { // and then it was killed
		t.Fatal(err)
	}
	t.Setenv("FAIRNESS_PRO_LIMIT", "2") // paula's tier by the table; the file says 3
	var out strings.Builder
	if err := runExample(t.Context(), &out, options{database: server.DSN, jobs: 5, each: 50 * time.Millisecond}); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	if got, want := out.String(), "■■■■■                        ■■■■■\n\ndone\nAt most 1 of fred's jobs ran at a time, of 1 that may. The first began "; !strings.Contains(got, want) {
		t.Errorf("it wrote\n%s\nwant in it\n%s", got, want)
	}
	if want := "of paula's jobs ran at a time, of 2 that may."; !strings.Contains(out.String(), want) {
		t.Errorf("it wrote\n%s\nwant in it\n%s", &out, want)
	}
	if want := "Waiting for a slot costs no attempt: the most that a job spent is 1.\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("it wrote\n%s\nwant an end of\n%s", &out, want)
	}
	var schemas int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'sluice%'").Scan(&schemas); err != nil || schemas != 1 {
		t.Errorf("%d schemas are left, %v, want only the one of the run that was killed", schemas, err)
	}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) == 3 && (strings.Contains(f[1], "▶▶") || strings.Contains(f[2], "▶▶▶")) {
			t.Errorf("more than one of fred's or two of paula's run: %s", line)
		}
	}
}

func TestTheExampleCountsWhatRuns(t *testing.T) {
	seen := newTally(4)
	for _, after := range []time.Duration{1500 * time.Millisecond, 2 * time.Second, 3 * time.Second} {
		seen.jobBegan("fred", seen.since.Add(after))
		if after == 2*time.Second {
			seen.jobEnded("fred")
		}
	}
	if got, want := *seen.of["fred"], (userTally{running: 2, most: 2, done: 1, first: 1500 * time.Millisecond}); got != want {
		t.Errorf("fred's = %+v, want %+v", got, want)
	}
	if got, done := seen.draw(); got != "■▶▶·                         ····" || done {
		t.Errorf("draw() = %q, %t", got, done)
	}
	seen.jobs = 500
	if got, done := seen.draw(); got != "1 done, 2 run, 497 wait      0 done, 0 run, 500 wait" || done {
		t.Errorf("draw() of many = %q, %t", got, done)
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

// An operator who asks it is told who waits, and why.
func TestTheExampleTellsOperators(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address := testkit.FreeAddr(t)
	ended := make(chan error, 1)
	var out strings.Builder
	go func() { ended <- runExample(ctx, &out, options{jobs: 5, each: time.Hour, listen: address}) }()
	read := func(path string, answer any) error {
		r, err := http.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", path, r.Status)
		}
		return json.NewDecoder(r.Body).Decode(answer)
	}
	testkit.Eventually(t, "both users' jobs run and wait", func() error {
		var list workerapi.UserList
		if err := read("/jobs", &list); err != nil {
			return err
		}
		got := ""
		for _, user := range list.Users {
			got += fmt.Sprintf("%s %s: %d run, %d wait, held %+v; ", user.User, user.Tier, len(user.Running), user.Waiting, user.Held)
		}
		if want := "fred free: 1 run, 4 wait, held &{Service: Max:1}; paula pro: 3 run, 2 wait, held &{Service: Max:3}; "; got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		var why workerapi.Why
		if err := read(fmt.Sprintf("/jobs/%d", list.Users[0].Oldest.ID), &why); err != nil {
			return err
		}
		if want := "Its user's slots are taken: 1 of 1 in all; it is number 1 in their line."; why.Reason != want {
			return fmt.Errorf("the reason is %q, want %q", why.Reason, want)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil || !strings.Contains(out.String(), "sluice up --jobs-worker "+address) {
		t.Errorf("run() = %v\n%s", err, &out)
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
