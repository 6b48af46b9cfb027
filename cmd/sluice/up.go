package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	runup "github.com/sluice-qos/sluice/cmd/sluice/internal/up"
	"github.com/sluice-qos/sluice/internal/agent"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/polygen"
)

type upCommand struct {
	Limits    string `help:"The limit file; it is read again when it changes." predictor:"file" default:"config/limits.yaml" placeholder:"FILE"`
	Origin    string `help:"The server to protect. Default: a demo origin with /bytes/N, /sleep/MS, /cost/N, /v1/chat/completions and a sink for POST." placeholder:"HOST:PORT"`
	Listen    string `help:"Where the first instance listens; each further one on the next port." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	Instances int    `help:"Number of instances, each a HAProxy with its agent." default:"1" placeholder:"N"`
	Redis     string `help:"Address of Redis. Default: an embedded one." placeholder:"ADDR"`
	Identify  string `help:"How to find the user: header:X-User, s3, jwt:sub, basic, ip, a comma-separated chain of them, or auto (s3,jwt,basic,ip). With :lower or :exact behind header:X-User, jwt:sub or basic, names are in small letters, or as they are; only those of basic are in small letters without. Default: s3,jwt,basic,header:X-User,ip, to try it." placeholder:"CHAIN"`
	HAProxy   string `name:"haproxy" predictor:"file" help:"The HAProxy to run, 2.6 or later." default:"haproxy" placeholder:"PATH"`

	Unreadable   string        `help:"Requests whose credentials cannot be read, or who have more than one: share (the limits of one user, ~unreadable) or deny (with 400)." enum:"share,deny" default:"share" placeholder:"WHAT"`
	RefuseStatus int           `help:"Status of refused requests: 429, or 503 with S3's SlowDown." enum:"429,503" default:"429" placeholder:"CODE"`
	MaxWait      time.Duration `help:"Maximum time that a request waits for its verdict." default:"20ms" placeholder:"TIME"`
	OnRedisLoss  string        `help:"While Redis is lost: hold (each instance enforces its part of each limit) or open." enum:"hold,open" default:"hold" placeholder:"WHAT"`

	flags.UserMetrics `embed:""`
	JobWorkers        flags.JobWorkers `embed:""`

	flags.Admin `embed:"" set:"serves=/metrics, /api/v1, /-/healthy, /-/ready and /-/reload" set:"address=127.0.0.1:9090"` //nolint:staticcheck // SA5008: kong takes several set
	flags.Log   `embed:""`
}

func (u *upCommand) execute(stdout, stderr io.Writer) int {
	if err := u.Check(); err != nil {
		return flags.Exit(stderr, "sluice up", err)
	}
	ctx, hangups, stop := flags.Signals()
	defer stop()
	err := runup.Run(ctx, runup.Options{
		Limits: u.Limits, Origin: u.Origin, Listen: u.Listen, Instances: u.Instances, Redis: u.Redis,
		Identify: u.Identify, Admin: u.Address, Access: u.Access(), HAProxy: u.HAProxy, Unreadable: u.Unreadable, Refuse: u.RefuseStatus,
		Metrics: polygen.UserMetrics(u.UserMetrics), JobWorkers: u.JobWorkers.Addresses, JobAccess: u.JobWorkers.Access(),
		MaxWait: u.MaxWait, OnLoss: agent.OnLoss(u.OnRedisLoss),
		Stdout: stdout, Stderr: stderr, Logger: u.Logger(stderr), Reload: hangups,
	})
	return flags.Exit(stderr, "sluice up", nameLimits(err, u.Limits))
}

func nameLimits(err error, path string) error {
	var missing *fs.PathError
	if errors.As(err, &missing) && missing.Path == path && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: name the limit file with --limits", err)
	}
	return err
}
