package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/clock"
)

const (
	// An agent that has read a chunk rests for many times as long as that took. So it reads
	// fast from a Redis that has nothing else to do, and a thousand agents that read at the same
	// time leave room for everyone's leases, whatever the network between them: what waits for a
	// link of 1 Gbit/s at a time is then 1000 chunks of some 12 KiB divided by restFactor, 2 ms.
	restFactor = 50
	// An agent without limits does not serve, and so reads faster.
	restFactorAtStart = 10
	// Where Redis is far away, more would only be time lost.
	maxRest = 500 * time.Millisecond
)

// ErrNoChunk says that a part of the published limits is missing. polygen writes it again.
var ErrNoChunk = errors.New("a chunk of the published limits is missing")

// Why limits could not be read, as metrics have it. See also LimitErrorReason.
const (
	UnreachableLimits = "redis"    // Redis did not answer in time, or refused
	MissingLimits     = "missing"  // none, or not all of them, are published
	DamagedLimits     = "checksum" // they are not what their checksums say
	InvalidLimits     = "invalid"  // this version does not understand them
)

// LimitErrorReason is the reason of an error of LimitReader.
func LimitErrorReason(err error) string {
	switch {
	case errors.Is(err, ErrDamagedLimits):
		return DamagedLimits
	// Polygen repairs either: it writes again what Redis has forgotten.
	case errors.Is(err, ErrNoLimits), errors.Is(err, ErrNoChunk):
		return MissingLimits
	default:
		return UnreachableLimits
	}
}

// A LimitReader reads published limits. It is safe for concurrent use.
type LimitReader struct {
	client  redis.UniversalClient
	timeout time.Duration // of a call that carries nothing long
	call    callFunc
	count   func(bytes int) // of what was read

	mu    sync.Mutex // held while limits are read
	parts limitParts
}

// callFunc runs one operation within a time-out, and wraps its error.
type callFunc func(ctx context.Context, timeout time.Duration, op, what string, run func(context.Context) error) error

// NewLimitReader reads with somebody's own client, as workers of background jobs have one, and
// measures nothing.
func NewLimitReader(client redis.UniversalClient) *LimitReader {
	call := func(ctx context.Context, timeout time.Duration, _, what string, run func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return wrapError(what, run(ctx))
	}
	return &LimitReader{client: client, timeout: DefaultTimeout, call: call, count: func(int) {}}
}

// Limits returns what was last published: see LimitReader.Limits.
func (b *Bus) Limits(ctx context.Context) (version string, source []byte, err error) {
	return b.limitReader.Limits(ctx)
}

// Version returns the version that was last published, or ErrNoLimits. It costs the same
// however long the limit file is.
func (r *LimitReader) Version(ctx context.Context) (version string, err error) {
	return r.readField(ctx, "version")
}

// Limits returns what was last published, or ErrNoLimits. It reads only what is not in the file
// that it returned before, and after an error only what is missing then. It takes its time: see
// restFactor. Callers must not modify the source.
func (r *LimitReader) Limits(ctx context.Context) (version string, source []byte, err error) {
	// One reader at a time: a second one would read the same chunks beside the first.
	r.mu.Lock()
	defer r.mu.Unlock()
	head, err := r.readHead(ctx)
	if err != nil {
		return "", nil, err
	}
	// By its checksum, which says that nothing is to be read; a version is what its publisher calls it.
	if r.parts.source != nil && r.parts.head.sum == head.sum {
		return head.version, r.parts.source, nil
	}
	if err := r.readChunks(ctx, r.parts.missing(head)); err != nil {
		return "", nil, err
	}
	if err := r.parts.assemble(head); err != nil {
		// With one of its chunks something is wrong, and nobody knows with which: all are read anew.
		r.parts = limitParts{}
		return "", nil, fmt.Errorf("read limits: %w", err)
	}
	return head.version, r.parts.source, nil
}

func (r *LimitReader) readHead(ctx context.Context) (limitHead, error) {
	text, err := r.readField(ctx, "head")
	if err != nil {
		return limitHead{}, err
	}
	head, err := decodeHead(text)
	if err != nil {
		return limitHead{}, fmt.Errorf("read limits: %w: head: %w", ErrDamagedLimits, err)
	}
	return head, nil
}

// readField reads a field of what is published with the chunks.
func (r *LimitReader) readField(ctx context.Context, field string) (text string, err error) {
	err = r.call(ctx, limitsTimeout(r.timeout, 0), "limits", "read limits", func(ctx context.Context) error {
		text, err = r.client.HGet(ctx, limitsKey, field).Result()
		// Redis has answered that there are none.
		if errors.Is(err, redis.Nil) {
			return ErrNoLimits
		}
		return err
	})
	r.count(len(text))
	return text, err
}

// readChunks reads chunks. The lock of the reader must be held.
func (r *LimitReader) readChunks(ctx context.Context, chunks []chunkRef) error {
	parts, factor := &r.parts, restFactor
	// An agent without limits does not serve: that others wait a little longer is the lesser evil.
	if parts.source == nil {
		factor = restFactorAtStart
	}
	// One at a time: nobody else's call waits in Redis for more than one.
	for i, c := range chunks {
		began := time.Now()
		stored, err := r.readChunk(ctx, c)
		if err != nil {
			return err
		}
		took := time.Since(began)
		content, err := c.decompress(stored)
		if err != nil {
			return fmt.Errorf("read limits: %w", err)
		}
		// Kept also if a later one fails: the next call reads only what is missing then.
		parts.chunks[c.sum] = content
		// The limits are wanted: after the last one there is nothing to rest for.
		if i == len(chunks)-1 {
			break
		}
		// At random, so that agents that began together do not go on together.
		rest := time.Duration(float64(took) * float64(factor) * (0.5 + rand.Float64()))
		if !clock.Sleep(ctx, min(rest, maxRest)) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *LimitReader) readChunk(ctx context.Context, c chunkRef) (stored []byte, err error) {
	found := true
	err = r.call(ctx, limitsTimeout(r.timeout, c.stored), "limits_chunk", "read a chunk of limits", func(ctx context.Context) error {
		stored, err = r.client.Get(ctx, chunkKey(c.sum)).Bytes()
		// Redis has answered that there is none: for the metrics that is no failure of the call.
		if found = !errors.Is(err, redis.Nil); !found {
			return nil
		}
		return err
	})
	r.count(len(stored))
	if err == nil && !found {
		err = fmt.Errorf("read limits: %w: %x", ErrNoChunk, c.sum)
	}
	return stored, err
}
