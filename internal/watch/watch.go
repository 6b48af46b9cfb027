// Package watch follows one user: what they use of each limit, and each decision about them.
package watch

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/apiclient"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/internal/terms"
)

// Options are who is followed, and how.
type Options struct {
	User     string        // the name, or the hash that is shown of a user whose name is not known
	Endpoint string        // where the user is counted apart; "" is elsewhere
	Interval time.Duration // from one line to the next when nothing changes
	JSON     bool          // an object a line
}

// maxInterval is the longest time between two questions: polygen remembers 20
// decisions.
const maxInterval = time.Second

// Run prints lines until ctx ends. It fails if the first question has no answer.
func Run(ctx context.Context, a *apiclient.Client, o Options, stdout, stderr io.Writer) error {
	ask := func(ctx context.Context) (u api.User, err error) {
		return u, a.GetJSON(ctx, api.PathOfShown(o.User, o.Endpoint), &u)
	}
	return o.follow(ctx, ask, stdout, stderr)
}

// follow prints until ctx ends. It asks more often than it prints if the interval is
// long.
func (o Options) follow(ctx context.Context, ask func(context.Context) (api.User, error), stdout, stderr io.Writer) error {
	asks := int((o.Interval + maxInterval - 1) / maxInterval) // in an interval
	var last time.Time                                        // zero: there was no answer yet
	var away apiclient.Outage
	var told story
	for i := 0; ; i++ {
		u, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && last.IsZero():
			return err
		case err != nil:
			away.WriteBegin(stderr, "sluice watch", last, err)
		default:
			last = time.Now()
			away.WriteEnd(stderr, "sluice watch", last)
			if err := o.printNews(stdout, u, &told, i%asks == 0); err != nil {
				return err
			}
		}
		if !clock.Sleep(ctx, o.Interval/time.Duration(asks)) {
			return nil
		}
	}
}

// printNews writes what is new in an answer, and if it is time, or it has changed, how
// the user fares.
func (o Options) printNews(stdout io.Writer, u api.User, told *story, isTime bool) error {
	decisions, changed := told.addNews(u)
	for _, d := range decisions {
		var err error
		if o.JSON {
			err = terminal.WriteJSON(stdout, decided{d.Time, u.User, u.Endpoint, d})
		} else {
			_, err = fmt.Fprintln(stdout, decisionLine(d))
		}
		if err != nil {
			return err
		}
	}
	var err error
	switch {
	case !changed && !isTime:
	case o.JSON:
		err = terminal.WriteJSON(stdout, u)
	default:
		_, err = fmt.Fprintln(stdout, stateLine(u))
	}
	return err
}

// decided is a decision in JSON.
type decided struct {
	Time     time.Time    `json:"time"`
	User     string       `json:"user"`
	Endpoint string       `json:"endpoint"`
	Decision api.Decision `json:"decision"`
}

// story is what was told of a user. Its zero value is before the first answer.
type story struct {
	polygen   string         // that answered last
	decisions []api.Decision // of the last answer
	newest    time.Time      // of all decisions
	was       string         // state, reasons and limits
}

// addNews takes an answer. It returns the decisions that are new, the oldest first, and
// whether the state, its reasons or the limits have changed. Refusals that were added
// to a decision are a decision of their own.
func (s *story) addNews(u api.User) (fresh []api.Decision, changed bool) {
	for _, d := range slices.Backward(u.Decisions) {
		i := slices.IndexFunc(s.decisions, func(old api.Decision) bool {
			return old.Time.Equal(d.Time) && old.Kind == d.Kind && old.Limit == d.Limit
		})
		switch {
		case s.polygen == "": // what was before
		case i >= 0:
			if d.Count -= s.decisions[i].Count; d.Count > 0 {
				fresh = append(fresh, d)
			}
		case s.polygen == u.Polygen || d.Time.After(s.newest): // another one saw the same at other times
			fresh = append(fresh, d)
		}
	}
	for _, d := range u.Decisions {
		if d.Time.After(s.newest) {
			s.newest = d.Time
		}
	}
	now := summary(u)
	changed = now != s.was
	s.polygen, s.decisions, s.was = u.Polygen, u.Decisions, now
	return fresh, changed
}

