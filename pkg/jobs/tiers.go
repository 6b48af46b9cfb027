package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Tier is what a user may do with jobs.
type Tier struct {
	Name   string
	Class  Class // of the queues that the user's jobs go to
	Limits Limits

	// Scheduled is the class of the queues that the user's jobs go to which a scheduler starts;
	// "" is that of all users.
	Scheduled Class
}

// Tiers find the tier of a user. Jobs never say it themselves. FileTiers have the users in the limit file; NamedTiers
// ask a database or a function for the name of the tier.
type Tiers interface {
	// Tier returns the tier of the user with this key (limits.Key). An unknown user
	// has the default tier. With an error comes the best that is known, which is
	// usable: the last one, or the default tier.
	Tier(ctx context.Context, user string) (Tier, error)
}

// NameFunc finds the name of the tier of the user with a key (limits.Key); "" is an unknown user. It returns when its
// context ends.
type NameFunc func(ctx context.Context, user string) (tier string, err error)

// Query asks a database for the name of a user's tier, with the method that returns one row and a
// query that has the user as its only argument:
//
//	jobs.Query(pool.QueryRow, "SELECT tier FROM users WHERE id = $1")     // pgx
//	jobs.Query(db.QueryRowContext, "SELECT tier FROM users WHERE id = ?") // database/sql
//
// Without a row, and with NULL, the user is unknown. The argument is text: a column of another type may need
// a cast (id::text = $1). Users whose names are longer than 100 bytes or odd have a
// hash as their key (limits.Key), and are unknown.
func Query[R interface{ Scan(columns ...any) error }](queryRow func(ctx context.Context, query string, args ...any) R, query string) NameFunc {
	return func(ctx context.Context, user string) (string, error) {
		if strings.HasPrefix(user, "~") {
			return "", nil
		}
		var tier sql.NullString
		// pgx.ErrNoRows is one, too.
		if err := queryRow(ctx, query, user).Scan(&tier); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return "", fmt.Errorf("query: %w", err)
		}
		return tier.String, nil
	}
}

const (
	defaultNameTTL = time.Minute
	unknownTTL     = 10 * time.Second // a user who has just paid does not wait for long
	retryNameAfter = 5 * time.Second  // after an error
	nameTimeout    = 2 * time.Second
	maxNames       = 100_000 // users whose names are remembered
)

// NamedTiers are tiers of a limit file whose users are in a database, or wherever Name
// looks. Users whom the file itself names, by name, by a pattern or as exempt, have what
// it says there, so that an exception for one user is an edit of the file. What operators
// set by hand (redislimits) is over either.
//
// A name is remembered for TTL, and what its tier is worth is not, so that an edit of the file counts at once. However
// many jobs of a user begin at a time, one question is under way. If it fails, the last name goes on
// counting, however old. NamedTiers are safe for concurrent use.
type NamedTiers struct {
	File FileTiers
	Name NameFunc
	TTL  time.Duration // 0 means 1 min

	mu         sync.Mutex
	young, old map[string]*knownName // at most half of maxNames each; old goes when young is full
}

// knownName is what is known of a user. The lock of NamedTiers guards it.
type knownName struct {
	name   string
	err    error           // of the last question
	until  time.Time       // when to ask again
	asking context.Context // ends with the answer or its time limit; nil if no question is under way
}

// Tier returns the tier of a user. A user who is unknown has the default tier, without
// an error. A user whose tier the file does not have, or of whom Name fails before it has ever answered,
// has the default tier as well, with an error.
func (n *NamedTiers) Tier(ctx context.Context, user string) (Tier, error) {
	set := n.File.currentSet()
	l := set.User(user)
	override, overridden := set.OverrideOf(user)
	// An exception counts at once, whatever the database says, and needs none.
	if set.NamesUser(user) || overridden && override.NamesTier() {
		return n.File.tierFrom(set, user, l.Tier, l.Jobs()), nil
	}
	name, err := n.nameOf(ctx, user)
	if err != nil {
		err = fmt.Errorf("find tier: %w", err)
	}
	if named, ok := set.TierLimits(name); ok {
		l = named
	} else if name != "" {
		// A tier that was removed from the file must not end a user's jobs.
		err = errors.Join(err, fmt.Errorf("tier %q is not in the limit file (valid: %s)", name, strings.Join(set.TierNames(), ", ")))
	}
	j := l.Jobs()
	// What an operator sets for an hour counts before what is stored of the user.
	if overridden {
		j = limitfile.OverrideJobs(set, override, j)
	}
	return n.File.tierFrom(set, user, l.Tier, j), err
}

