package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// NamedTiers are tiers of a limit file whose users are in a database, or wherever Record
// looks. Users whom the file itself names, by name, by a pattern or as exempt, have what
// it says there, so that an exception for one user is an edit of the file. What operators
// set by hand (redislimits) is over either.
type NamedTiers struct {
	File   FileTiers
	Record RecordFunc // a Query, a QueryRecord, a function, or the Cache.Record of one of them

	// Timeout bounds a call of Record; 0 means 2 s.
	Timeout time.Duration
}

// Tier returns the tier of a user, with the numbers that the user's record has in place of the
// tier's. A user who has no record, or whose record names no tier, has the default tier, without
// an error. A user whose tier the file does not have, or of whom Record fails and returns no
// record, has the default tier as well, with an error.
func (n NamedTiers) Tier(ctx context.Context, user string) (Tier, error) {
	set := n.File.currentSet()
	l := set.User(user)
	override, overridden := set.OverrideOf(user)
	// An exception counts at once, whatever the database says, and needs none.
	if set.NamesUser(user) || overridden && override.NamesTier() {
		return n.File.tierFrom(set, user, l.Tier, l.Jobs()), nil
	}
	// A worker waits for the answer before each job.
	ctx, cancel := context.WithTimeout(ctx, orDefault(n.Timeout, 2*time.Second))
	defer cancel()
	record, err := n.Record(ctx, user)
	if err != nil {
		err = fmt.Errorf("find tier: %w", err)
	}
	if record.Tier != "" {
		named, ok := set.TierLimits(record.Tier)
		// A tier that was removed from the file must not end a user's jobs. What the record says
		// in numbers still counts.
		if !ok {
			unknown := fmt.Errorf("tier %q is not in the limit file (valid: %s)", record.Tier, strings.Join(set.TierNames(), ", "))
			err = errors.Join(err, unknown)
		} else {
			l = named
		}
	}
	j := record.over(l.Jobs())
	// What an operator sets for an hour counts before what is stored of the user.
	if overridden {
		j = limitfile.OverrideJobs(set, override, j)
	}
	// Also without a record: a new user needs no set-up.
	return n.File.tierFrom(set, user, l.Tier, j), err
}

// InForce is that of the file.
func (n NamedTiers) InForce() string { return n.File.InForce() }

func orDefault(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return d
}
