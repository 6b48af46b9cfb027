package bus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/parts"
)

// Candidacy is how a polygen asks for the lead, and for parts of the users.
type Candidacy struct {
	Name string        // of the polygen, no other's
	For  time.Duration // how long the lead, the leases and the polygen itself last
	parts.Ask
}

// Lead asks for the lead of what concerns the whole cluster, or to keep it, and for leases of parts. Both last
// for c.For from now. If calls come every quarter of that, three may be lost. A polygen whose Lead has not
// succeeded for so long must assume that it was replaced. It fails with ErrShards while processes
// with another number of shards are there.
func (b *Bus) Lead(ctx context.Context, c Candidacy) (parts.Answer, error) {
	// Redis counts in milliseconds, and refuses a time to live of none.
	if c.For < time.Millisecond {
		return parts.Answer{}, fmt.Errorf("lead: %v is below a millisecond", c.For)
	}
	return b.changeLead(ctx, "lead", c)
}

// Resign ends a candidate's lead and leases at once.
func (b *Bus) Resign(ctx context.Context, c Candidacy) error {
	_, err := b.changeLead(ctx, "resign", c)
	return err
}

func (b *Bus) changeLead(ctx context.Context, action string, c Candidacy) (lead parts.Answer, err error) {
	// All that the script may touch, also parts that are not asked for: a Redis Cluster wants to know them before.
	keys := []string{leaderKey, shardsKey, polygensKey}
	for part := range parts.Count {
		keys = append(keys, leaseKey(part))
	}
	args := []any{action, c.Name, b.shards, c.For.Milliseconds(), shardsTTL.Milliseconds(), c.Number, c.Take, c.GiveBack.Len()}
	for _, part := range slices.Concat(c.GiveBack.Numbers(), c.Wanted) {
		args = append(args, part)
	}
	err = b.callRedis(ctx, action, action, func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, call{script: leadScript, keys: keys, args: args})
		if err != nil {
			return err
		}
		reply, ok := replies[0].([]any)
		if !ok || len(reply) == 0 {
			return &replyError{replies[0]}
		}
		// Nothing was done then, and the reply ends here.
		if err := b.checkShards(reply[0]); err != nil {
			return err
		}
		lead, ok = readLead(reply)
		if !ok {
			return &replyError{reply}
		}
		return nil
	})
	return lead, err
}

func readLead(reply []any) (lead parts.Answer, ok bool) {
	// An ask that came too late is answered with empty lists, not with fewer: anything else is of another script.
	if len(reply) != 5 {
		return lead, false
	}
	leader, ok1 := reply[1].(string)
	free, ok2 := readParts(reply[2])
	held, ok3 := readParts(reply[3])
	polygens, ok4 := reply[4].([]any)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return lead, false
	}
	lead.Leader, lead.Free, lead.Held = leader, free, held
	for _, v := range polygens {
		name, _ := v.(string)
		lead.Polygens = append(lead.Polygens, name)
	}
	// A hash of Redis has no order, and all polygens must count them alike.
	slices.Sort(lead.Polygens)
	return lead, true
}

func readParts(reply any) (set parts.Set, ok bool) {
	numbers, ok := reply.([]any)
	for _, v := range numbers {
		n, is := v.(int64)
		// A part that is none was leased by a process which divides users in another way: to decide by it would be wrong.
		ok = ok && is && n >= 0 && n < parts.Count
		set |= parts.SetOf(int(n))
	}
	return set, ok
}

// leaseKey is the key of the lease of a part of the users.
func leaseKey(part int) string { return "sluice:{cluster}:part:" + strconv.Itoa(part) }
