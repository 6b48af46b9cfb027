package main

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/diff"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// The exit codes of diff are those of diff(1).
const (
	same    = 0
	differs = 1
	trouble = 2
)

type diffCommand struct {
	Old   string `arg:"" help:"The current limit file." predictor:"file"`
	New   string `arg:"" help:"The new limit file." predictor:"file"`
	Quiet bool   `short:"q" help:"Print errors only; the exit code tells whether they differ."`
}

// Help tells what the command prints and what its exit code means.
func (*diffCommand) Help() string {
	return `Prints what a user may do under NEW that differs from OLD, as of now: first what is said of everybody (the mode of the whole file, the default, the anonymous and the unreadable tier, classes, who is exempt, what each address of clients may do, workers of queues and those for a tier or a user alone), then each tier, then the users whom the files do not name, then each user or pattern that is named now or no longer, has another tier or another end (until), or whose own limits differ. A user without own limits changes with the tier, and is counted there. Names are sorted. Text that means the same is no difference, however it is written; nor is a new limit whose mode is off.

The exit code is 0 if nothing differs, 1 if something does, and 2 if a file has an error.`
}

func (d *diffCommand) execute(stdout, stderr io.Writer) int {
	before, err := limitfile.Load(d.Old)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	after, newErr := limitfile.Load(d.New)
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
	differ := diff.Write(w, before, after, time.Now())
	if err := w.Flush(); err != nil {
		_ = flags.Exit(stderr, "sluice diff", err)
		return trouble
	}
	if differ {
		return differs
	}
	return same
}
