package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

type check struct {
	Files []string `arg:"" name:"file" help:"Limit files to check."`
	Quiet bool     `short:"q" help:"Print errors only."`
}

// run prints what is wrong, one line an error, with its position, and otherwise
// the limits of each tier. The exit code is 1 if any file is wrong.
func (c *check) run(stdout, stderr io.Writer) int {
	code := 0
	for _, file := range c.Files {
		set, err := limits.Load(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
			continue
		}
		if !c.Quiet {
			summarize(stdout, file, set)
		}
	}
	return code
}

func summarize(w io.Writer, file string, set *limits.Set) {
	fmt.Fprintf(w, "%s: ok, version %s, %d tier(s), %d user(s) named\n", file, set.Version(), len(set.Tiers()), set.Len())
	later := false
	for _, name := range set.Tiers() {
		tier, _ := set.Tier(name)
		mark := ""
		if name == set.DefaultTier() {
			mark = " (default)"
		}
		fmt.Fprintf(w, "  %s%s: %s\n", name, mark, describe(tier))
		later = later || tier.Bandwidth != limits.Bandwidth{}
	}
	if later {
		fmt.Fprintln(w, "  note: limits of bandwidth are not enforced yet")
	}
}

// describe names the limits in one line, and what departs from the defaults: how
// long a request over the limit of requests in progress waits, and the priority.
func describe(l *limits.Limits) string {
	var parts []string
	for _, r := range l.All() {
		class := r.Class
		if class == limits.All {
			class = "all"
		}
		parts = append(parts, fmt.Sprintf("%s %d/s", class, r.PerSecond))
	}
	if l.Concurrent > 0 {
		progress := fmt.Sprintf("%d in progress", l.Concurrent)
		if l.Wait > 0 {
			progress += fmt.Sprintf(" (more wait %v)", l.Wait)
		}
		parts = append(parts, progress)
	}
	if l.Bandwidth.Down > 0 {
		parts = append(parts, "down "+size(l.Bandwidth.Down)+"/s")
	}
	if l.Bandwidth.Up > 0 {
		parts = append(parts, "up "+size(l.Bandwidth.Up)+"/s")
	}
	if len(parts) == 0 {
		parts = append(parts, "not limited")
	}
	if l.Priority != 0 {
		parts = append(parts, fmt.Sprintf("priority %d", l.Priority))
	}
	return strings.Join(parts, ", ")
}

// size writes bytes in the largest binary unit that divides them.
func size(n int64) string {
	for _, u := range []struct {
		name string
		in   int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.in == 0 {
			return strconv.FormatInt(n/u.in, 10) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}
