package main

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/check"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type checkCommand struct {
	Files []string `arg:"" name:"file" help:"Limit files to check." predictor:"file"`
	Users bool     `help:"Also print the limits of each user whom a file names, sorted by name."`
	Quiet bool     `short:"q" help:"Print errors only."`
}

// Help tells what the command prints and when it fails.
func (*checkCommand) Help() string {
	return `For each file that is valid, prints one line with its version (the hash that the instances show), its numbers of tiers and of users, then what it says of everybody (a dry run, classes, workers of queues and those for a tier or a user alone, who is exempt, what each address of clients may do), then one line a tier with its limits: requests by class and window ("all" is all classes together), requests in progress, bytes per second, and background jobs, which have a line for all tiers if the file says nothing of them: workers that read it then go by the names of tiers. What else is not listed is not limited. The last lines are users whose entries end (until). With --users, one line a user or pattern follows, with their tier and their limits after their overrides, as they are now.

For each error, prints file:line:column, what is wrong and what would be valid, to standard error. The exit code is 1 if any file has an error, else 0.`
}

func (c *checkCommand) execute(stdout, stderr io.Writer) int {
	code := 0
	w := bufio.NewWriter(stdout)
	for _, path := range c.Files {
		r, err := check.New(w, path, time.Now())
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
			continue
		}
		if c.Quiet {
			continue
		}
		r.WriteSummary()
		if c.Users {
			r.WriteUsers()
		}
	}
	if err := w.Flush(); err != nil {
		return flags.Exit(stderr, "sluice check", err)
	}
	return code
}
