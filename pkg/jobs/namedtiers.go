package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// NameFunc finds the name of the tier of the user with a key (limits.Key), "" for a user
// whom nobody knows. With an error it returns the last name that was known, or "".
type NameFunc func(ctx context.Context, user string) (tier string, err error)

// NamedTiers are tiers of a limit file whose users are in a database, or wherever Name
// looks. Users whom the file itself names, by name, by a pattern or as exempt, have what
// it says there, so that an exception for one user is an edit of the file. What operators
// set by hand (redislimits) is over either.
type NamedTiers struct {
	File FileTiers
	Name NameFunc // a Query, a function, or the Cache.Name of either

	// Timeout bounds a call of Name; 0 means 2 s.
	Timeout time.Duration
}

// Tier returns the tier of a user. A user whom Name does not know has the default tier,
// without an error. A user whose tier the file does not have, or of whom Name fails and
// returns no name, has the default tier as well, with an error.
func (n NamedTiers) Tier(ctx context.Context, user string) (Tier, error) {
	set := n.File.currentSet()
	key := keyIn(set, user)
	fromFile := n.File.tierFrom(set.User(key))
	override, byHand := set.OverrideOf(key)
	// An exception counts at once, whatever the database says, and needs none.
	if set.NamesUser(key) || byHand && override.NamesTier() {
		return fromFile, nil
	}
	// A worker waits for the answer before each job.
	ctx, cancel := context.WithTimeout(ctx, orDefault(n.Timeout, 2*time.Second))
	defer cancel()
	name, err := n.Name(ctx, user)
	if err != nil {
		err = fmt.Errorf("find tier: %w", err)
	}
	// With an error or without one: a new user needs no set-up.
	if name == "" {
		return fromFile, err
	}
	l, ok := set.TierLimits(name)
	// A tier that was removed from the file must not end a user's jobs.
	if !ok {
		unknown := fmt.Errorf("tier %q is not in the limit file (valid: %s)", name, strings.Join(set.TierNames(), ", "))
		return fromFile, errors.Join(err, unknown)
	}
	tier := n.File.tierFrom(l)
	if byHand {
		tier.Limits = overriddenLimits(tier.Limits, fromFile.Limits, set.User(key).Jobs(), set.FromFile(key).Limits.Jobs())
	}
	return tier, err
}

// overriddenLimits are a tier's with what an operator set by hand over them: what of the
// user's limits in the set is not what the file says of the user.
func overriddenLimits(tier, user Limits, inForce, inFile limits.Jobs) Limits {
	if inForce.Source == limits.OfUser {
		tier.Total = user.Total
		// As in the file: "unlimited" takes the limits of queues away, too.
		if inForce.Total == 0 {
			tier.Queues = nil
		}
	}
	for queue, n := range user.Queues {
		if inFile.Queues[queue] == n {
			continue
		}
		if tier.Queues == nil {
			tier.Queues = map[string]int{}
		}
		tier.Queues[queue] = n
	}
	return tier
}

// InForce is that of the file.
func (n NamedTiers) InForce() string { return n.File.InForce() }

// Row is what *sql.Row and pgx.Row are.
type Row interface{ Scan(dest ...any) error }

// Query asks a database for a user's tier, with the method that returns one row and a
// query that has the user as its only argument:
//
//	jobs.Query(pool.QueryRow, "SELECT tier FROM users WHERE id = $1")     // pgx
//	jobs.Query(db.QueryRowContext, "SELECT tier FROM users WHERE id = ?") // database/sql
//
// The first column is the name of a tier of the limit file. Without a row, and with
// NULL, nobody knows the user. The argument is text: a column of another type may need
// a cast (id::text = $1). Users whose names are longer than 100 bytes or odd are known by
// a hash alone (limits.Key), and not asked about.
func Query[R Row](queryRow func(ctx context.Context, query string, args ...any) R, query string) NameFunc {
	return func(ctx context.Context, user string) (string, error) {
		// A hash, which no table of users has.
		if strings.HasPrefix(user, "~") {
			return "", nil
		}
		var tier sql.NullString
		switch err := queryRow(ctx, query, user).Scan(&tier); {
		// pgx.ErrNoRows is one, too.
		case errors.Is(err, sql.ErrNoRows):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("query: %w", err)
		}
		return tier.String, nil
	}
}

func orDefault(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return d
}
