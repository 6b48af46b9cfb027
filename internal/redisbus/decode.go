package redisbus

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// A SkippedError says that Decode did not understand some lines. The messages
// of the other lines are good.
type SkippedError struct {
	Lines int   // how many were skipped
	First error // why the first one was
}

func (e *SkippedError) Error() string {
	return fmt.Sprintf("skipped %d policies, the first: %v", e.Lines, e.First)
}

func (e *SkippedError) Unwrap() error { return e.First }

// Decode reads a batch of lines, the last of which may lack its newline. A line
// of an unknown version or kind, or that is not well formed, is skipped: the
// error is then a *SkippedError beside the messages of all other lines. A batch
// longer than MaxBatch is refused as a whole.
func Decode(batch []byte) ([]Message, error) {
	// As a whole: the end of what fits may be the middle of a line.
	if len(batch) > MaxBatch {
		return nil, fmt.Errorf("batch of %d bytes is longer than %d", len(batch), MaxBatch)
	}
	var messages []Message
	var skipped SkippedError
	for n := 1; len(batch) > 0; n++ {
		var line []byte
		line, batch, _ = bytes.Cut(batch, []byte{'\n'})
		// Each line by itself, so that a newer polygen may send kinds that this agent does not know.
		m, err := decodeLine(line)
		if err == nil {
			messages = append(messages, m)
			continue
		}
		// The first one says enough: the others are mostly of the same kind.
		if skipped.Lines++; skipped.Lines == 1 {
			skipped.First = fmt.Errorf("line %d: %w", n, err)
		}
	}
	if skipped.Lines > 0 {
		return messages, &skipped
	}
	return messages, nil
}

func decodeLine(line []byte) (Message, error) {
	if len(line) > MaxLine {
		return nil, fmt.Errorf("%d bytes are more than %d", len(line), MaxLine)
	}
	// A copy, once for all fields: names that are kept must not keep the batch.
	f := fields{rest: string(line)}
	// Before the kind: in another version the words may mean anything.
	if v := f.takeWord(); v != version {
		return nil, fmt.Errorf("unknown version %.20q", v)
	}
	var m Message
	switch kind := f.takeWord(); kind {
	case "throttle":
		m = Throttle{Key: f.takeKey(), Second: f.takeNumber(64), Limit: int(f.takeNumber(strconv.IntSize))}
	case "hot":
		m = Hot{Key: f.takeKey(), Until: time.UnixMilli(f.takeNumber(64)).UTC(), Instances: int(f.takeNumber(strconv.IntSize))}
	case "block":
		m = Block{User: f.takeText(), Limit: int(f.takeNumber(strconv.IntSize)), Release: int(f.takeNumber(strconv.IntSize))}
	case "unblock":
		m = Unblock{User: f.takeText()}
	case "slots":
		m = Slots{User: f.takeText(), Until: time.UnixMilli(f.takeNumber(64)).UTC(), Shares: f.takeSlotShares()}
	case "share":
		m = Share{User: f.takeText(), Direction: f.takeDirection(), Shares: f.takeShares()}
	case "limits":
		m = Limits{Version: f.takeText()}
	default:
		// Of a newer polygen. The caller skips the line: limits hold without any policy.
		return nil, fmt.Errorf("unknown kind %.20q", kind)
	}
	// What is more than its fields would be meant for a decision that this agent does not make.
	if f.rest != "" {
		f.fail(errors.New("more than its fields"))
	}
	return m, f.err
}

// fields reads a line from left to right. After an error everything reads as
// zero and the first error stays.
type fields struct {
	rest string
	err  error
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fields) takeWord() string {
	// A word that is missing reads as "", which is no version, kind, number or direction.
	w, rest, _ := strings.Cut(f.rest, " ")
	f.rest = rest
	return w
}

func (f *fields) takeNumber(bits int) int64 {
	w := f.takeWord()
	// The positive half of int64 or int, on a machine of 32 bits too: no field may be negative.
	n, err := strconv.ParseUint(w, 10, bits-1)
	if err != nil {
		f.fail(fmt.Errorf("number %.30q: %w", w, errors.Unwrap(err)))
	}
	return int64(n)
}

func (f *fields) takeDirection() bandwidth.Direction {
	w := f.takeWord()
	for _, d := range bandwidth.Directions {
		// The word that limit files and metrics have, too.
		if d.String() == w {
			return d
		}
	}
	f.fail(fmt.Errorf("direction %.20q is neither down nor up", w))
	return 0
}

func (f *fields) takeText() string {
	quoted, err := strconv.QuotedPrefix(f.rest)
	// Go has two other ways to quote, of which polygen uses none: one text has one form.
	if err == nil && quoted[0] != '"' {
		err = strconv.ErrSyntax
	}
	if err != nil {
		f.fail(fmt.Errorf("quoted string: %w", err))
		return ""
	}
	f.rest = strings.TrimPrefix(f.rest[len(quoted):], " ")
	// QuotedPrefix has checked it.
	s, _ := strconv.Unquote(quoted)
	return s
}

func (f *fields) takeSlotShares() (shares []SlotShare) {
	// Until the first error, after which nothing is taken from the rest any more.
	for f.err == nil && f.rest != "" {
		shares = append(shares, SlotShare{Instance: f.takeText(), Slots: int(f.takeNumber(strconv.IntSize))})
	}
	return shares
}

func (f *fields) takeShares() (shares []bandwidth.Share) {
	for f.err == nil && f.rest != "" {
		shares = append(shares, bandwidth.Share{Instance: f.takeText(), Bytes: f.takeNumber(64)})
	}
	return shares
}

func (f *fields) takeKey() ratelimit.Key {
	class, window := limits.ParseRateName(f.takeText())
	k := ratelimit.Key{Class: class, User: f.takeText(), Window: window}
	// HAProxy's tables have "class|user" as one key: a class with a '|' would be that of another user.
	if !ValidClass(k.Class) {
		f.fail(fmt.Errorf("class %.40q holds '|', '/' or a control byte", k.Class))
	}
	return k
}
