package redisbus

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/daemon"
)

const (
	// readersRate is how many bytes per second all readers of a new limit file read together: four fifths of a link of
	// 1 Gbit/s. The rest is for leases.
	readersRate = 100_000_000

	// sliceSize is how many bytes one call reads. Leases wait for no more of each reader, and Redis has no more of it
	// in memory.
	sliceSize = 64 << 10
)

// spread is the time in which all readers read a file, whose size is that in Redis.
func spread(readers int64, stored int) time.Duration {
	// One that is alone need not wait.
	return time.Duration(float64(max(1, readers)-1) * float64(stored) / readersRate * float64(time.Second))
}

var (
	// ErrNoLimitFile says that the file of the published limits is missing. polygen writes it again.
	ErrNoLimitFile = errors.New("the file of the published limits is missing")

	// ErrDamagedLimits says that published limits are not what their checksum says.
	ErrDamagedLimits = errors.New("the published limits are damaged")
)

// Why limits could not be read, as metrics have it. See also LimitErrorReason.
const (
	UnreachableLimits = "redis"    // Redis did not answer in time, or refused
	MissingLimits     = "missing"  // none, or not all of them, are published
	DamagedLimits     = "checksum" // they are not what their checksum says
	InvalidLimits     = "invalid"  // this version does not understand them
)

// LimitErrorReason is the reason of an error of LimitReader.
func LimitErrorReason(err error) string {
	switch {
	case errors.Is(err, ErrDamagedLimits):
		return DamagedLimits
	// Polygen repairs either: it writes again what Redis has forgotten.
	case errors.Is(err, ErrNoLimits), errors.Is(err, ErrNoLimitFile):
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

	mu   sync.Mutex // held while limits are read
	head limitHead  // of file
	file []byte     // that was read last
	part limitPart
}

// limitPart is what has been read of a file, so that after an error it is not read again.
type limitPart struct {
	head   limitHead
	stored []byte
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
func (b *Bus) Limits(ctx context.Context, readers int64) (PublishedLimits, error) {
	return b.limitReader.Limits(ctx, readers)
}

// Version returns the version that was last published, or ErrNoLimits. It costs the same
// however long the limit file is.
func (r *LimitReader) Version(ctx context.Context) (version string, err error) {
	fields, err := r.readFields(ctx, "version")
	if err != nil {
		return "", err
	}
	return fields[0], nil
}

// Limits returns the limits that were last published, or ErrNoLimits. Before it reads another
// file than the call before, it waits at random, for as long as all readers need at most. After
// an error the next call reads the rest. Callers must not modify the result.
func (r *LimitReader) Limits(ctx context.Context, readers int64) (PublishedLimits, error) {
	// A second call would read the same beside the first.
	r.mu.Lock()
	defer r.mu.Unlock()
	limits, head, err := r.readHead(ctx)
	if err == nil && head != r.head && head != r.part.head {
		if !daemon.Sleep(ctx, time.Duration(rand.Float64()*float64(spread(readers, head.stored)))) {
			return PublishedLimits{}, ctx.Err()
		}
		// Others may have been published meanwhile.
		limits, head, err = r.readHead(ctx)
		r.part = limitPart{head: head}
	}
	if err == nil && head != r.head {
		err = r.readFile(ctx)
	}
	if err != nil {
		return PublishedLimits{}, err
	}
	limits.File = r.file
	return limits, nil
}

func (r *LimitReader) readHead(ctx context.Context) (PublishedLimits, limitHead, error) {
	fields, err := r.readFields(ctx, "version", "head", "overrides")
	if err != nil {
		return PublishedLimits{}, limitHead{}, err
	}
	head, err := decodeHead(fields[1])
	if err != nil {
		return PublishedLimits{}, limitHead{}, fmt.Errorf("read limits: %w: head: %w", ErrDamagedLimits, err)
	}
	return PublishedLimits{Version: fields[0], Overrides: []byte(fields[2])}, head, nil
}

// readFields reads fields that are published beside the file, all of which must be there.
func (r *LimitReader) readFields(ctx context.Context, names ...string) (fields []string, err error) {
	err = r.call(ctx, limitsTimeout(r.timeout, 0), "limits", "read limits", func(ctx context.Context) error {
		values, err := r.client.HMGet(ctx, limitsKey, names...).Result()
		for _, v := range values {
			text, there := v.(string)
			// Redis has answered that there are none.
			if !there {
				return ErrNoLimits
			}
			fields = append(fields, text)
			r.count(len(text))
		}
		return err
	})
	return fields, err
}

// readFile reads the rest of the file that r.part has a part of. The lock of the reader must be
// held.
func (r *LimitReader) readFile(ctx context.Context) error {
	p := &r.part
	for len(p.stored) < p.head.stored {
		slice, err := r.readSlice(ctx, p.head, len(p.stored))
		if err != nil {
			return err
		}
		p.stored = append(p.stored, slice...)
	}
	head, stored := p.head, p.stored
	// Also if it is damaged: the next call reads all of it again.
	*p = limitPart{}
	file, err := head.decompress(stored)
	if err != nil {
		return fmt.Errorf("read limits: %w: %w", ErrDamagedLimits, err)
	}
	r.head, r.file = head, file
	return nil
}

func (r *LimitReader) readSlice(ctx context.Context, h limitHead, from int) (slice []byte, err error) {
	size := min(sliceSize, h.stored-from)
	err = r.call(ctx, limitsTimeout(r.timeout, size), "limits_file", "read limits", func(ctx context.Context) error {
		slice, err = r.client.GetRange(ctx, h.key(), int64(from), int64(from+size-1)).Bytes()
		return err
	})
	r.count(len(slice))
	if err == nil && len(slice) < size {
		r.part = limitPart{}
		err = ErrNoLimitFile
		if len(slice) > 0 {
			err = ErrDamagedLimits
		}
		err = fmt.Errorf("read limits: %w", err)
	}
	return slice, err
}

func (h limitHead) decompress(stored []byte) ([]byte, error) {
	// As much as the head says, and no more: damaged files may decompress to gigabytes.
	content := make([]byte, h.size)
	if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(stored)), content); err != nil {
		return nil, err
	}
	// The rest is not read: the checksum says that nothing is missing.
	if checksum(content) != h.sum {
		return nil, errors.New("the file has another checksum")
	}
	return content, nil
}
