package bus

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

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

	// maxLimitsTimeout is more than limitsTimeout of any chunk.
	maxLimitsTimeout = 30 * time.Second
)

// limitsTimeout is how long a call may take that carries so many bytes of a limit file.
func limitsTimeout(timeout time.Duration, size int) time.Duration {
	// As long as a slow link needs, because no request waits for it: a call that was broken off would be repeated, and
	// never succeed.
	const slowest = 64 << 10 // bytes per second
	return 8*timeout + time.Duration(size)*time.Second/slowest
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
	message := policy.Pack(policy.Append(nil, policy.Limits{Version: version}))
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
	err = b.callRedisWithin(ctx, limitsTimeout(b.timeout, 0), "renew_limits", "renew chunks of limits", func(ctx context.Context) error {
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
		err := b.callRedisWithin(ctx, limitsTimeout(b.timeout, size), "write_limits", "write chunks of limits", func(ctx context.Context) error {
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
