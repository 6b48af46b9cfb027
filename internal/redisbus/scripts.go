package redisbus

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A script runs inside Redis, atomically. Redis knows it by its SHA-1.
type script struct{ source, sha string }

//go:embed scripts/*.lua
var scripts embed.FS

func newScript(name string) script {
	source, err := scripts.ReadFile("scripts/" + name + ".lua")
	// Built into the program, or not there in any of its runs: the first test finds out.
	if err != nil {
		panic(err)
	}
	sum := sha1.Sum(source)
	return script{source: string(source), sha: hex.EncodeToString(sum[:])}
}

var (
	takeScript      = newScript("take")
	burstScript     = newScript("burst")
	chargeScript    = newScript("charge")
	slotsScript     = newScript("slots")
	aliveScript     = newScript("alive")
	eventsScript    = newScript("events")
	registryScript  = newScript("registry")
	leadScript      = newScript("lead")
	publishScript   = newScript("publish")
	limitsScript    = newScript("limits")
	keepScript      = newScript("keep")
	overridesScript = newScript("overrides")
)

type call struct {
	script script
	keys   []string
	args   []any
}

// evalScripts runs calls in one round trip and returns their replies in order. Scripts that Redis
// does not know, such as after its restart, take a second one. If eval fails, some calls
// may have run.
func (b *Bus) evalScripts(ctx context.Context, calls ...call) ([]any, error) {
	return evalScripts(ctx, b.client, calls...)
}

// pipeliner is a pool of connections, or one connection.
type pipeliner interface{ Pipeline() redis.Pipeliner }

func evalScripts(ctx context.Context, to pipeliner, calls ...call) ([]any, error) {
	// By their names: they are some kilobytes each, many times as much as what most calls say.
	commands := make([]once, len(calls))
	for i, c := range calls {
		commands[i] = c.command(ctx, "evalsha", c.script.sha)
	}
	var failed error // of all commands, as when the connection is refused
	run := func(send []once) {
		// To a cluster's node these go in their order; the order of a user's asks is that of their shard's batches.
		pipe := to.Pipeline()
		for _, command := range send {
			_ = pipe.Process(ctx, command)
		}
		_, failed = pipe.Exec(ctx)
	}
	run(commands)

	var unknown []once
	// A call of an unknown script has not run, so it may be sent again, with the source.
	for i, command := range commands {
		if err := command.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT ") {
			commands[i] = calls[i].command(ctx, "eval", calls[i].script.source)
			unknown = append(unknown, commands[i])
		}
	}
	if len(unknown) > 0 {
		run(unknown)
	}

	replies := make([]any, len(calls))
	for i, command := range commands {
		if err := command.Err(); err != nil {
			return nil, err
		}
		// go-redis tells of a refused password for all of them, and in no command.
		if replies[i] = command.Val(); replies[i] == nil && failed != nil {
			return nil, failed
		}
	}
	return replies, nil
}

func (c call) command(ctx context.Context, name, which string) once {
	// All at once: a call of 256 asks has some 2000 arguments.
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	args = append(args, name, which, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	return once{redis.NewCmd(ctx, append(args, c.args...)...)}
}

// once is a command that go-redis must not send again when it cannot know whether the
// first one ran: what a script counts would count twice. For a single server
// Options.MaxRetries prevents that, but a cluster client retries up to MaxRedirects, which
// it needs for redirects.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }
