package jobs

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Checked returns Slots that refuse a call whose context has ended or whose arguments are
// not valid (ErrInvalid), before the back end hears of it, and that begin each error with
// what was called. Back ends are wrapped in it, so that all refuse the same calls.
func Checked(backEnd Slots) Slots { return checked{backEnd} }

type checked struct{ backEnd Slots }

func (c checked) Acquire(ctx context.Context, claim Claim, limits Limits, lease time.Duration, park bool) (Verdict, error) {
	return callBackEnd(ctx, "acquire a slot", cmp.Or(claim.validate(), limits.validate(), validateLease(lease)),
		func() (Verdict, error) { return c.backEnd.Acquire(ctx, claim, limits, lease, park) })
}

func (c checked) Renew(ctx context.Context, claims []Claim, lease time.Duration) ([]Claim, error) {
	invalid := validateLease(lease)
	// All of them before any is renewed: a call is refused as a whole.
	for _, claim := range claims {
		invalid = cmp.Or(invalid, claim.validate())
	}
	return callBackEnd(ctx, "renew leases", invalid, func() ([]Claim, error) { return c.backEnd.Renew(ctx, claims, lease) })
}

func (c checked) Release(ctx context.Context, claim Claim, limits Limits, reserve time.Duration) ([]Job, error) {
	return callBackEnd(ctx, "release a slot", cmp.Or(claim.validate(), limits.validate(), validateLease(reserve)),
		func() ([]Job, error) { return c.backEnd.Release(ctx, claim, limits, reserve) })
}

func (c checked) ReserveFree(ctx context.Context, user string, limits Limits, reserve time.Duration) ([]Job, error) {
	return callBackEnd(ctx, "reserve free slots", cmp.Or(validateUser(user), limits.validate(), validateLease(reserve)),
		func() ([]Job, error) { return c.backEnd.ReserveFree(ctx, user, limits, reserve) })
}

func (c checked) Forget(ctx context.Context, job Job) error {
	_, err := callBackEnd(ctx, "forget a job", job.validate(), func() (any, error) { return nil, c.backEnd.Forget(ctx, job) })
	return err
}

func (c checked) Waiting(ctx context.Context, after string, n int) ([]string, error) {
	invalid := validateLength("user", after)
	// Who asks for pages of nobody would ask for ever.
	if n < 1 {
		invalid = fmt.Errorf("page of %d users: %w", n, ErrInvalid)
	}
	return callBackEnd(ctx, "read waiting users", invalid, func() ([]string, error) { return c.backEnd.Waiting(ctx, after, n) })
}

func (c checked) User(ctx context.Context, user string) (Usage, error) {
	return callBackEnd(ctx, "read a user's slots", validateUser(user), func() (Usage, error) { return c.backEnd.User(ctx, user) })
}

func (c checked) Taken(ctx context.Context, users []string) ([]Slot, error) {
	var invalid error
	for _, user := range users {
		invalid = cmp.Or(invalid, validateUser(user))
	}
	return callBackEnd(ctx, "read users' slots", invalid, func() ([]Slot, error) { return c.backEnd.Taken(ctx, users) })
}

// callBackEnd calls it, unless the arguments are invalid or the context has ended.
func callBackEnd[T any](ctx context.Context, operation string, invalid error, backEnd func() (T, error)) (answer T, err error) {
	// Back ends may not look at the context before they have done something.
	if err = cmp.Or(ctx.Err(), invalid); err == nil {
		answer, err = backEnd()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", operation, err)
	}
	return answer, err
}

func (j Job) validate() error {
	return cmp.Or(validateUser(j.User), validateName("job", j.ID), validateLength("queue", j.Queue))
}

func (c Claim) validate() error { return cmp.Or(c.Job.validate(), validateName("holder", c.Holder)) }

func (l Limits) validate() error {
	if l.Total < 1 {
		return fmt.Errorf("limit %d: %w", l.Total, ErrInvalid)
	}
	// Zero is none, and nothing that could be meant is less.
	if l.EachQueue < 0 {
		return fmt.Errorf("limit %d of each queue: %w", l.EachQueue, ErrInvalid)
	}
	// Jobs of a queue whose limit is 0 would wait for ever.
	for queue, n := range l.Queues {
		if err := validateLength("queue", queue); err != nil {
			return err
		}
		if n < 1 {
			return fmt.Errorf("limit %d of queue %q: %w", n, queue, ErrInvalid)
		}
	}
	return nil
}

func validateUser(user string) error { return validateName("user", user) }

// validateLease is for the length of reservations as well.
func validateLease(length time.Duration) error {
	if length <= 0 {
		return fmt.Errorf("lease of %v: %w", length, ErrInvalid)
	}
	return nil
}

func validateName(what, name string) error {
	// Slots would give all that have no name one slot.
	if name == "" {
		return fmt.Errorf("no %s: %w", what, ErrInvalid)
	}
	return validateLength(what, name)
}

func validateLength(what, name string) error {
	if len(name) > MaxName {
		return fmt.Errorf("%s of %d bytes: %w", what, len(name), ErrInvalid)
	}
	return nil
}
