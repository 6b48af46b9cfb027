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

// showProgress writes what runs, until all is done or the context ends. On a terminal it is a
// table that changes, otherwise a line for each change.
func (w *worker) showProgress(ctx context.Context, out io.Writer, o options) error {
	terminal := isTerminal(out)
	began := time.Now()
	var heads []any
	for _, user := range users {
		tier, err := w.tiers.Tier(ctx, user)
		if err != nil {
			return err
		}
		heads = append(heads, fmt.Sprintf("%s (%s, %d at a time)", user, tier.Name, tier.Limits.Total))
	}
	fmt.Fprintf(out, "         %-28s %s\n", heads...)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for last := ""; ; {
		counts, err := w.countJobs(ctx)
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(out, "\nstopped")
			return nil
		case err != nil:
			return err
		}
		text := fmt.Sprintf("%-28s %s", drawJobs(counts["fred"]), drawJobs(counts["paula"]))
		switch at := time.Since(began).Seconds(); {
		case terminal:
			fmt.Fprintf(out, "\r%5.1fs   %s ", at, text)
		case text != last:
			fmt.Fprintf(out, "%5.1fs   %s\n", at, text)
		}
		last = text
		if counts["fred"].done+counts["paula"].done == 2*o.jobs {
			return w.writeSummary(ctx, out)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// writeSummary ends the table with what was seen.
func (w *worker) writeSummary(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "\n\ndone")
	for _, name := range users {
		tier, err := w.tiers.Tier(ctx, name)
		if err != nil {
			return err
		}
		u := w.tally.userTally(name)
		fmt.Fprintf(out, "At most %d of %s's jobs ran at a time, %s. The first began %.2f s after the insert.\n", u.most, name, compareWithLimit(u.most, tier.Limits.Total), u.first.Seconds())
	}
	var attempts int
	if err := w.pool.QueryRow(ctx, "SELECT max(attempt) FROM "+w.schema+".river_job").Scan(&attempts); err != nil {
		return err
	}
	if attempts == 1 {
		fmt.Fprintln(out, "That the others waited cost no attempt: each job spent 1.")
	} else {
		fmt.Fprintf(out, "A job spent %d attempts.\n", attempts)
	}
	return nil
}

// compareWithLimit compares how many jobs ran at a time with how many may.
func compareWithLimit(most, limit int) string {
	switch {
	case most > limit:
		return fmt.Sprintf("MORE than the %d that example/limits.yaml allows", limit)
	case most < limit:
		return fmt.Sprintf("fewer than the %d that example/limits.yaml allows", limit)
	}
	return "as many as example/limits.yaml allows"
}

// drawJobs draws a user's jobs: those that are done, run and wait.
func drawJobs(c count) string {
	return strings.Repeat("■", c.done) + strings.Repeat("▶", c.running) + strings.Repeat("·", c.waiting)
}

// countJobs asks who has a slot: River's table says a little later that a job has ended.
func (w *worker) countJobs(ctx context.Context) (map[string]count, error) {
	counts := map[string]count{}
	for _, user := range users {
		var c count
		err := w.pool.QueryRow(ctx, `SELECT
				count(*) FILTER (WHERE state = 'running' AND metadata->>'sluice:passed' IS NULL),
				count(*) FILTER (WHERE state IN ('available', 'scheduled')),
				count(*) FILTER (WHERE state = 'completed' OR state = 'running' AND metadata->>'sluice:passed' IS NOT NULL)
			FROM `+w.schema+`.river_job WHERE args->>'user' = $1`, user).Scan(&c.running, &c.waiting, &c.done)
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
