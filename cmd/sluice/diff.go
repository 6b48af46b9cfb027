package main

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The exit codes of diff are those of diff(1).
const (
	same    = 0
	differs = 1
	trouble = 2
)

type diff struct {
	Old   string `arg:"" help:"The limit file that counts now." complete:"file"`
	New   string `arg:"" help:"The limit file that would." complete:"file"`
	Quiet bool   `short:"q" help:"Print errors only; the exit code tells whether they differ."`
}

// Help tells what the command prints and what its exit code means.
func (*diff) Help() string {
	return `Prints what a user may do under NEW that differs from OLD: whether the default tier is another, then each tier, then the users whom the files do not name, then each user who is named now or no longer, has another tier, or whose own limits differ. A user without limits of his own changes with his tier, and is counted there. Names are sorted. What means the same is no difference, however it is written.

The exit code is 0 if nothing differs, 1 if something does, and 2 if a file has an error.`
}

func (d *diff) run(stdout, stderr io.Writer) int {
	before, err := limits.Load(d.Old)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	after, newErr := limits.Load(d.New)
	if newErr != nil {
		fmt.Fprintln(stderr, newErr)
	}
	if err != nil || newErr != nil {
		return trouble
	}
	if d.Quiet {
		stdout = io.Discard
	}
	w := bufio.NewWriter(stdout)
	c := comparison{w: w, before: before, after: after}
	c.compare()
	if err := w.Flush(); err != nil {
		_ = cli.Exit(stderr, "sluice diff", err)
		return trouble
	}
	if c.found {
		return differs
	}
	return same
}

// comparison writes how two limit files differ.
type comparison struct {
	w             io.Writer
	before, after *limits.Set
	found         bool
}

func (c *comparison) compare() {
	if a, b := c.before.DefaultTier(), c.after.DefaultTier(); a != b {
		c.line("default tier: %s → %s", shown(a), shown(b))
	}
	followers := c.followers()
	for name := range union(slices.Values(c.before.Tiers()), slices.Values(c.after.Tiers())) {
		a, was := c.before.Tier(name)
		b, is := c.after.Tier(name)
		switch {
		case !was:
			c.line("tier %s: added: %s", shown(name), describe(b))
		case !is:
			c.line("tier %s: removed: %s", shown(name), describe(a))
		default:
			who := ""
			if n := followers[name]; n > 0 {
				who = fmt.Sprintf(" (and %d named user(s))", n)
			}
			c.changes(fmt.Sprintf("tier %s%s:", shown(name), who), a, b)
		}
	}
	if c.before.DefaultTier() != c.after.DefaultTier() {
		nobody := limits.Key("")
		c.changes("users not named in the file:", c.before.User(nobody), c.after.User(nobody))
	}
	c.users()
}

// followers counts, by tier, the users who are in that tier before and after and
// have no limits of their own.
func (c *comparison) followers() map[string]int {
	n := map[string]int{}
	for user, in := range union(c.before.Users(), c.after.Users()) {
		if in.both() && c.follows(limits.Key(user)) {
			n[c.before.User(limits.Key(user)).Tier]++
		}
	}
	return n
}

func (c *comparison) follows(key string) bool {
	a, b := c.before.User(key), c.after.User(key)
	if a.Tier != b.Tier {
		return false
	}
	tierBefore, _ := c.before.Tier(a.Tier)
	tierAfter, _ := c.after.Tier(b.Tier)
	return a == tierBefore && b == tierAfter
}

func (c *comparison) users() {
	for user, in := range union(c.before.Users(), c.after.Users()) {
		key := limits.Key(user)
		a, b := c.before.User(key), c.after.User(key)
		name := "user " + shown(user)
		switch {
		case in.both() && (a.Tier != b.Tier):
			c.changed(fmt.Sprintf("%s: tier %s → %s", name, shown(a.Tier), shown(b.Tier)), a, b)
		case in.both() && !c.follows(key):
			c.changes(name+":", a, b)
		case in.both():
		case in.right:
			c.changed(fmt.Sprintf("%s: added, tier %s (not named before, tier %s)", name, shown(b.Tier), shown(a.Tier)), a, b)
		default:
			c.changed(fmt.Sprintf("%s: removed, tier %s (not named now, tier %s)", name, shown(a.Tier), shown(b.Tier)), a, b)
		}
	}
}

// changes writes a title and the terms that differ, or nothing if none does.
func (c *comparison) changes(title string, a, b *limits.Limits) {
	if len(differences(a, b)) > 0 {
		c.changed(title, a, b)
	}
}

// changed writes a title and the terms that differ, if any.
func (c *comparison) changed(title string, a, b *limits.Limits) {
	c.line("%s", title)
	for _, d := range differences(a, b) {
		c.line("  %s", d)
	}
}

func (c *comparison) line(format string, args ...any) {
	c.found = true
	fmt.Fprintf(c.w, format+"\n", args...)
}

// differences are the terms that differ, as "name: before → after".
func differences(a, b *limits.Limits) []string {
	before, after := terms(a), terms(b)
	var names, lines []string
	for _, t := range append(before[:len(before):len(before)], after...) {
		names = append(names, t.name)
	}
	for _, name := range sortTerms(names) {
		if x, y := value(before, name), value(after, name); x != y {
			lines = append(lines, fmt.Sprintf("%s: %s → %s", name, x, y))
		}
	}
	return lines
}

// sides tells which of two sequences has a name.
type sides struct{ left, right bool }

func (s sides) both() bool { return s.left && s.right }

// union yields the names of two sorted sequences, sorted, each once.
func union(left, right iter.Seq[string]) iter.Seq2[string, sides] {
	return func(yield func(string, sides) bool) {
		nextLeft, stopLeft := iter.Pull(left)
		defer stopLeft()
		nextRight, stopRight := iter.Pull(right)
		defer stopRight()
		l, okL := nextLeft()
		r, okR := nextRight()
		for okL || okR {
			in := sides{okL && (!okR || l <= r), okR && (!okL || r <= l)}
			name := l
			if !in.left {
				name = r
			}
			if !yield(name, in) {
				return
			}
			if in.left {
				l, okL = nextLeft()
			}
			if in.right {
				r, okR = nextRight()
			}
		}
	}
}
