package costfeed

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A Correction is what a request cost above what was charged for it or, negative, below.
type Correction struct {
	Second int64 // in which it was charged, since the epoch; 1 or later
	Unit   string
	Change int64 // as much as limits.MaxCost in either direction; 0: what was charged is right after all
	User   string
}

// A Question is one about a request that may cost something.
type Question struct {
	ID   int64 // by chance; 0 or more
	User string
}

// A line is a correction, how often something happened in HAProxy, or a question.
type line struct {
	correction          Correction // if all others are zero
	dropped, unreadable int64
	unheard             Question
}

const (
	// maxLine is the longest line without its end, in bytes: two costs, a second, and names, one a user's key.
	maxLine = 13 + 1 + 13 + 1 + 10 + 1 + 24 + 1 + maxUser
	// maxUser is the longest key of a user in HAProxy's tables, in bytes.
	maxUser = 127
	// maxSecond has the ten digits that seconds since the epoch have for the next two centuries.
	maxSecond = 9_999_999_999
	// maxQuestion is the largest id of a question: 32 bits by chance, and one more when it is asked again.
	maxQuestion = 1<<33 - 1
)

var unitName = regexp.MustCompile(`^[a-z0-9]+(?:[_-][a-z0-9]+)*$`)

// Errors of a line say which part of it is wrong. None has anything of the line in it: keys are people's names.
var (
	errParts  = errors.New("not a correction, which has four parts")
	errSecond = errors.New("no second since the epoch")
	errUnit   = errors.New("no name of a unit")
	errCost   = errors.New("no cost")
	errUser   = errors.New("no key of a user")
	errCount  = errors.New("no count")
	errID     = errors.New("no id of a question")
)

// parse reads a line without its end.
func parse(text []byte) (line, error) {
	parts := bytes.SplitN(text, []byte(" "), 4)
	switch {
	case len(parts) == 2 && string(parts[0]) == "dropped":
		n, err := number(parts[1], 1, maxSecond, errCount)
		return line{dropped: n}, err
	case len(parts) == 2 && string(parts[0]) == "unreadable":
		n, err := number(parts[1], 1, maxSecond, errCount)
		return line{unreadable: n}, err
	case string(parts[0]) == "unheard":
		return parseUnheard(text)
	case len(parts) != 4:
		return line{}, errParts
	}
	cost, err := number(parts[0], 0, limits.MaxCost, errCost)
	if err != nil {
		return line{}, err
	}
	amount, at, _ := bytes.Cut(parts[1], []byte("@"))
	charged, err := number(amount, 0, limits.MaxCost, errCost)
	if err != nil {
		return line{}, err
	}
	second, err := number(at, 1, maxSecond, errSecond)
	if err != nil {
		return line{}, err
	}
	if len(parts[2]) > 24 || !unitName.Match(parts[2]) {
		return line{}, errUnit
	}
	user := parts[3]
	if !isUser(user) {
		return line{}, errUser
	}
	return line{correction: Correction{Second: second, Unit: string(parts[2]), Change: cost - charged, User: string(user)}}, nil
}

// parseUnheard reads a line of three parts, of which the user's key may have blanks.
func parseUnheard(text []byte) (line, error) {
	parts := bytes.SplitN(text, []byte(" "), 3)
	if len(parts) != 3 {
		return line{}, errParts
	}
	id, err := number(parts[1], 0, maxQuestion, errID)
	if err != nil {
		return line{}, err
	}
	if !isUser(parts[2]) {
		return line{}, errUser
	}
	return line{unheard: Question{ID: id, User: string(parts[2])}}, nil
}

// isUser reports whether HAProxy can have made this key. A control byte would be another's line, or half of one.
func isUser(key []byte) bool {
	return len(key) > 0 && len(key) <= maxUser && !bytes.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func number(text []byte, least, most int64, wrong error) (int64, error) {
	// Go would take a plus sign as well.
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil && n >= least && n <= most && text[0] != '+' {
		return n, nil
	}
	return 0, wrong
}
