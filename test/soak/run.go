package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/test/chaos"
	"github.com/sluice-qos/sluice/test/cluster"
)

// Options of a run.
type Options struct {
	Seed     uint64
	Duration time.Duration
	Settle   time.Duration // of it, after which all users were there
	Rate     float64       // requests a second
	Race     bool          // builds the commands with the race detector
	Dir      string        // where it leaves its samples
	Out      io.Writer
}

// SamplesFile is the name of the file of samples in a run's folder.
const SamplesFile = "samples.jsonl"

const (
	instances = 3
	polygens  = 2
	every     = 5 * time.Second
	// MaxWait of the agents: three times the shipped one, for a machine on which everything runs at once.
	maxWait = 60 * time.Millisecond
)

// Users who are there at a time, of all. When the run has settled each was there, so that nothing grows by new names after that.
const (
	presentUsers = 10_000
	allUsers     = 20_000
	turns        = 10 // after which all were there
)

// userAt is one of those who are there in a turn, chosen by a random number.
func userAt(turn int, random uint64) string {
	return fmt.Sprintf("user-%d", (uint64(turn*allUsers/turns)+random>>32*presentUsers>>32)%allUsers)
}

// A twentieth of the requests is by few who ask for twice what they may, and one by users about whom the agent is asked each time.
const (
	fewUsers = 5
	hot      = "hot" // the kind of user who may be refused
)

// request is one of a turn, drawn.
func request(turn int, random *rand.Rand) load.Request {
	user, kind := "", ""
	switch random.Uint64N(20) {
	case 0:
		user, kind = fmt.Sprintf("hot-%d", random.Uint64N(fewUsers)), hot
	case 1:
		user, kind = fmt.Sprintf("minute-%d", random.Uint64N(fewUsers)), "minute"
	default:
		user, kind = userAt(turn, random.Uint64()), "cold"
	}
	return load.Request{Headers: []byte("X-User: " + user + "\r\n"), User: kind}
}

// limitFile is what the cluster limits in a minute: each has another one.
func limitFile(minute int, rate float64) string {
	return fmt.Sprintf(`version: 1
default_tier: free
tiers:
  free: {requests: {GET: 20}, concurrent: 10}
  pro: {requests: {GET: %d}, concurrent: 20}
  hot: {requests: {GET: %.0f}}
  minute: {requests: {GET: {minute: %.0f}}}
users:
  "user-*7": pro
  "hot-*": hot
  "minute-*": minute
`, 50+minute%2, max(1, rate/20/fewUsers/2), max(1, 2*60*rate/20/fewUsers))
}

// runner is a run.
type runner struct {
	Options
	scene   *chaos.Scene
	cluster *cluster.Cluster
	file    *os.File

	begun   time.Time
	samples int // that were taken

	mu       sync.Mutex
	latency  []time.Duration // since the last sample
	counts   map[string]float64
	problems []string
}

// Run runs for as long as it is told to, and returns what went wrong in ways that need no judge. An error is that there was no run.
func Run(ctx context.Context, o Options) (problems []string, err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	r := &runner{Options: o, counts: map[string]float64{}}
	if r.file, err = os.Create(filepath.Join(o.Dir, SamplesFile)); err != nil {
		return nil, err
	}
	defer r.file.Close()
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := build(ctx, dir, o.Race); err != nil {
		return nil, err
	}
	r.scene = chaos.NewScene(ctx, dir)
	defer r.scene.Close()
	err = chaos.Attempt(func() {
		r.cluster = cluster.Start(r.scene, cluster.Options{
			Instances: instances, Polygens: polygens, Limits: limitFile(0, r.Rate), MaxWait: maxWait, Master: true, Built: dir,
			Env: []string{"GORACE=halt_on_error=1"},
		})
	})
	if err != nil {
		return nil, err
	}
	err = r.run(ctx)
	r.keep()
	return append(r.problems, r.scene.Errors()...), err
}

