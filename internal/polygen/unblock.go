package polygen

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Unblock lets a user in by hand: polygen forgets that the user is blocked, and tells the instances.
func (p *Polygen) Unblock(ctx context.Context, a api.OverrideRequest) (api.Unblocked, error) {
	set := p.set.Load()
	key := a.User
	if !a.IsKey {
		key = limits.KeyOf(a.User)
	}
	u := p.UserOfKey(key)
	l := set.User(key)
	out := api.Unblocked{From: u.From, Name: u.Name, InProgress: u.InProgress, Max: l.Concurrent}
	if !a.IsKey {
		out.Name = api.NameOfUser(a.User)
	}
	err := p.letIn(ctx, key)
	out.Sent = err == nil
	out.Note = unblockNote(u, out)
	p.auditWrite(a, time.Time{}, nil, err)
	return out, err
}

// letIn has decide let a user in, by key.
func (p *Polygen) letIn(ctx context.Context, user string) error {
	if why := p.Ready(); why != nil {
		return fmt.Errorf("%w, so no instance can be told: %w", api.ErrUnavailable, why)
	}
	if !p.leads() {
		return fmt.Errorf("%w: ask again", api.ErrNotLeading)
	}
	select {
	case p.unblocks <- user:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unblockNote says what an operator can expect after letting a user in.
func unblockNote(u api.User, out api.Unblocked) string {
	// What an operator should do next comes before what merely is so.
	switch {
	case out.Max == 0:
		return "the user has no limit of requests in progress, so nothing blocks them"
	case u.State == api.Throttled:
		return "the user is throttled by a limit of requests, which ends by itself; unblocking does not change that, an override of that limit does"
	case out.InProgress >= out.Max:
		return fmt.Sprintf("the user has %d of %d requests in progress: unless some end, the next reports block the user again; an override of concurrent above %d prevents that",
			out.InProgress, out.Max, out.InProgress)
	case u.State == api.OK:
		return "the user was not known to be blocked"
	}
	return "the user is let in, and is blocked again when their requests in progress reach the limit"
}
