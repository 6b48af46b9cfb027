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

func (c checked) Acquire(ctx context.Context, claim Claim, limits Limits, lease time.Duration, park bool) (verdict Verdict, err error) {
	if err = cmp.Or(ctx.Err(), claim.validate(), limits.validate(), validateLease(lease)); err == nil {
		verdict, err = c.backEnd.Acquire(ctx, claim, limits, lease, park)
	}
	return verdict, operationError("acquire a slot", err)
}

func (c checked) Renew(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error) {
	err = cmp.Or(ctx.Err(), validateLease(lease))
	for _, claim := range claims {
		err = cmp.Or(err, claim.validate())
	}
	if err == nil {
		lost, err = c.backEnd.Renew(ctx, claims, lease)
	}
	return lost, operationError("renew leases", err)
}

func (c checked) Release(ctx context.Context, claim Claim, limits Limits, reserve time.Duration) (reserved []Job, err error) {
	if err = cmp.Or(ctx.Err(), claim.validate(), limits.validate(), validateLease(reserve)); err == nil {
		reserved, err = c.backEnd.Release(ctx, claim, limits, reserve)
	}
	return reserved, operationError("release a slot", err)
}

func (c checked) ReserveFree(ctx context.Context, user string, limits Limits, reserve time.Duration) (reserved []Job, err error) {
	if err = cmp.Or(ctx.Err(), validateUser(user), limits.validate(), validateLease(reserve)); err == nil {
		reserved, err = c.backEnd.ReserveFree(ctx, user, limits, reserve)
	}
	return reserved, operationError("reserve free slots", err)
}

func (c checked) Reserved(ctx context.Context, user string) (reserved []Job, err error) {
	if err = cmp.Or(ctx.Err(), validateUser(user)); err == nil {
		reserved, err = c.backEnd.Reserved(ctx, user)
	}
	return reserved, operationError("read a user's reservations", err)
}

func (c checked) Forget(ctx context.Context, job Job) (err error) {
	if err = cmp.Or(ctx.Err(), job.validate()); err == nil {
		err = c.backEnd.Forget(ctx, job)
	}
	return operationError("forget a job", err)
}

func (c checked) Waiting(ctx context.Context, after string, n int) (users []string, err error) {
	if err = cmp.Or(ctx.Err(), validateLength("user", after)); n < 1 {
		err = cmp.Or(err, fmt.Errorf("page of %d users: %w", n, ErrInvalid))
	}
	if err == nil {
		users, err = c.backEnd.Waiting(ctx, after, n)
	}
	return users, operationError("read waiting users", err)
}

func (c checked) User(ctx context.Context, user string) (usage Usage, err error) {
	if err = cmp.Or(ctx.Err(), validateUser(user)); err == nil {
		usage, err = c.backEnd.User(ctx, user)
	}
	return usage, operationError("read a user's slots", err)
}

func operationError(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}

func (j Job) validate() error {
	return cmp.Or(validateUser(j.User), validateName("job", j.ID), validateLength("queue", j.Queue))
}

func (c Claim) validate() error { return cmp.Or(c.Job.validate(), validateName("holder", c.Holder)) }

func (l Limits) validate() error {
	if l.Total < 1 {
		return fmt.Errorf("limit %d: %w", l.Total, ErrInvalid)
	}
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