// keep leaves what the processes wrote last, and what they say of themselves.
func (r *runner) keep() {
	for i, in := range r.cluster.Instances {
		workers, err := in.OldWorkers()
		if err == nil && workers != "" {
			err = os.WriteFile(filepath.Join(r.Dir, fmt.Sprintf("haproxy-%d.workers", i)), []byte(workers), 0o600)
		}
		if err != nil {
			r.problem("ask for old workers: %v", err)
		}
	}
	for name, p := range r.cluster.Processes() {
		texts := map[string]string{".log": p.Output()}
		if admin := r.admin(name); admin != "" {
			if text, err := cluster.Get(admin, "/metrics"); err == nil {
				texts[".metrics"] = text
			}
		}
		for suffix, text := range texts {
			if err := os.WriteFile(filepath.Join(r.Dir, name+suffix), []byte(text), 0o600); err != nil {
				r.problem("%v", err)
			}
		}
	}
}

// build builds the commands into a folder.
func build(ctx context.Context, dir string, race bool) error {
	args := []string{"build", "-trimpath", "-o", dir + "/"}
	if race {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(ctx, "go", append(args, "github.com/sluice-qos/sluice/cmd/...")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the commands: %w: %s", err, out)
	}
	return nil
}

func (r *runner) run(ctx context.Context) error {
	r.begun = time.Now()
	end := r.begun.Add(r.Duration)
	sampling, enough := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer enough()
	beside.Go(func() { r.sampleEach(sampling) })
	for minute := 0; time.Now().Before(end); minute++ {
		if minute > 0 {
			beside.Go(func() { r.reload(sampling, minute) })
		}
		if err := r.load(ctx, minute, min(time.Minute, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// load sends what clients send in a minute.
func (r *runner) load(ctx context.Context, minute int, d time.Duration) error {
	targets, err := load.Spread("even", r.cluster.Addresses()...)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(r.Seed, uint64(minute)))
	var next load.Request
	asked := -1
	_, err = load.Run(ctx, load.Spec{
		Targets: targets, Rate: r.Rate, Duration: max(d, time.Second), Arrivals: load.Poisson, Seed: r.Seed + uint64(minute),
		Requests: func(i int) load.Request {
			if i != asked { // it is asked for again if it has to wait
				asked, next = i, request(int(time.Since(r.begun)*turns/r.Settle), random)
			}
			return next
		},
		Settled: r.settled,
	})
	return err
}

// settled counts a request.
func (r *runner) settled(kind, reason string, result load.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count("requests")
	switch {
	case result.Refused() && kind == hot:
		r.count("refused")
	case result.Refused():
		r.count(inVain)
		r.count(fmt.Sprintf("%s: %s users at haproxy-%d, %s", inVain, kind, result.Target, cmp.Or(reason, fmt.Sprint(result.Status))))
	case !result.Admitted() || result.Failure != load.Answered:
		r.count("failed")
	default:
		r.latency = append(r.latency, time.Duration(result.Answered-result.Sent))
	}
}

func (r *runner) count(what string) { r.counts[what]++ }

// reload gives the cluster another limit file, and reloads its HAProxies, some seconds one after another.
func (r *runner) reload(ctx context.Context, minute int) {
	err := chaos.Attempt(func() { r.cluster.SetLimits(r.scene, limitFile(minute, r.Rate)) })
	for _, in := range r.cluster.Instances {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
		err = errors.Join(err, in.HAProxy.Signal(syscall.SIGUSR2))
	}
	if err != nil {
		r.problem("reload: %v", err)
	}
}

func (r *runner) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	r.problems = append(r.problems, text)
	fmt.Fprintln(r.Out, "PROBLEM: "+strings.TrimSpace(text))
}

// write writes a sample down.
func (r *runner) write(s Sample) {
	line, err := json.Marshal(s)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		r.problem("write a sample: %v", err)
	}
}
