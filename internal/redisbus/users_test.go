package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	rates "github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// The users of deploy/redis/users.acl may do all that agents and polygen do, on one Redis
// and on a cluster.
func TestUsersMayDoTheirPart(t *testing.T) {
	for name, start := range map[string]func() *server{
		"redis": func() *server {
			_, addr := testkit.RedisWithUsers(t)
			return newServer(t, addr)
		},
		"cluster": func() *server { return startClusterBy(t, testkit.RedisWithUsers) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start()
			agent := s.open(t, redisbus.Options{Username: "sluice-agent", Password: "sluice-agent", Shards: 2})
			polygen := s.open(t, redisbus.Options{Username: "sluice-polygen", Password: "sluice-polygen", Shards: 2})
			ctx := context.Background()
			heard := listen(t, agent, redisbus.PoliciesChannel, redisbus.InstancesChannel)
			own := listenOwn(t, agent, "a")
			told := listen(t, polygen, redisbus.InstancesChannel)
			reported := listenToReports(t, polygen, redisbus.Usage{}, redisbus.Progress{}, redisbus.Demand{}, redisbus.Starts{})
			for range 2 { // the second time keys and scripts are there
				for what, do := range theirPart(ctx, agent, polygen) {
					if err := do(); err != nil {
						t.Errorf("%s = %v", what, err)
					}
				}
				if got, err := agent.Limits(ctx, 1); got.Version != "1" || string(got.File) != "x" || err != nil {
					t.Errorf("Limits = %q, %q, %v, want those that polygen has published", got.Version, got.File, err)
				}
			}
			if err := errors.Join(agent.Leave(ctx, "a"), polygen.Resign(ctx, "p")); err != nil {
				t.Error(err)
			}
			kinds := func(e ear, want ...redisbus.Event) {
				t.Helper()
				missing := map[string]bool{}
				for _, w := range want {
					missing[fmt.Sprintf("%T", w)] = true
				}
				for len(missing) > 0 {
					delete(missing, fmt.Sprintf("%T", e.next(t)))
				}
			}
			kinds(heard, redisbus.Policies{}, redisbus.Registry{})
			kinds(own, redisbus.Policies{})
			kinds(told, redisbus.Registry{})
			kinds(reported, redisbus.Usage{}, redisbus.Progress{}, redisbus.Demand{}, redisbus.Starts{})
		})
	}
}

// batches numbers the batches of asks that theirPart makes.
var batches atomic.Uint64

