package main

import (
	"fmt"
	"io"
	"time"

	listing "github.com/sluice-qos/sluice/cmd/sluice/internal/top"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type topCommand struct {
	Admin    string        `help:"Where the admin API of polygen, or of sluice up, listens: host:port, or https://host:port." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`
	Sort     string        `help:"Sort order: rate (most requests per second), refused (most refused requests per second), concurrent (most in progress), down or up (most bytes per second), or recent (heard of last)." enum:"rate,refused,concurrent,down,up,recent" default:"rate" placeholder:"ORDER"`
	Jobs     bool          `help:"List instead the users who have background jobs that run or wait, those with most waiting jobs first. polygen asks the workers that its flag --jobs-worker names."`
	Cost     string        `help:"List who was charged most of UNIT, such as tokens, in their day, or the longest window that they have a limit of, in place of --sort." placeholder:"UNIT"`
	N        int           `short:"n" help:"Maximum number of users, up to 100. A terminal shows as many of them as fit." default:"20" placeholder:"N"`
	Interval time.Duration `help:"Refresh interval, at least 100ms." default:"2s" placeholder:"TIME"`
	Once     bool          `help:"Print one list and exit."`
	JSON     bool          `name:"json" help:"Print each list as one line of JSON."`

	Access `embed:""`
}

const (
	maxTop      = 100 // users: polygen is asked about each
	minInterval = 100 * time.Millisecond
)

// Help tells what the command prints.
func (*topCommand) Help() string {
	return `Lists the most active users, and refreshes the list every --interval until Ctrl-C. In a terminal each list replaces the one before, and is redrawn when the terminal changes its size. Elsewhere, as in a pipe or with --once, each list is a separate table. If polygen becomes unreachable, the last list stays, with the time since when, until polygen is back.

The first line has the cluster's time, which polygen answers and whether it leads, the version of its limits, and how many users it knows of. The columns:

user: the name, in quotes if it is not plain; ~HASH if it is too long or odd to be sent

tier, state: ok, throttled (until the window of a request limit ends), blocked (until less is in progress), spent (nothing is left of a limit of costs) or denied (by a limit of 0)

rate/s: requests that were admitted; refused/s: and refused; in progress: requests; down, up: bytes per second

nearest, used: the limit that the user is nearest to, and how much of it is used. A limit that requests are refused for now comes first. Of a limit per second the last full second is shown, if more was used then.

seen: how long ago the user was last heard of

With --cost there are other columns between state and rate/s: limit, used and of which maximum, the part that is used, what is left, and after how long it begins anew. Who was charged nothing is not listed; who has been quiet for hours is.

In a pipe the lines of a table that are no users begin with #, the columns are divided by blanks, none is empty ("-" is no limit), and bytes, percents and seconds are plain numbers:

sluice top --once | awk '!/^#/ && $3 != "ok" {print $1, $9}'

With --jobs the columns are: user, tier; running: jobs that hold a slot; waiting: jobs that could run and do not (1000+ are more than were counted); waits for: how long the oldest of them has; oldest job: its id, for sluice explain --job; held by, limit: the limit of the user that holds them, total or queue:SERVICE, and how many jobs at a time it allows ("-": no limit does, they wait for a worker). The first line names workers that do not answer. With --json each line is the answer of /api/v1/jobs.

With --json each line is the answer of /api/v1/users, and of each user "nearest": limit, mode, used, max and share, or null. With --cost it has "cost" as well.

Users without a limit are listed, too: "started" in the JSON has the requests per second of each verb and operation class. Bytes per second are known only of users with a limit of bandwidth. Refused requests did not start: only refused/s has them.`
}

// Validate is called by the parser.
func (t *topCommand) Validate() error {
	if t.N < 1 || t.N > maxTop {
		return fmt.Errorf("--n=%d: want 1 to %d", t.N, maxTop)
	}
	return validInterval(t.Interval)
}

func (t *topCommand) order() api.Sort {
	if t.Cost != "" {
		return api.ByCost(t.Cost)
	}
	return api.Sort(t.Sort)
}

func validInterval(d time.Duration) error {
	if d < minInterval {
		return fmt.Errorf("--interval=%v: want %v or more", d, minInterval)
	}
	return nil
}

func (t *topCommand) execute(stdout, stderr io.Writer) int {
	ctx, stop := untilSignal()
	defer stop()
	a, err := t.client(t.Admin)
	if err != nil {
		return flags.Exit(stderr, "sluice top", err)
	}
	defer a.Close()
	o := listing.Options{Jobs: t.Jobs, Sort: t.order(), N: t.N, Interval: t.Interval, Once: t.Once, JSON: t.JSON}
	return flags.Exit(stderr, "sluice top", listing.Run(ctx, a, o, stdout, stderr))
}
