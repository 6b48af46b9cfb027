// Package top shows the users with most, one list after the other.
package top

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/apiclient"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// Options are what is listed, and how.
type Options struct {
	Sort     api.Sort      // who comes first
	N        int           // users in a list; 1 to api.MaxTop
	Interval time.Duration // from one list to the next
	Once     bool          // one list, and no more
	JSON     bool          // an object a line for each list
}

// Run shows lists until ctx ends. In a terminal each is drawn over the one before.
func Run(ctx context.Context, a *apiclient.Client, o Options, stdout, stderr io.Writer) error {
	var d display = &tables{w: stdout, errs: stderr, json: o.JSON}
	switch f, ok := stdout.(*os.File); {
	case !ok || !terminal.IsTerminal(f) || o.JSON:
	case o.Once:
		d = &tables{w: stdout, errs: stderr, people: true}
	default:
		d = &screen{w: f, size: func() (int, int) { return terminal.TerminalSize(f) }}
	}
	return o.follow(ctx, func(ctx context.Context) (*picture, error) { return readPicture(ctx, a, o.Sort, o.N) }, d)
}

// display shows lists. The first call is showPicture.
type display interface {
	showPicture(*picture) error
	// showOutage says that there is no answer, for a reason; the last one came at a time.
	showOutage(last time.Time, why error) error
	finish() error
}

// follow shows one list after the other.
func (o Options) follow(ctx context.Context, ask func(context.Context) (*picture, error), d display) error {
	var last time.Time // zero: there was no answer yet
	for {
		p, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			last = time.Now()
			err = d.showPicture(p)
		case !last.IsZero():
			err = d.showOutage(last, err)
		}
		if ctx.Err() == nil && (err != nil || o.Once) {
			return err
		}
		if !apiclient.WaitFor(ctx, o.Interval) {
			if last.IsZero() {
				return nil
			}
			return d.finish()
		}
	}
}

// picture is what polygen said of the users with most.
type picture struct {
	api.Users
	Ranked []ranked `json:"users"` // instead of those of Users
}

// ranked is a user and the limit that the user is nearest to.
type ranked struct {
	api.Summary
	Nearest *nearest `json:"nearest"` // null: they have no limit
}

// nearest is the limit that a user is nearest to.
type nearest struct {
	Limit string  `json:"limit"` // its name
	Mode  string  `json:"mode"`  // enforce or dry-run
	Used  int64   `json:"used"`
	Max   int64   `json:"max"`
	Share float64 `json:"share"` // that is used of max
}

// readPicture asks for the users with most.
func readPicture(ctx context.Context, a *apiclient.Client, by api.Sort, n int) (*picture, error) {
	var p picture
	query := url.Values{"sort": {string(by)}, "n": {fmt.Sprint(n)}}
	if err := a.GetJSON(ctx, "/api/v1/users?"+query.Encode(), &p.Users); err != nil {
		return nil, err
	}
	for _, u := range p.Users.Users {
		r := ranked{Summary: u}
		if near := u.Near; near != nil {
			r.Nearest = &nearest{near.Limit, near.Mode, near.Used, near.Max, float64(near.Used) / float64(near.Max)}
		}
		p.Ranked = append(p.Ranked, r)
	}
	return &p, nil
}

// tables are lists one after the other: of JSON, for programs, or for people.
type tables struct {
	w, errs io.Writer
	json    bool
	people  bool
	outage  apiclient.Outage
}

func (t *tables) showPicture(p *picture) error {
	t.outage.WriteEnd(t.errs, "sluice top", time.Now())
	if t.json {
		return terminal.WriteJSON(t.w, p)
	}
	lines := formatTable(p, t.people, 0)
	if !t.people {
		lines[0] = "# " + lines[0]
	}
	_, err := io.WriteString(t.w, strings.Join(lines, "\n")+"\n")
	return err
}

func (t *tables) showOutage(last time.Time, why error) error {
	t.outage.WriteBegin(t.errs, "sluice top", last, why)
	return nil
}

func (t *tables) finish() error { return nil }

// screen is one list drawn over the other in a terminal.
type screen struct {
	w    io.Writer
	size func() (columns, rows int) // may change: what is drawn next is of the size of then
	last *picture                   // nil: nothing is drawn yet
}

func (s *screen) showPicture(p *picture) error { return s.drawPicture(p, "") }

func (s *screen) showOutage(last time.Time, why error) error {
	return s.drawPicture(s.last, fmt.Sprintf("no answer since %s, for %v: %v", last.UTC().Format(time.RFC3339),
		time.Since(last).Round(time.Second), why))
}

// drawPicture writes from the upper left corner over what is there, all at once. The last
// row of the terminal stays empty for the cursor, so that nothing is scrolled.
func (s *screen) drawPicture(p *picture, note string) error {
	columns, rows := s.size()
	lines := formatTable(p, true, columns)
	if note != "" {
		lines = append([]string{lines[0], note}, lines[1:]...)
	}
	var b strings.Builder
	if s.last == nil {
		b.WriteString(strings.Repeat("\n", max(rows-1, 0))) // keeps what was there to scroll back to
	}
	s.last = p
	b.WriteString("\x1b[H") // home
	for _, line := range lines[:min(len(lines), max(rows-1, 0))] {
		// Cleared before it is written: behind a full line the cursor is on its last column still.
		b.WriteString("\x1b[K" + terminal.CutToWidth(line, columns) + "\n")
	}
	b.WriteString("\x1b[J") // and what is below
	_, err := io.WriteString(s.w, b.String())
	return err
}

// finish leaves the cursor on a line where the terminal's ^C is no more.
func (s *screen) finish() error {
	_, err := io.WriteString(s.w, "\r\x1b[K")
	return err
}