// theirPart is all that agents and polygen do with Redis, by name.
func theirPart(ctx context.Context, agent, polygen *redisbus.Bus) map[string]func() error {
	key := ratelimit.Key{Class: "GET", User: "alice"}
	return map[string]func() error{
		"Register":  func() error { _, err := agent.Register(ctx, "a", "1", "not serving yet"); return err },
		"Alive":     func() error { return agent.Alive(ctx, "a", 0) },
		"Instances": func() error { _, err := polygen.Instances(ctx); return err },
		"Time":      func() error { _, err := agent.Time(ctx); return err },
		"Take": func() error {
			// The scripts do nothing for a batch whose number they have seen.
			batch := batches.Add(1)
			asks := []ratelimit.Ask{{Seq: batch, Key: key, WindowStart: 17, Limit: 9, Need: 1}, {Seq: batch, Key: key, WindowStart: time.Now().Unix(), Limit: 9, Burst: 9, Need: 1}}
			for _, w := range rates.Windows[1:] {
				long := key
				long.Window = w
				asks = append(asks, ratelimit.Ask{Seq: batch, Key: long, WindowStart: 4_000_003_200, Limit: 9, Need: 1})
			}
			_, err := agent.Take(ctx, "a", asks)
			return err
		},
		"Charge": func() error {
			ask := cost.Ask{User: "alice", Seq: batches.Add(1)}
			for _, w := range rates.Windows {
				ask.Entries = append(ask.Entries, cost.Entry{Unit: "tokens", Window: w, Start: 4_000_060_800, Limit: 9, Change: 1})
			}
			_, err := agent.Charge(ctx, "a", []cost.Ask{ask})
			return err
		},
		"Charges": func() error {
			_, err := polygen.Charges(ctx, "alice", slices.Values([]rates.Cost{{Unit: "tokens", Window: rates.Day, Max: 9}}), 4_000_060_800)
			return err
		},
		"Totals": func() error {
			_, err := polygen.Totals(ctx, "alice", slices.Values([]rates.Rate{{Class: "GET", Window: rates.Day}}), 4_000_003_200)
			return err
		},
		"Slots": func() error {
			_, err := agent.Slots(ctx, "a", 0, []concurrency.Ask{{User: "alice", Seq: 1, Want: 1, Active: 1, Limit: 1}})
			return err
		},
		"Demand": func() error {
			return agent.Demand(ctx, "a", []bandwidth.Report{{User: "alice", Active: 1}, {User: "bob"}})
		},
		"Started": func() error {
			return agent.Started(ctx, "a", time.Second, []redisbus.Started{{User: "alice", Starts: 1}})
		},
		"AddEvents": func() error {
			of := []redisbus.EventsOf{{Name: "alice", Ends: 1}, {Name: "bob", Ends: 1}} // of two parts of a report
			return agent.AddEvents(ctx, "one", redisbus.Events{Second: 17, Users: of, Tiers: of})
		},
		"TierEvents": func() error { _, err := polygen.TierEvents(ctx, 17); return err },
		"UserEvents": func() error { _, err := polygen.UserEvents(ctx, "alice", []int64{17}); return err },
		"Lead":       func() error { _, err := polygen.Lead(ctx, redisbus.Leader{Name: "p"}, 2*time.Second); return err },
		"PublishLimits": func() error {
			return errors.Join(polygen.PublishLimits(ctx, published("1", "x")), func() error { _, err := polygen.KeepLimits(ctx, "1"); return err }())
		},
		"PublishPolicies": func() error { return polygen.PublishPolicies(ctx, []redisbus.Message{redisbus.Limits{Version: "1"}}) },
		"PublishTo": func() error {
			return polygen.PublishTo(ctx, []redisbus.Addressed{{Message: redisbus.Share{User: "alice"}, To: []string{"a"}}})
		},
		"KeepOverrides": func() error {
			version, _, err := polygen.Overrides(ctx, "")
			number, _ := strconv.Atoi(version)
			return errors.Join(err, polygen.KeepOverrides(ctx, strconv.Itoa(number+1), []byte("[]"), time.Hour))
		},
		"polygen's Time": func() error { _, err := polygen.Time(ctx); return err },
	}
}