// summary has what a change is told of at once.
func summary(u api.User) string {
	s := fmt.Sprintf("%s %q %q", u.State, u.Tier, u.Version)
	for _, y := range u.Why {
		s += fmt.Sprintf(" %q %q", y.Limit, y.Mode)
	}
	for _, l := range u.Limits {
		s += fmt.Sprintf(" %q %d %d %q", l.Name, l.Max, l.Burst, l.Mode)
	}
	return s
}

const watchTime = "2006-01-02T15:04:05.000Z07:00"

func decisionLine(d api.Decision) string {
	what := terminal.QuoteName(string(d.Kind))
	if d.Count > 0 {
		what += " " + strconv.Itoa(d.Count)
	}
	return fmt.Sprintf("%s decision: %s %s (%s)%s", d.Time.UTC().Format(watchTime), what, terminal.QuoteName(d.Limit), reasonOf(d), marked(d.Mode))
}

// reasonOf is a decision's reason and, if HAProxy's refusals that follow have one, their cause.
func reasonOf(d api.Decision) string {
	reason := terminal.QuoteName(string(d.Reason))
	if d.Cause != "" {
		reason += ", " + terminal.QuoteName(string(d.Cause))
	}
	return reason
}

// stateLine is how a user fares.
func stateLine(u api.User) string {
	state := terminal.QuoteName(string(u.State))
	if u.Seen == nil {
		state += ", nothing was heard of the user"
	}
	var why, use, places []string
	for _, y := range u.Why {
		until := " until less is in progress"
		if y.Until != nil {
			until = " until " + formatTime(*y.Until)
		}
		why = append(why, terminal.QuoteName(y.Limit)+until+marked(y.Mode))
	}
	for _, l := range u.Limits {
		use = append(use, describeUse(l)+marked(l.Mode))
	}
	for _, p := range u.Instances {
		places = append(places, placed(p))
	}
	if len(why) > 0 {
		state += ": " + strings.Join(why, ", ")
	}
	if len(use) == 0 {
		use = []string{"no limit"}
	}
	parts := []string{state, strings.Join(use, ", ")}
	return u.Time.UTC().Format(watchTime) + " " + strings.Join(append(parts, places...), "; ")
}

// describeUse is the use of a limit, such as "GET 7/10 (last 10)".
func describeUse(l api.Limit) string {
	if name, ok := strings.CutPrefix(l.Name, "bandwidth."); ok {
		return fmt.Sprintf("%s %s of %s/s", terminal.QuoteName(name), terms.PerSecond(l.Used), terms.FormatBytes(l.Max))
	}
	s := fmt.Sprintf("%s %d/%d", terminal.QuoteName(l.Name), l.Used, l.Max)
	if l.Burst > 0 {
		s += fmt.Sprintf("+%d", l.Burst)
	}
	if l.Last != nil {
		s += fmt.Sprintf(" (last %d)", *l.Last)
	}
	return s
}

// placed is what one instance runs, and its share.
func placed(p api.Place) string {
	s := fmt.Sprintf("%s %d of %d slots", terminal.QuoteName(p.Instance), p.InProgress, p.Slots)
	for _, d := range []struct {
		name         string
		moved, share int64
	}{{"down", p.Down, p.DownShare}, {"up", p.Up, p.UpShare}} {
		if d.moved > 0 || d.share > 0 {
			s += fmt.Sprintf(", %s %s of %s", d.name, terms.PerSecond(d.moved), terms.FormatShare(d.share))
		}
	}
	return s
}

// marked says that a limit refuses nobody.
func marked(mode string) string {
	if mode == "enforce" {
		return ""
	}
	return " (" + terminal.QuoteName(mode) + ")"
}

func formatTime(t time.Time) string { return t.UTC().Format("15:04:05.000") }
