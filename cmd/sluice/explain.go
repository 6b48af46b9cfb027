package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	account "github.com/sluice-qos/sluice/cmd/sluice/internal/explain"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

type explainCommand struct {
	User   string `arg:"" optional:"" help:"The user, named as in the limit file; ~unreadable: all requests whose credentials cannot be read."`
	Class  string `help:"Show only the limits that a request of this class counts against: GET, PUT, …, OTHER, or a class of the file." placeholder:"CLASS"`
	Limits string `help:"The limit file." default:"config/limits.yaml" placeholder:"FILE" predictor:"file"`
	Admin  string `help:"Also ask the polygen (or sluice up) at this admin address, host:port or https://host:port, for the user's use, shares, state and last refusals." placeholder:"HOST:PORT"`
	Follow bool   `help:"With --admin: then print each decision about the user, until Ctrl-C."`

	Job    int64  `help:"Show instead why the background job with this River id waits." placeholder:"ID"`
	Worker string `help:"Worker to ask about --job; any worker will do. The address on which it serves riverqos' handler, host:port or https://host:port. With --admin in its place, the workers that polygen knows are asked." placeholder:"HOST:PORT"`

	Access `embed:""`
}

// Help tells what the command prints.
func (*explainCommand) Help() string {
	return `Prints the user's tier and each limit, with the line that sets it: the user's own override, the tier, or the default tier because the file does not name the user. A limit that the file lifts (unlimited) is listed as not limited; what is not listed is not limited either. Background jobs are always listed: where the file says nothing of them, with the limits that workers use then.

With --class, prints the limits that one request of that class counts against instead: those of its class, of its verb and of all classes ("*"), and those of all requests.

Limits are those of now. An entry that ends (until) says so, and what follows; when it has ended, the limits are those that followed.

With --admin, asks a running polygen and prints after the limits whether the user is refused now and why, how much of each limit is used, how many requests of each class start, limited or not, what each instance runs and may run of the user, and the last decisions to refuse requests.

With --follow, prints each decision about the user after that, such as

2026-11-20T12:30:00.250Z throttle GET (request-rate) until 12:30:01.000

throttle: requests are refused until the window ends; block and unblock: the requests in progress reached their limit, and fell below it; override: an operator set limits of the user by hand. Agents refuse by themselves as well, so not every refused request is a decision.

With --job, prints what a background job is waiting for: its user's slots and which jobs have them, its place in the user's line, and how many jobs go before it. Either a worker is asked (--worker), or a polygen that knows the workers (--admin; its flag is --jobs-worker). Where those are of several databases, each job with that id is printed.`
}

// Validate is called by kong.
func (e *explainCommand) Validate() error {
	switch {
	case e.Job == 0 && e.User == "":
		return errors.New("name a user, or a background job with --job")
	case e.Follow && (e.Admin == "" || e.Job != 0):
		return errors.New("--follow goes with a user and --admin")
	case e.Job == 0:
		return nil
	case e.User != "" || e.Class != "":
		return errors.New("--job goes with --worker or --admin alone: a job's user is its own")
	case (e.Worker == "") == (e.Admin == ""):
		return errors.New("--job: " + client.WorkerFlags.Hint() + ", or that of a polygen that knows the workers with --admin")
	case e.Job < 0:
		return fmt.Errorf("--job %d: want River's id of the job, a positive number", e.Job)
	}
	return nil
}

func (e *explainCommand) execute(stdout, stderr io.Writer) int {
	if e.Job != 0 {
		return flags.Exit(stderr, "sluice explain", e.explainJob(stdout))
	}
	set, err := limitfile.Load(e.Limits)
	if err != nil {
		fmt.Fprintln(stderr, nameLimits(err, e.Limits))
		return 1
	}
	if valid := account.Classes(set); e.Class != "" && !slices.Contains(valid, e.Class) {
		return flags.Exit(stderr, "sluice explain", e.unknownClass(valid))
	}
	var live *api.User
	if e.Admin != "" {
		u, err := e.askPolygen()
		if err != nil {
			return flags.Exit(stderr, "sluice explain", err)
		}
		live = &u
	}
	q := account.Question{User: e.User, Class: e.Class, File: e.Limits, Admin: e.Admin}
	err = account.Write(stdout, set.At(time.Now()), q, live)
	if err == nil && e.Follow {
		err = e.follow(stdout)
	}
	return flags.Exit(stderr, "sluice explain", err)
}

// follow prints the decisions about the user until a signal ends it.
func (e *explainCommand) follow(stdout io.Writer) error {
	ctx, stop := untilSignal()
	defer stop()
	a, err := e.client(e.Admin)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.Follow(ctx, api.DecisionsPath(e.User), func(data []byte) error {
		var event api.Event
		if err := json.Unmarshal(data, &event); err != nil {
			return fmt.Errorf("read an event of %s: %w", e.Admin, err)
		}
		return account.WriteDecision(stdout, event)
	})
}

func (e *explainCommand) unknownClass(valid []string) error {
	hint := ""
	if upper := strings.ToUpper(e.Class); slices.Contains(valid, upper) {
		hint = "; did you mean " + upper + "?"
	}
	return fmt.Errorf("unknown class %q%s (valid: %s, where OTHER is every other method)", e.Class, hint, strings.Join(valid, ", "))
}

func (e *explainCommand) askPolygen() (u api.User, err error) {
	a, err := e.client(e.Admin)
	if err != nil {
		return u, err
	}
	defer a.Close()
	return u, a.GetJSON(context.Background(), api.Path(e.User), &u)
}

func (e *explainCommand) explainJob(out io.Writer) error {
	if e.Admin != "" {
		return e.explainJobs(out)
	}
	worker, err := client.NewWorker(e.Worker, e.access(), client.WorkerFlags)
	if err != nil {
		return err
	}
	defer worker.Close()
	why, err := worker.Job(context.Background(), e.Job)
	if errors.Is(err, api.ErrNoJob) {
		return fmt.Errorf("job %d: %w", e.Job, err)
	}
	if err != nil {
		return err
	}
	return account.WriteJob(out, why)
}

func (e *explainCommand) explainJobs(out io.Writer) error {
	a, err := e.client(e.Admin)
	if err != nil {
		return err
	}
	defer a.Close()
	var job api.Job
	if err := a.GetJSON(context.Background(), api.JobPath(e.Job), &job); err != nil {
		return err
	}
	for i, why := range job.Jobs {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := account.WriteJob(out, why); err != nil {
			return err
		}
	}
	return nil
}
