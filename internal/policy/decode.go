package policy

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
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
	if len(batch) > MaxBatch {
		return nil, fmt.Errorf("batch of %d bytes is longer than %d", len(batch), MaxBatch)
	}
	var messages []Message
	var skipped SkippedError
	for n := 1; len(batch) > 0; n++ {
		var line []byte
		line, batch, _ = bytes.Cut(batch, []byte{'\n'})
		m, err := decodeLine(line)
		if err == nil {
			messages = append(messages, m)
			continue
		}
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
	f := fields{rest: string(line)}
	if v := f.takeWord(); v != version {
		return nil, fmt.Errorf("unknown version %.20q", v)
	}
	var m Message
	switch kind := f.takeWord(); kind {
	case "throttle":
		m = Throttle{Key: f.takeKey(), Second: f.takeNumber(64), Limit: int(f.takeNumber(strconv.IntSize))}
	case "confirm":
		m = Confirm{Key: f.takeKey(), Second: f.takeNumber(64)}
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
	case "trace":
		m = Trace{Parent: f.takeParent()}
	default:
		return nil, fmt.Errorf("unknown kind %.20q", kind)
	}
	if f.err == nil && f.rest != "" {
		f.err = errors.New("more than its fields")
	}
	return m, f.err
}

// fields reads a line from left to right. After an error everything reads as
// zero and the first error stays.
type fields struct {
	rest string
	err  error
}

// takeWord takes what stands before the next blank.
func (f *fields) takeWord() string {
	w, rest, _ := strings.Cut(f.rest, " ")
	f.rest = rest
	return w
}

func (f *fields) takeNumber(bits int) int64 {
	w := f.takeWord()
	n, err := strconv.ParseUint(w, 10, bits-1) // the positive half of int64 or int
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("number %.30q: %w", w, errors.Unwrap(err))
	}
	return int64(n)
}

func (f *fields) takeDirection() bandwidth.Direction {
	w := f.takeWord()
	for _, d := range bandwidth.Directions {
		if d.String() == w {
			return d
		}
	}
	if f.err == nil {
		f.err = fmt.Errorf("direction %.20q is neither down nor up", w)
	}
	return 0
}

func (f *fields) takeText() string {
	quoted, err := strconv.QuotedPrefix(f.rest)
	if err == nil && quoted[0] != '"' {
		err = strconv.ErrSyntax // Go's other two ways to quote
	}
	if err != nil {
		if f.err == nil {
			f.err = fmt.Errorf("quoted string: %w", err)
		}
		return ""
	}
	f.rest = strings.TrimPrefix(f.rest[len(quoted):], " ")
	s, _ := strconv.Unquote(quoted) // QuotedPrefix has checked it
	return s
}

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func (f *fields) takeParent() string {
	s := f.takeText()
	if f.err == nil && !traceparent.MatchString(s) {
		f.err = fmt.Errorf("%.60q is not a traceparent", s)
	}
	return s
}

// takeSlotShares reads the rest of the line.
func (f *fields) takeSlotShares() (shares []SlotShare) {
	for f.err == nil && f.rest != "" {
		shares = append(shares, SlotShare{Instance: f.takeText(), Slots: int(f.takeNumber(strconv.IntSize))})
	}
	return shares
}

// takeShares reads the rest of the line.
func (f *fields) takeShares() (shares []bandwidth.Share) {
	for f.err == nil && f.rest != "" {
		shares = append(shares, bandwidth.Share{Instance: f.takeText(), Bytes: f.takeNumber(64)})
	}
	return shares
}

func (f *fields) takeKey() ratelimit.Key {
	class, window := limits.ParseRateName(f.takeText())
	k := ratelimit.Key{Class: class, User: f.takeText(), Window: window}
	if !ValidClass(k.Class) && f.err == nil {
		f.err = fmt.Errorf("class %.40q holds '|', '/' or a control byte", k.Class)
	}
	return k
}
