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
	"github.com/sluice-qos/sluice/internal/policy"
)

const (
	// renewParts: each call of KeepLimits writes so small a part of the chunks anew. polygen
	// calls every second, so a chunk that was lost or damaged is whole again within about a minute.
	renewParts = 64

	// supersededTTL is for agents that still read the file before.
	supersededTTL = 10 * time.Minute

	// maxPipeline bounds the bytes of chunks that are written in one call.
	maxPipeline = 256 << 10

	// An agent that has read a chunk rests for many times as long as that took. So it reads
	// fast from a Redis that has nothing else to do, and a thousand agents that read at the same
	// time leave room for everyone's leases, whatever the network between them: what waits for a
	// link of 1 Gbit/s at a time is then 1000 chunks of some 12 KiB divided by restFactor, 2 ms.
	restFactor = 50
	// An agent without limits does not serve, and so reads faster.
	restFactorAtStart = 10
	// Where Redis is far away, more would only be time lost.
	maxRest = 500 * time.Millisecond

	// maxLimitsTimeout is more than limitsTimeout of any chunk.
	maxLimitsTimeout = 30 * time.Second
)

// ErrNoChunk says that a part of the published limits is missing. polygen writes it again.
var ErrNoChunk = errors.New("a chunk of the published limits is missing")

// limitsTimeout is how long a call may take that carries so many bytes of a limit file.
func (b *Bus) limitsTimeout(size int) time.Duration {
	// As long as a slow link needs, because no request waits for it: a call that was broken off would be repeated, and
	// never succeed.
	const slowest = 64 << 10 // bytes per second
	return 8*b.timeout + time.Duration(size)*time.Second/slowest
}

// limitPublisher has the file that this process has published last.
type limitPublisher struct {
	mu   sync.Mutex
	file limitFile
	next int // the chunk that is renewed next
}

// PublishLimits keeps a limit file in Redis for 24 hours from now and tells all
// agents of its version. Until all of it is there, they read the one before.
func (b *Bus) PublishLimits(ctx context.Context, version string, source []byte) error {
	p := &b.limitPublisher
	p.mu.Lock()
	defer p.mu.Unlock()
	file := encodeLimits(version, source, p.file)
	// Chunks first, the head last: until all of them are there, agents read the file before.
	missing, err := b.renewChunks(ctx, file.chunks, limitsTTL)
	if err != nil {
		return err
	}
	if err := b.writeChunks(ctx, file, missing); err != nil {
		return err
	}
	message := policy.Append(nil, policy.Limits{Version: version})
	args := []any{version, file.encode(), int64(limitsTTL / time.Second), message}
	if _, err = b.runScripts(ctx, "publish_limits", "publish limits", call{script: limitsScript, keys: []string{limitsKey}, args: args}); err != nil {
		return err
	}
	// Not deleted: agents may be reading the file before, and do so slowly.
	var superseded []chunkRef
	for _, c := range p.file.chunks {
		if file.stored[c.sum] == nil {
			superseded = append(superseded, c)
		}
	}
	// If this fails they expire as they would have without another file, a day after the last renewal.
	_, _ = b.renewChunks(ctx, superseded, supersededTTL)
	p.file, p.next = file, 0
	return nil
}

// KeepLimits keeps published limits for another 24 hours, and reports whether
// they are still the ones of the version, as this process has published them. If not, Redis
// has forgotten them, or another process published others.
func (b *Bus) KeepLimits(ctx context.Context, version string) (kept bool, err error) {
	p := &b.limitPublisher
	p.mu.Lock()
	defer p.mu.Unlock()
	// What another process has published may be the same, but which chunks it has this one does not know.
	if p.file.stored == nil || p.file.version != version {
		return false, nil
	}
	replies, err := b.runScripts(ctx, "keep_limits", "keep limits", call{
		script: keepScript, keys: []string{limitsKey}, args: []any{version, int64(limitsTTL / time.Second)},
	})
	if err != nil || replies[0] != int64(1) {
		return false, err
	}
	if len(p.file.chunks) == 0 {
		return true, nil
	}
	// Some with each call: all at once would be as many bytes as a publication, every second.
	renewed := p.file.chunks[p.next:min(p.next+(len(p.file.chunks)+renewParts-1)/renewParts, len(p.file.chunks))]
	p.next = (p.next + len(renewed)) % len(p.file.chunks)
	return true, b.writeChunks(ctx, p.file, renewed)
}