// An agent's user in Redis may do nothing else: an attacker who has taken over an agent
// sets no limits and sends no policies.
func TestUsersMayDoNothingElse(t *testing.T) {
	_, addr := testkit.RedisWithUsers(t)
	ctx := context.Background()
	script := func(command string) string { return "return redis.call(" + command + ")" }
	for _, tt := range []struct {
		user      string
		forbidden [][]any
	}{
		{"sluice-agent", [][]any{
			{"HSET", "sluice:limits", "version", "2", "head", "x"},
			{"DEL", "sluice:limits"},
			{"EXPIRE", "sluice:limits", "1"},
			{"SET", "sluice:limits:2d711642b726b04401627ca9fbac32f5", "x"},
			{"DEL", "sluice:limits:2d711642b726b04401627ca9fbac32f5"},
			{"EVAL", script("'HSET', 'sluice:limits', 'version', '2'"), "0"},
			{"EVAL", script("'HSET', KEYS[1], 'version', '2'"), "1", "sluice:limits"},
			{"HSET", "sluice:{cluster}:overrides", "version", "2"},
			{"HGETALL", "sluice:{cluster}:overrides"},
			{"EVAL", script("'HSET', KEYS[1], 'version', '2'"), "1", "sluice:{cluster}:overrides"},
			{"SET", "sluice:{cluster}:leader", "a"},
			{"DEL", "sluice:{cluster}:leader"},
			{"PUBLISH", "sluice:policies", "1 block \"alice\""},
			{"PUBLISH", "sluice:policies:edge-1#a", "1 block \"alice\""},
			{"SPUBLISH", "sluice:policies:edge-1#a", "1 block \"alice\""},
			{"EVAL", script("'PUBLISH', 'sluice:policies', 'x'"), "0"},
			{"SUBSCRIBE", "sluice:{0}:usage"},
			{"SSUBSCRIBE", "sluice:{0}:usage"},
			{"PSUBSCRIBE", "*"},
			{"HGETALL", "sluice:jobs:{100}:slots:alice"},
		}},
		{"sluice-polygen", [][]any{
			{"HSET", "sluice:{0}:requests:17", "GET|alice", "9"},
			{"HGETALL", "sluice:{0}:slots:alice"},
			{"SET", "sluice:{0}:burst:GET|alice", "x"},
			{"HSET", "sluice:{0}:events:17:reports", "a/1/0", "1 5:alice 9 0"},
			{"EVAL", script("'HSET', KEYS[1], 'a', '1 1 1 1'"), "1", "sluice:{0}:slots:alice"},
			{"PUBLISH", "sluice:{0}:usage", "x"},
			{"SPUBLISH", "sluice:{0}:progress", "x"},
			{"PUBLISH", "sluice:{0}:demand", "x"},
			{"SPUBLISH", "sluice:{0}:starts", "x"},
			{"EVAL", script("'PUBLISH', 'sluice:{0}:usage', 'x'"), "0"},
			{"SUBSCRIBE", "sluice:policies"},
			{"SSUBSCRIBE", "sluice:policies:edge-1#a"},
			{"PSUBSCRIBE", "*"},
			{"HGETALL", "sluice:jobs:{100}:slots:alice"},
		}},
		{"sluice-jobs", [][]any{
			{"HSET", "sluice:limits", "version", "2"},
			{"DEL", "sluice:limits"},
			{"EXPIRE", "sluice:limits", "1"},
			{"SET", "sluice:limits:2d711642b726b04401627ca9fbac32f5", "x"},
			{"DEL", "sluice:limits:2d711642b726b04401627ca9fbac32f5"},
			{"HSET", "sluice:{cluster}:overrides", "version", "2"},
			{"HGETALL", "sluice:{cluster}:overrides"},
			{"GET", "sluice:{cluster}:leader"},
			{"HGETALL", "sluice:{0}:slots:alice"},
			{"EVAL", script("'HSET', KEYS[1], 'version', '2'"), "1", "sluice:limits"},
			{"SET", "sluice:{cluster}:leader", "a"},
			{"PUBLISH", "sluice:policies", "x"},
			{"PUBLISH", "sluice:{0}:usage", "x"},
			{"EVAL", script("'PUBLISH', 'sluice:policies', 'x'"), "0"},
			{"SUBSCRIBE", "sluice:policies"},
		}},
	} {
		client := redis.NewClient(&redis.Options{Addr: addr, Username: tt.user, Password: tt.user, Protocol: 2, DisableIdentity: true, ReadTimeout: testkit.Patience})
		defer client.Close()
		if err := client.Ping(ctx).Err(); err != nil {
			t.Fatalf("%s: %v", tt.user, err)
		}
		for _, command := range append(tt.forbidden, [][]any{
			{"SET", "another program's", "x"},
			{"GET", "another program's"},
			{"HSET", "sluice:new", "a", "b"},
			{"FLUSHALL"},
			{"FLUSHDB"},
			{"KEYS", "*"},
			{"SCAN", "0"},
			{"CONFIG", "GET", "requirepass"},
			{"ACL", "SETUSER", tt.user, "+@all", "~*"},
			{"ACL", "LIST"},
			{"CLIENT", "LIST"},
			{"CLIENT", "KILL", "TYPE", "normal"},
			{"MONITOR"},
			{"INFO"},
			{"SHUTDOWN", "NOSAVE"},
			{"REPLICAOF", "NO", "ONE"},
			{"SCRIPT", "FLUSH"},
			{"SCRIPT", "KILL"},
			{"FUNCTION", "FLUSH"},
			{"EVAL", script("'FLUSHALL'"), "0"},
		}...) {
			err := client.Do(ctx, command...).Err()
			// In a script the refusal is the script's error: of Redis 7.0, and of later ones and Valkey.
			refused := regexp.MustCompile(`^NOPERM |The user executing the script can't |^ERR ACL failure in script: `)
			if err == nil || !refused.MatchString(err.Error()) {
				t.Errorf("%s: %q = %v, want NOPERM", tt.user, command, err)
			}
		}
	}
}
