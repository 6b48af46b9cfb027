package bus

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A script runs inside Redis, atomically. Redis knows it by its SHA-1.
type script struct{ source, sha string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source: source, sha: hex.EncodeToString(sum[:])}
}

//go:embed scripts/take.lua
var takeSource string

//go:embed scripts/burst.lua
var burstSource string

//go:embed scripts/slots.lua
var slotsSource string

//go:embed scripts/alive.lua
var aliveSource string

//go:embed scripts/events.lua
var eventsSource string

//go:embed scripts/registry.lua
var registrySource string

//go:embed scripts/heartbeat.lua
var heartbeatSource string

//go:embed scripts/lead.lua
var leadSource string

//go:embed scripts/publish.lua
var publishSource string

//go:embed scripts/limits.lua
var limitsSource string

//go:embed scripts/keep.lua
var keepSource string

//go:embed scripts/overrides.lua
var overridesSource string

var (
	takeScript      = newScript(takeSource)
	burstScript     = newScript(burstSource)
	slotsScript     = newScript(slotsSource)
	aliveScript     = newScript(aliveSource)
	eventsScript    = newScript(eventsSource)
	registryScript  = newScript(registrySource)
	leadScript      = newScript(leadSource)
	heartbeatScript = newScript(heartbeatSource)
	publishScript   = newScript(publishSource)
	limitsScript    = newScript(limitsSource)
	keepScript      = newScript(keepSource)

	overridesScript = newScript(overridesSource)
)

// A call is one run of a script.
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
	commands := make([]once, len(calls))
	for i, c := range calls {
		commands[i] = c.command(ctx, "evalsha", c.script.sha)
	}
	var failed error // of all commands, as when the connection is refused
	run := func(send []once) {
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
		if replies[i] = command.Val(); replies[i] == nil && failed != nil {
			return nil, failed // go-redis tells of a refused password here, and in no command
		}
	}
	return replies, nil
}

func (c call) command(ctx context.Context, name, which string) once {
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
