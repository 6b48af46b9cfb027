package pgslots

import (
	"context"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// simpleCall is one of Acquire, or of Release, which has no queue, limits and lease.
type simpleCall struct {
	claim  jobs.Claim
	take   bool
	limits jobs.Limits
	lease  int64 // in µs
}

// simpleReply is the reply to a call that could be made together with others, which grants what was asked for.
type simpleReply struct {
	made    bool
	verdict jobs.Verdict
}

// makeTogether makes those calls in one statement for which nobody has to wait, and which need nothing but a free slot. A
// statement for each would cost several times what the jobs do that end and begin in the meantime.
func (s *slots) makeTogether(ctx context.Context, calls []simpleCall) ([]simpleReply, error) {
	replies := make([]simpleReply, len(calls))
	// A statement for many does more than one of its own.
	if len(calls) == 1 {
		return replies, nil
	}
	var users, ids, queues, holders [][]byte
	var takes []bool
	var totals, ofs []int32
	var leases []int64
	for _, c := range calls {
		users, ids = append(users, []byte(c.claim.User)), append(ids, []byte(c.claim.ID))
		queues, holders = append(queues, []byte(c.claim.Queue)), append(holders, []byte(c.claim.Holder))
		takes, leases = append(takes, c.take), append(leases, c.lease)
		totals, ofs = append(totals, toInt4(c.limits.Total)), append(ofs, toInt4(c.limits.Of(c.claim.Queue)))
	}
	var made, running, inQueue int
	err := s.queryEach(ctx, []any{&made, &running, &inQueue}, func() {
		replies[made-1] = simpleReply{made: true, verdict: jobs.Verdict{Granted: true, Running: running, InQueue: inQueue}}
	}, s.together, users, ids, queues, holders, takes, totals, ofs, leases)
	return replies, err
}
