package jobs

import (
	"context"
	"net/url"
	"strings"
)

// What follows saves the adapters of queues lines that would be the same in each.

// JobID is a job's id in the Slots, of a queue whose own ids are unique in a queue and not in all:
// {name}/{queue}/{id}, with the Runner's name and the names' special characters as in a path of a URL.
// WakeEach takes it apart. It may have MaxName bytes: attempts at jobs with longer ones fail.
func (r *Runner) JobID(queue, id string) string {
	return r.jobIDPrefix() + url.PathEscape(queue) + "/" + id
}

func (r *Runner) jobIDPrefix() string { return url.PathEscape(r.cfg.Name) + "/" }

// splitJobID is not ok for the id of another runner.
func (r *Runner) splitJobID(text string) (queue, id string, ok bool) {
	rest, ours := strings.CutPrefix(text, r.jobIDPrefix())
	escaped, id, split := strings.Cut(rest, "/")
	queue, err := url.PathUnescape(escaped)
	return queue, id, ours && split && err == nil
}

// WakeEach is Queue.Wake of a queue that wakes one job at a time, whose ids are JobID's.
func (r *Runner) WakeEach(ctx context.Context, ids []string, wake func(queue, id string) (WakeResult, error)) (map[string]WakeResult, error) {
	results := make(map[string]WakeResult, len(ids))
	for _, name := range ids {
		queue, id, ok := r.splitJobID(name)
		if !ok {
			results[name] = WakeForeign
			continue
		}
		// The clients of some queues do not mind a context.
		if err := ctx.Err(); err != nil {
			return results, err
		}
		result, err := wake(queue, id)
		if err != nil {
			return results, err
		}
		results[name] = result
	}
	return results, nil
}

// EachPage calls read with the numbers of pages, from 1 on, until one has fewer than size rows, an error or the
// context's end. Rows that are taken away meanwhile may have others be left out, until it is called again.
func EachPage(ctx context.Context, size int, read func(page int) (rows int, err error)) error {
	for page := 1; ; page++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if rows, err := read(page); err != nil || rows < size {
			return err
		}
	}
}
