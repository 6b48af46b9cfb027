package jobs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// CacheConfig says how long a Cache remembers. The zero value is usable.
type CacheConfig struct {
	TTL         time.Duration // how long a user's record is remembered; 0 means 1 min
	NotFoundTTL time.Duration // how long it is remembered that nobody knew a user; 0 means 10 s
	Retry       time.Duration // after an error, until it asks for that user again; 0 means 5 s
	Timeout     time.Duration // of each question; 0 means 2 s
	MaxUsers    int           // how many users it remembers; 0 means 100 000
}

// Cache remembers users' records, and nothing that depends on the limit file, so that an edit
// of the file counts at once. However many callers ask for a user at a time, one question is
// under way. If it fails, the last record that was known goes on counting, however old. A
// Cache is safe for concurrent use.
type Cache struct {
	find RecordFunc
	cfg  CacheConfig

	hits, misses, asked, failed atomic.Uint64

	mu         sync.Mutex
	young, old map[string]remembered // at most half of MaxUsers each; old goes when young is full
	flights    map[string]*flight
}

type remembered struct {
	record Record
	until  time.Time // when to ask again
}

// flight is a question that is under way.
type flight struct {
	ctx    context.Context // ends with the time-out
	done   chan struct{}   // closed when record and err are set
	record Record
	err    error
}

// NewCache remembers what a function finds.
func NewCache(find RecordFunc, cfg CacheConfig) *Cache {
	cfg.TTL = orDefault(cfg.TTL, time.Minute)
	cfg.NotFoundTTL = orDefault(cfg.NotFoundTTL, 10*time.Second)
	cfg.Retry = orDefault(cfg.Retry, 5*time.Second)
	cfg.Timeout = orDefault(cfg.Timeout, 2*time.Second)
	// No process is to remember all users whom it has ever worked for.
	if cfg.MaxUsers <= 0 {
		cfg.MaxUsers = 100_000
	}
	return &Cache{find: find, cfg: cfg, young: map[string]remembered{}, flights: map[string]*flight{}}
}

// Record is a RecordFunc. An error is returned to the callers who waited for the answer. Later
// callers get the record that was known before, without an error, until Record asks again.
func (c *Cache) Record(ctx context.Context, user string) (Record, error) {
	last, f, fresh := c.lookUp(user, ctx.Err() == nil)
	switch {
	case fresh:
		c.hits.Add(1)
		return last, nil
	// A caller who cannot wait for an answer causes no question.
	case f == nil:
		return last, ctx.Err()
	}
	c.misses.Add(1)
	select {
	case <-f.done:
	case <-f.ctx.Done():
	case <-ctx.Done():
	}
	// If several of them happened at once, the answer counts.
	select {
	case <-f.done:
		return f.record, f.err
	default:
	}
	if err := ctx.Err(); err != nil {
		return last, err
	}
	// The function may go on after its context has ended, and nobody waits for that.
	return last, f.ctx.Err()
}

// lookUp returns what was known of a user, and whether that is fresh. If not, the flight
// to wait for is nil only if there is none and none is to begin.
func (c *Cache) lookUp(user string, begin bool) (last Record, f *flight, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.young[user]
	if !ok {
		if k, ok = c.old[user]; ok {
			// A use: the user outlives the next change of generations.
			c.rememberUser(user, k)
		}
	}
	// Also a record that failed to be found anew: until then nobody asks.
	if ok && time.Now().Before(k.until) {
		return k.record, nil, true
	}
	if f = c.flights[user]; f == nil && begin {
		// Not the caller's context: others wait for this answer too, and must not lose
		// it when the first caller gives up.
		ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
		f = &flight{ctx: ctx, done: make(chan struct{})}
		c.flights[user] = f
		go func() {
			defer cancel()
			c.answerFlight(f, user, k.record)
		}()
	}
	return k.record, f, false
}

// answerFlight answers a flight, and remembers the answer.
func (c *Cache) answerFlight(f *flight, user string, last Record) {
	c.asked.Add(1)
	ttl := c.cfg.TTL
	f.record, f.err = c.safely(f.ctx, user)
	switch {
	case f.err != nil:
		c.failed.Add(1)
		// The old record is remembered anew, so that not every caller asks a database in trouble.
		f.record, ttl = last, c.cfg.Retry
	// Sooner than others: a user who has just paid is not to wait for long.
	case f.record.isZero():
		ttl = c.cfg.NotFoundTTL
	}
	c.mu.Lock()
	c.rememberUser(user, remembered{f.record, time.Now().Add(ttl)})
	delete(c.flights, user)
	c.mu.Unlock()
	// With the answer remembered, or a caller who was told of it could ask again.
	close(f.done)
}

// safely calls the function, and makes an error of its panic. In a caller's goroutine a
// panic would end one job; in this one it would end the process.
func (c *Cache) safely(ctx context.Context, user string) (record Record, err error) {
	defer func() {
		if p := recover(); p != nil {
			record, err = Record{}, fmt.Errorf("panic: %v", p)
		}
	}()
	return c.find(ctx, user)
}

// rememberUser remembers a user, and forgets those who were not asked about lately.
func (c *Cache) rememberUser(user string, k remembered) {
	// Two maps take the place of a list by time of use, at half of its memory.
	if _, ok := c.young[user]; !ok && len(c.young) >= max(1, c.cfg.MaxUsers/2) {
		c.young, c.old = map[string]remembered{}, c.young
	}
	c.young[user] = k
	delete(c.old, user)
}

// CacheStats are what a Cache did since it was made, for metrics.
type CacheStats struct {
	Hits   uint64 // answers without a question
	Misses uint64 // callers who waited for an answer
	Asked  uint64 // questions; several callers may have waited for the same one
	Errors uint64 // questions that failed
	Users  int    // users who are remembered now
}

// Stats may be called at any time.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	users := len(c.young) + len(c.old)
	c.mu.Unlock()
	return CacheStats{c.hits.Load(), c.misses.Load(), c.asked.Load(), c.failed.Load(), users}
}
