// Package top shows the users with most, or whose background jobs run and wait, one list after the other.
package top

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// Options are what is listed, and how.
type Options struct {
	Jobs     bool          // of users with background jobs, in the order of waiting jobs
	Sort     api.Sort      // who comes first otherwise
	N        int           // users in a list; 1 to api.MaxTop
	Interval time.Duration // from one list to the next
	Once     bool          // one list, and no more
	JSON     bool          // an object a line for each list
}

// Run shows lists until ctx ends. In a terminal each is drawn over the one before.
func Run(ctx context.Context, a *client.Client, o Options, stdout, stderr io.Writer) error {
	var d display = &tables{w: stdout, errs: stderr, json: o.JSON}
	switch f, ok := stdout.(*os.File); {
	case !ok || !terminal.IsTerminal(f) || o.JSON:
	case o.Once:
		d = &tables{w: stdout, errs: stderr, people: true}
	default:
		d = &screen{Screen: terminal.Screen{W: f, Size: func() (int, int) { return terminal.TerminalSize(f) }}}
	}
	read := func(ctx context.Context) (list, error) { return readPicture(ctx, a, o.Sort, o.N) }
	if o.Jobs {
		read = func(ctx context.Context) (list, error) { return readJobs(ctx, a, o.N) }
	}
	return o.follow(ctx, read, d)
}

// list is what is shown, as lines for people and programs and as JSON.
type list interface {
	headline() string // who says it, and of how many users
	columns() []column
	rows(people bool) [][]string // none of them is empty or has a blank
}

type display interface {
	showPicture(list) error
	// showOutage says that there is no answer, for a reason; the last one came at a time.
	showOutage(last time.Time, why error) error
	finish() error
}

func (o Options) follow(ctx context.Context, ask func(context.Context) (list, error), d display) error {
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
		if !daemon.Sleep(ctx, o.Interval) {
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

type ranked struct {
	api.Summary
	Nearest *nearest `json:"nearest"` // null: they have no limit
}

type nearest struct {
	Limit string  `json:"limit"` // its name
	Mode  string  `json:"mode"`  // enforce or dry-run
	Used  int64   `json:"used"`
	Max   int64   `json:"max"`
	Share float64 `json:"share"` // that is used of max
}

// readPicture asks for the users with most.
func readPicture(ctx context.Context, a *client.Client, by api.Sort, n int) (*picture, error) {
	var p picture
	query := url.Values{"sort": {string(by)}, "n": {fmt.Sprint(n)}}
	if err := a.GetJSON(ctx, "/api/v1/users?"+query.Encode(), &p.Users); err != nil {
		return nil, err
	}
	// An order by any unit is answered, and an empty list would not say that the name is wrong.
	if unit, isCost := by.CostUnit(); isCost && !slices.Contains(p.Units, unit) {
		return nil, unknownUnit(unit, p.Units)
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

func unknownUnit(unit string, units []string) error {
	if len(units) == 0 {
		return fmt.Errorf("unknown unit %q: the limit file has no costs", unit)
	}
	return fmt.Errorf("unknown unit %q (valid: %s)", unit, terminal.Printable(strings.Join(units, ", ")))
}

// tables are lists one after the other: of JSON, for programs, or for people.
type tables struct {
	w, errs io.Writer
	json    bool
	people  bool
	outage  client.Outage
}

func (t *tables) showPicture(p list) error {
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

type screen struct {
	terminal.Screen
	last list
}

func (s *screen) showPicture(p list) error {
	s.last = p
	return s.Draw(formatTable(p, true, s.width()))
}

func (s *screen) showOutage(last time.Time, why error) error {
	lines := formatTable(s.last, true, s.width())
	note := fmt.Sprintf("no answer since %s, for %v: %v", last.UTC().Format(time.RFC3339), time.Since(last).Round(time.Second), why)
	return s.Draw(slices.Insert(lines, 1, note))
}

func (s *screen) width() int {
	columns, _ := s.Size()
	return columns
}

func (s *screen) finish() error { return s.Finish() }
