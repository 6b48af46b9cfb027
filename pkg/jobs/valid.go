package jobs

import (
	"fmt"
	"time"
)

// Validate returns nil, or an error with ErrInvalid in it.
func (j Job) Validate() error {
	if err := ValidateUser(j.User); err != nil {
		return err
	}
	if err := validateName("job", j.ID); err != nil {
		return err
	}
	return validateQueue(j.Queue)
}

// Validate returns nil, or an error with ErrInvalid in it.
func (c Claim) Validate() error {
	if err := c.Job.Validate(); err != nil {
		return err
	}
	return validateName("holder", c.Holder)
}

// Validate returns nil, or an error with ErrInvalid in it.
func (l Limits) Validate() error {
	if l.Total < 1 {
		return fmt.Errorf("limit %d: %w", l.Total, ErrInvalid)
	}
	for queue, n := range l.Queues {
		if err := validateQueue(queue); err != nil {
			return err
		}
		if n < 1 {
			return fmt.Errorf("limit %d of queue %q: %w", n, queue, ErrInvalid)
		}
	}
	return nil
}

// ValidateUser returns nil, or an error with ErrInvalid in it.
func ValidateUser(user string) error { return validateName("user", user) }

// ValidateSpan returns nil, or an error with ErrInvalid in it: a lease or reservation
// is positive.
func ValidateSpan(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("lease of %v: %w", d, ErrInvalid)
	}
	return nil
}

// ValidatePage returns nil, or an error with ErrInvalid in it, for what Waiting is
// asked.
func ValidatePage(after string, n int) error {
	if n < 1 {
		return fmt.Errorf("page of %d users: %w", n, ErrInvalid)
	}
	if len(after) > MaxName {
		return fmt.Errorf("user of %d bytes: %w", len(after), ErrInvalid)
	}
	return nil
}

func validateName(what, name string) error {
	if name == "" {
		return fmt.Errorf("no %s: %w", what, ErrInvalid)
	}
	if len(name) > MaxName {
		return fmt.Errorf("%s of %d bytes: %w", what, len(name), ErrInvalid)
	}
	return nil
}

func validateQueue(queue string) error {
	if len(queue) > MaxName {
		return fmt.Errorf("queue of %d bytes: %w", len(queue), ErrInvalid)
	}
	return nil
}
