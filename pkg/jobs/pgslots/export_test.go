package pgslots

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// SetOldestServer changes which servers Migrate takes, and returns what undoes that.
func SetOldestServer(version int) (undo func()) {
	before := oldestServer
	oldestServer = version
	return func() { oldestServer = before }
}

// A SimpleCall is one of those that share a statement.
type SimpleCall = simpleCall

// Take is a call of Acquire, and Give one of Release.
func Take(c jobs.Claim, l jobs.Limits, lease time.Duration) SimpleCall {
	return simpleCall{claim: c, take: true, limits: l, lease: micros(lease)}
}
func Give(c jobs.Claim) SimpleCall { return simpleCall{claim: c} }

// MakeTogether makes calls in one statement, and returns the verdicts of those that were made.
func MakeTogether(ctx context.Context, pool *pgxpool.Pool, schema string, calls ...SimpleCall) (map[int]jobs.Verdict, error) {
	replies, err := newSlots(pool, schema).makeTogether(ctx, calls)
	made := map[int]jobs.Verdict{}
	for i, reply := range replies {
		if reply.made {
			made[i] = reply.verdict
		}
	}
	return made, err
}
