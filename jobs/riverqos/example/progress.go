package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

type tally struct {
	jobs  int // of each user
	since time.Time
	mu    sync.Mutex
	of    map[string]*userTally
}

type userTally struct {
	running, most, done int
	first               time.Duration // until the first job began
}

func newTally(jobs int) *tally {
	t := &tally{jobs: jobs, since: time.Now(), of: map[string]*userTally{}}
	for _, user := range users {
		t.of[user] = &userTally{}
	}
	return t
}

func (t *tally) jobBegan(user string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.of[user]
	if u.most == 0 {
		u.first = now.Sub(t.since)
	}
	u.running++
	u.most = max(u.most, u.running)
}

func (t *tally) jobEnded(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[user].running--
	t.of[user].done++
}

// drawn is how many jobs of a user are drawn one by one; of more, numbers are written.
const drawn = 24

// draw draws the jobs of each user: those that are done, run and wait.
func (t *tally) draw() (text string, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	done = true
	for _, user := range users {
		u := t.of[user]
		jobs := strings.Repeat("■", u.done) + strings.Repeat("▶", u.running) + strings.Repeat("·", t.jobs-u.done-u.running)
		if t.jobs > drawn {
			jobs = fmt.Sprintf("%d done, %d run, %d wait", u.done, u.running, t.jobs-u.done-u.running)
		}
		text += fmt.Sprintf("%-28s ", jobs)
		done = done && u.done == t.jobs
	}
	return strings.TrimRight(text, " "), done
}

// showProgress writes a line for each change, until all is done or the context ends.
func (w *worker) showProgress(ctx context.Context, out io.Writer) error {
	head := ""
	for _, user := range users {
		tier, err := w.tiers.Tier(ctx, user)
		if err != nil {
			return err
		}
		head += fmt.Sprintf(" %-28s", fmt.Sprintf("%s (%s, %d at a time)", user, tier.Name, tier.Limits.Total))
	}
	fmt.Fprintf(out, "        %s\n", strings.TrimRight(head, " "))
	for last := ""; ; {
		text, done := w.tally.draw()
		if text != last {
			fmt.Fprintf(out, "%5.1fs   %s\n", time.Since(w.tally.since).Seconds(), text)
		}
		if last = text; done {
			return w.writeSummary(ctx, out)
		}
		select {
		case <-ctx.Done():
			fmt.Fprintln(out, "\nstopped")
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *worker) writeSummary(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "\ndone")
	for _, user := range users {
		tier, err := w.tiers.Tier(ctx, user)
		if err != nil {
			return err
		}
		u := w.tally.of[user] // no job changes it any more
		fmt.Fprintf(out, "At most %d of %s's jobs ran at a time, of %d that may. The first began %.2f s after the start.\n",
			u.most, user, tier.Limits.Total, u.first.Seconds())
	}
	var attempts int
	if err := w.pool.QueryRow(ctx, "SELECT max(attempt) FROM "+w.schema+".river_job").Scan(&attempts); err != nil {
		return err
	}
	fmt.Fprintf(out, "Waiting for a slot costs no attempt: the most that a job spent is %d.\n", attempts)
	return nil
}
