package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type check struct {
	Files []string `arg:"" name:"file" help:"Limit files to check." complete:"file"`
	Users bool     `help:"Print the limits of each user whom a file names, too, sorted by name."`
	Quiet bool     `short:"q" help:"Print errors only."`
}

// Help tells what the command prints and when it fails.
func (*check) Help() string {
	return `For each file that is valid, prints one line with its version (the hash that the instances show), its numbers of tiers and of users, and one line a tier with its limits: requests per second by class ("all" is all classes together), requests in progress, bytes per second. What is not listed is not limited. With --users, one line a user follows, with his tier and his limits after his overrides.

For each error, prints file:line:column, what is wrong and what would be valid, to standard error. The exit code is 1 if any file has an error, else 0.`
}

func (c *check) run(stdout, stderr io.Writer) int {
	code := 0
	w := bufio.NewWriter(stdout)
	for _, file := range c.Files {
		set, err := limits.Load(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
			continue
		}
		if c.Quiet {
			continue
		}
		summarize(w, file, set)
		if c.Users {
			listUsers(w, set)
		}
	}
	if err := w.Flush(); err != nil {
		return cli.Exit(stderr, "sluice check", err)
	}
	return code
}

func summarize(w io.Writer, file string, set *limits.Set) {
	fmt.Fprintf(w, "%s: ok, version %s, %d tier(s), %d user(s) named\n", file, set.Version(), len(set.Tiers()), set.Len())
	for _, name := range set.Tiers() {
		tier, _ := set.Tier(name)
		mark := ""
		if name == set.DefaultTier() {
			mark = " (default)"
		}
		fmt.Fprintf(w, "  %s%s: %s\n", name, mark, describe(tier))
	}
}

// listUsers writes one line a user. Most users of a large file share their
// limits with the one before or with their tier, so that a line is made once.
func listUsers(w io.Writer, set *limits.Set) {
	lines := map[*limits.Limits]string{}
	for user := range set.Users() {
		l := set.User(limits.Key(user))
		line, ok := lines[l]
		if !ok {
			line = fmt.Sprintf("tier %s: %s", shown(l.Tier), describe(l))
			lines[l] = line
		}
		fmt.Fprintf(w, "  user %s, %s\n", shown(user), line)
	}
}