// renewChunks sets for how long chunks are kept, and returns those that Redis does not have.
func (b *Bus) renewChunks(ctx context.Context, chunks []chunkRef, ttl time.Duration) (missing []chunkRef, err error) {
	if len(chunks) == 0 {
		return nil, nil
	}
	err = b.callRedisWithin(ctx, b.limitsTimeout(0), "renew_limits", "renew chunks of limits", func(ctx context.Context) error {
		pipe := b.limitsClient.Pipeline()
		// The answer to EXPIRE says whether there is such a key, so what is there is kept by the same round trip.
		there := make([]*redis.BoolCmd, len(chunks))
		for i, c := range chunks {
			there[i] = pipe.Expire(ctx, chunkKey(c.sum), ttl)
		}
		_, err := pipe.Exec(ctx)
		for i, c := range chunks {
			if !there[i].Val() {
				missing = append(missing, c)
			}
		}
		return err
	})
	return missing, err
}

// writeChunks writes some chunks of a file.
func (b *Bus) writeChunks(ctx context.Context, file limitFile, chunks []chunkRef) error {
	for len(chunks) > 0 {
		n, size := 0, 0
		// One at least, however large it is.
		for n < len(chunks) && (n == 0 || size+chunks[n].stored <= maxPipeline) {
			size += chunks[n].stored
			n++
		}
		err := b.callRedisWithin(ctx, b.limitsTimeout(size), "write_limits", "write chunks of limits", func(ctx context.Context) error {
			pipe := b.limitsClient.Pipeline()
			for _, c := range chunks[:n] {
				pipe.Set(ctx, chunkKey(c.sum), file.stored[c.sum], limitsTTL)
			}
			_, err := pipe.Exec(ctx)
			return err
		})
		if err != nil {
			return err
		}
		chunks = chunks[n:]
	}
	return nil
}

// limitReader has what this process has read of published limits.
type limitReader struct {
	mu    sync.Mutex // held while they are read
	parts limitParts
}

// Limits returns what was last published, or ErrNoLimits. It reads only what is not in the file
// that it returned before, and after an error only what is missing then. It takes its time: see
// restFactor. Callers must not modify the source.
func (b *Bus) Limits(ctx context.Context) (version string, source []byte, err error) {
	// One reader at a time: a second one would read the same chunks beside the first.
	r := &b.limitReader
	r.mu.Lock()
	defer r.mu.Unlock()
	head, err := b.limitHead(ctx)
	if err != nil {
		return "", nil, err
	}
	// By its checksum, which says that nothing is to be read; a version is what its publisher calls it.
	if r.parts.source != nil && r.parts.head.sum == head.sum {
		return head.version, r.parts.source, nil
	}
	if err := b.readChunks(ctx, r.parts.missing(head)); err != nil {
		return "", nil, err
	}
	if err := r.parts.assemble(head); err != nil {
		// With one of its chunks something is wrong, and nobody knows with which: all are read anew.
		r.parts = limitParts{}
		return "", nil, fmt.Errorf("read limits: %w", err)
	}
	return head.version, r.parts.source, nil
}

func (b *Bus) limitHead(ctx context.Context) (head limitHead, err error) {
	var text string
	err = b.callRedisWithin(ctx, b.limitsTimeout(0), "limits", "read limits", func(ctx context.Context) (err error) {
		text, err = b.limitsClient.HGet(ctx, limitsKey, "head").Result()
		// Redis has answered that there are none.
		if errors.Is(err, redis.Nil) {
			return ErrNoLimits
		}
		return err
	})
	b.limitBytes.Add(float64(len(text)))
	if err != nil {
		return limitHead{}, err
	}
	if head, err = decodeHead(text); err != nil {
		return limitHead{}, fmt.Errorf("read limits: %w: head: %w", ErrDamagedLimits, err)
	}
	return head, nil
}

// readChunks reads chunks. The lock of the reader must be held.
func (b *Bus) readChunks(ctx context.Context, chunks []chunkRef) error {
	parts, factor := &b.limitReader.parts, restFactor
	// An agent without limits does not serve: that others wait a little longer is the lesser evil.
	if parts.source == nil {
		factor = restFactorAtStart
	}
	// One at a time: nobody else's call waits in Redis for more than one.
	for i, c := range chunks {
		began := time.Now()
		stored, err := b.readChunk(ctx, c)
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

func (b *Bus) readChunk(ctx context.Context, c chunkRef) (stored []byte, err error) {
	found := true
	err = b.callRedisWithin(ctx, b.limitsTimeout(c.stored), "limits_chunk", "read a chunk of limits", func(ctx context.Context) error {
		stored, err = b.limitsClient.Get(ctx, chunkKey(c.sum)).Bytes()
		// Redis has answered that there is none: for the metrics that is no failure of the call.
		if found = !errors.Is(err, redis.Nil); !found {
			return nil
		}
		return err
	})
	b.limitBytes.Add(float64(len(stored)))
	if err == nil && !found {
		err = fmt.Errorf("read limits: %w: %x", ErrNoChunk, c.sum)
	}
	return stored, err
}