// InForce is that of the file.
func (n *NamedTiers) InForce() string { return n.File.InForce() }

func (n *NamedTiers) hasTotal(tier string) bool { return n.File.hasTotal(tier) }

// nameOf returns the name of a user's tier. Callers who waited for a question that failed get its error, and the last
// name; later callers get that name without an error, until it is time to ask again.
func (n *NamedTiers) nameOf(ctx context.Context, user string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.remembered(user)
	if time.Now().Before(known.until) {
		return known.name, nil
	}
	// A caller who cannot wait for an answer causes no question.
	if err := ctx.Err(); err != nil {
		return known.name, err
	}
	if known.asking == nil {
		// Not the caller's context: others wait for this answer too.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), nameTimeout)
		known.asking = asking
		go n.ask(asking, cancel, user, known)
	}
	asking := known.asking
	n.mu.Unlock()
	select {
	case <-asking.Done():
	case <-ctx.Done():
	}
	n.mu.Lock()
	// The function may go on after its context has ended, and nobody waits for that.
	if known.asking == asking {
		return known.name, cmp.Or(ctx.Err(), asking.Err())
	}
	return known.name, known.err
}

// ask asks for a name, and remembers the answer.
func (n *NamedTiers) ask(ctx context.Context, cancel context.CancelFunc, user string, known *knownName) {
	defer cancel()
	name, err := n.safely(ctx, user)
	n.mu.Lock()
	defer n.mu.Unlock()
	ttl := cmp.Or(n.TTL, defaultNameTTL)
	switch {
	case err != nil:
		name, ttl = known.name, retryNameAfter
	case name == "":
		ttl = min(ttl, unknownTTL)
	}
	known.name, known.err, known.until, known.asking = name, err, time.Now().Add(ttl), nil
}

// safely calls Name, and makes an error of its panic: in this goroutine a panic would end the process.
func (n *NamedTiers) safely(ctx context.Context, user string) (name string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return n.Name(ctx, user)
}

// remembered is what is known of a user, of whom it may be nothing. Users who were not asked about lately are forgotten.
func (n *NamedTiers) remembered(user string) *knownName {
	known := n.young[user]
	if known == nil {
		if known = n.old[user]; known == nil {
			known = &knownName{}
		}
		if n.young == nil || len(n.young) >= maxNames/2 {
			n.young, n.old = map[string]*knownName{}, n.young
		}
		n.young[user] = known
	}
	return known
}

// TierBudget asks for the tiers of several users. Only failures spend its time, so that
// many users whose tiers come slowly have theirs all the same. When it is spent, questions
// fail that are not answered at once.
type TierBudget struct {
	*runnerParts
	left time.Duration
}

// Tier returns the tier of the user with this key. An error is logged and counted; what comes
// then is the best that is known. Each limit is at least 1.
func (b *TierBudget) Tier(ctx context.Context, user string) Tier {
	tier, _ := b.askTier(ctx, user)
	return tier
}

// askTier is Tier, and reports whether the Tiers answered without an error.
func (b *TierBudget) askTier(ctx context.Context, user string) (tier Tier, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, b.left)
	defer cancel()
	began := time.Now()
	tier, err := b.cfg.Tiers.Tier(ctx, user)
	// However slow: a database that answers late still answers.
	if err == nil {
		return usable(tier), true
	}
	b.failures.report("tier", "the tier of a user could not be found", err)
	// A clock that was read before or after the timer's would leave a rest.
	if b.left -= time.Since(began); ctx.Err() != nil {
		b.left = 0
	}
	return usable(tier), false
}

// usable raises limits below 1, which no Slots take: jobs are never rejected.
func usable(tier Tier) Tier {
	tier.Limits.Total = max(tier.Limits.Total, 1)
	// Zero is none.
	if tier.Limits.EachQueue < 0 {
		tier.Limits.EachQueue = 1
	}
	for queue, limit := range tier.Limits.Queues {
		if limit < 1 {
			// The Tiers' own is shared with other jobs of the tier.
			tier.Limits.Queues = maps.Clone(tier.Limits.Queues)
			tier.Limits.Queues[queue] = 1
		}
	}
	return tier
}
