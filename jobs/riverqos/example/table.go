package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// count is what there is of a user's jobs.
type count struct{ running, waiting, done int }

// show writes what runs, until all is done or the context ends. On a terminal it is a
// table that changes, otherwise a line for each change.
func (w *worker) show(ctx context.Context, out io.Writer, o options) error {
	terminal := isTerminal(out)
	began := time.Now()
	fmt.Fprintf(out, "%6s   %-28s %s\n", "", "fred (free, 1 at a time)", "paula (pro, 3 at a time)")
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	most := map[string]int{} // that ran at a time
	for last := ""; ; {
		counts, err := w.count(ctx)
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(out, "\nstopped")
			return nil
		case err != nil:
			return err
		}
		for user, c := range counts {
			most[user] = max(most[user], c.running)
		}
		text := fmt.Sprintf("%-28s %s", bar(counts["fred"]), bar(counts["paula"]))
		switch at := time.Since(began).Seconds(); {
		case terminal:
			fmt.Fprintf(out, "\r%5.1fs   %s ", at, text)
		case text != last:
			fmt.Fprintf(out, "%5.1fs   %s\n", at, text)
		}
		last = text
		if counts["fred"].done+counts["paula"].done == 2*o.jobs {
			return w.tell(ctx, out, most)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// tell ends the table: what it showed.
func (w *worker) tell(ctx context.Context, out io.Writer, most map[string]int) error {
	var attempts int
	if err := w.pool.QueryRow(ctx, "SELECT max(attempt) FROM "+schema+".river_job").Scan(&attempts); err != nil {
		return err
	}
	fmt.Fprintln(out, "\n\ndone")
	fmt.Fprintf(out, "At a time, at most %d of fred's jobs ran and %d of paula's: what example/limits.yaml gives them.\n", most["fred"], most["paula"])
	fmt.Fprintf(out, "The others waited, at the cost of no attempt (each job spent %d), and neither user waited for the other.\n", attempts)
	return nil
}

// bar draws a user's jobs: those that are done, run and wait.
func bar(c count) string {
	return strings.Repeat("■", c.done) + strings.Repeat("▶", c.running) + strings.Repeat("·", c.waiting)
}

// count asks who has a slot: River's table says a little later that a job has ended.
func (w *worker) count(ctx context.Context) (map[string]count, error) {
	counts := map[string]count{}
	for _, user := range users {
		var c count
		err := w.pool.QueryRow(ctx, `SELECT
				count(*) FILTER (WHERE state = 'running' AND metadata->>'sluice:passed' IS NULL),
				count(*) FILTER (WHERE state IN ('available', 'scheduled')),
				count(*) FILTER (WHERE state = 'completed' OR state = 'running' AND metadata->>'sluice:passed' IS NOT NULL)
			FROM `+schema+`.river_job WHERE args->>'user' = $1`, user).Scan(&c.running, &c.waiting, &c.done)
		if err != nil {
			return nil, err
		}
		counts[user] = c
	}
	return counts, nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
