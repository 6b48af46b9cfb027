package redisbus

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"sync"
	"time"
)

const (
	// rewriteEvery is after how many calls KeepLimits writes the file again. polygen calls every second, so a file that
	// was damaged is whole again within about a minute.
	rewriteEvery = 64

	// supersededTTL is for agents that still read the file before.
	supersededTTL = 10 * time.Minute

	// compression is the level of DEFLATE. The default one makes files 2 to 6 % smaller, and takes three times as long.
	compression = 3

	// maxLimitsSize is more than limitfile.MaxFileSize.
	maxLimitsSize = 128 << 20

	// maxLimitsTimeout bounds limitsTimeout.
	maxLimitsTimeout = 5 * time.Minute
)

// limitsTimeout is how long a call may take that carries so many bytes of a limit file.
func limitsTimeout(timeout time.Duration, size int) time.Duration {
	// As long as a slow link needs, because no request waits for it: a call that was broken off would be repeated, and
	// never succeed.
	const slowest = 64 << 10 // bytes per second
	return min(8*timeout+time.Duration(size)*time.Second/slowest, maxLimitsTimeout)
}

// PublishedLimits are the limits as they travel from polygen to all others.
type PublishedLimits struct {
	Version   string
	File      []byte // the limit file
	Overrides []byte // the overrides by hand; empty for none
}

// limitHead says which file the published limits have. The file has a key of its own, and so
// new overrides are read without it.
type limitHead struct {
	sum    string // of the content: the beginning of its SHA-256 in hexadecimal digits
	size   int    // bytes of the content
	stored int    // bytes in Redis, where it is compressed
}

func checksum(content []byte) string {
	sum := sha256.Sum256(content)
	return fmt.Sprintf("%x", sum[:16])
}

func (h limitHead) key() string { return limitsKey + ":" + h.sum }

// encode writes a head in words, as those of messages (wire.go):
//
//	1 <checksum> <bytes of the content> <bytes in Redis>
func (h limitHead) encode() string {
	b := appendText([]byte(wireVersion+" "), h.sum)
	b = strconv.AppendInt(append(b, ' '), int64(h.size), 10)
	return string(strconv.AppendInt(append(b, ' '), int64(h.stored), 10))
}

func decodeHead(text string) (limitHead, error) {
	w := words{rest: text}
	w.takeVersion(wireVersion)
	h := limitHead{sum: w.takeText(), size: int(w.takeNumber()), stored: int(w.takeNumber())}
	// Readers make room for both before they know the checksum.
	if h.size > maxLimitsSize || h.stored > maxLimitsSize || w.hasMore() {
		w.failWith(fmt.Errorf("a file of %d bytes, %d in Redis, want %d at most", h.size, h.stored, maxLimitsSize))
	}
	return h, w.err
}

type limitPublisher struct {
	mu      sync.Mutex
	version string // "" if the last publication failed
	head    limitHead
	stored  []byte // the file, compressed
	renewed int    // how often, since it was written
}

// PublishLimits keeps limits in Redis for 24 hours from now and tells all agents of their
// version. Until all of them are there, agents read the ones before.
func (b *Bus) PublishLimits(ctx context.Context, limits PublishedLimits) error {
	p := &b.limitPublisher
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = ""
	// A file that is published already need not be compressed again for other overrides.
	if sum := checksum(limits.File); sum != p.head.sum {
		p.stored = compress(limits.File)
		p.head = limitHead{sum: sum, size: len(limits.File), stored: len(p.stored)}
		p.renewed = rewriteEvery
	}
	// The file first, the head last: until the file is there, agents read the one before.
	if err := b.keepLimitFile(ctx); err != nil {
		return err
	}
	message := Pack(Append(nil, Limits{Version: limits.Version}))
	args := []any{limits.Version, p.head.encode(), limits.Overrides, int64(limitsTTL / time.Second), message}
	replies, err := b.runScripts(ctx, "publish_limits", "publish limits", call{script: limitsScript, keys: []string{limitsKey}, args: args})
	if err != nil {
		return err
	}
	p.version = limits.Version
	// Not deleted: agents may be reading the file before. If this fails, it expires a day after the last renewal.
	text, _ := replies[0].(string)
	if before, err := decodeHead(text); err == nil && before.sum != p.head.sum {
		_, _ = b.renewLimitFile(ctx, before, supersededTTL)
	}
	return nil
}

// KeepLimits keeps published limits for another 24 hours, and reports whether
// they are still the ones of the version, as this process has published them. If not, Redis
// has forgotten them, or another process published others.
func (b *Bus) KeepLimits(ctx context.Context, version string) (kept bool, err error) {
	p := &b.limitPublisher
	p.mu.Lock()
	defer p.mu.Unlock()
	// Another process may have published the same, but this one does not have the file as it is in Redis.
	if p.version == "" || p.version != version {
		return false, nil
	}
	replies, err := b.runScripts(ctx, "keep_limits", "keep limits", call{
		script: keepScript, keys: []string{limitsKey}, args: []any{version, int64(limitsTTL / time.Second)},
	})
	if err != nil || replies[0] != int64(1) {
		return false, err
	}
	return true, b.keepLimitFile(ctx)
}

// keepLimitFile keeps the file in Redis for another 24 hours: it writes the file if that is
// missing, or has not been written for long. The lock of the publisher must be held.
func (b *Bus) keepLimitFile(ctx context.Context) error {
	p := &b.limitPublisher
	if p.renewed < rewriteEvery {
		p.renewed++
		// The answer to EXPIRE says whether there is such a key.
		if there, err := b.renewLimitFile(ctx, p.head, limitsTTL); there || err != nil {
			return err
		}
	}
	err := b.callRedisWithin(ctx, limitsTimeout(b.timeout, p.head.stored), "write_limits", "write limits", func(ctx context.Context) error {
		return b.limitsClient.Set(ctx, p.head.key(), p.stored, limitsTTL).Err()
	})
	if err == nil {
		p.renewed = 0
	}
	return err
}

// renewLimitFile sets for how long a file is kept, and reports whether it is there.
func (b *Bus) renewLimitFile(ctx context.Context, h limitHead, ttl time.Duration) (there bool, err error) {
	err = b.callRedisWithin(ctx, limitsTimeout(b.timeout, 0), "renew_limits", "renew limits", func(ctx context.Context) error {
		there, err = b.limitsClient.Expire(ctx, h.key(), ttl).Result()
		return err
	})
	return there, err
}

func compress(content []byte) []byte {
	var b bytes.Buffer
	// It fails for unknown levels only, and a Buffer takes everything.
	w, _ := flate.NewWriter(&b, compression)
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}
