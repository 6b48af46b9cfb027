package redisbus

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// The messages that scripts publish are words with a blank between them: numbers,
// and strings of any bytes as "<length>:<bytes>". The first word is the version. Those without
// "sluice:" are of the channels of a shard.
//
//	usage             1 <instance> { <second> <n> n*{ <limit|user> } n*{ <total> } } with the limit's name: class or class/window; the class of a unit of costs is $unit
//	progress          1 <instance> { <user> <held> <active> <refused> <limit> }
//	demand            1 <instance> { <user> <active> <moved> <most> <share> } with two numbers, down and up, for the last three
//	starts            1 <instance> <milliseconds> { <user> <active> <starts> <n> n*{ <class> <starts> } }
//	sluice:instances  2 <seconds> <microseconds> <epoch before, "" for none: all are named> <epoch> <n> n*{ <instance that left> } { <instance that joined> }
const (
	wireVersion      = "1"
	instancesVersion = "2"
)

// Usage is the pools that one instance asked in one call of Take or Charge, after it. Pools that did
// not change may be among them, and a pool that was asked twice is there twice, in order.
type Usage struct {
	Instance string
	Entries  []UsageEntry
}

// A UsageEntry is the new total of one pool.
type UsageEntry struct {
	Second int64         // the cluster second at which the window begins, in seconds since the epoch
	Key    ratelimit.Key // of costs: see CostUnit
	Total  int           // tokens and debts handed out so far in the window; what was charged of costs
}

// CostUnit is the unit of costs that a key of usage is of, and whether it is of one.
func CostUnit(k ratelimit.Key) (unit string, ok bool) { return strings.CutPrefix(k.Class, costPrefix) }

func decodeUsage(message string) (Usage, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	u := Usage{Instance: w.takeText()}
	for w.hasMore() {
		second, n := w.takeNumber(), int(w.takeNumber())
		first := len(u.Entries)
		// The number n is not trusted with memory: entries are made as words come.
		for len(u.Entries)-first < n && w.hasMore() {
			u.Entries = append(u.Entries, UsageEntry{Second: second, Key: w.takeKey()})
		}
		entries := u.Entries[first:]
		if len(entries) < n {
			w.failWith(fmt.Errorf("%d pools where it says %d", len(entries), n))
		}
		for i := range entries {
			entries[i].Total = int(w.takeNumber())
		}
	}
	return u, w.err
}

// Progress is what one instance told the pools of users near their limits in one
// call of Slots. A user is near the limit when all instances together run seven
// tenths of it, or did before the call, and whenever the instance refused some of
// the user's requests. A user who was asked for twice is there twice, in order.
type Progress struct {
	Instance string
	Entries  []ProgressEntry
}

// A ProgressEntry is the ask of one instance for one user, and what it holds now.
type ProgressEntry struct {
	User    string
	Held    int // slots
	Active  int // requests in progress
	Refused int // requests refused since the instance's last ask
	Limit   int // the user's limit over all instances
}

func decodeProgress(message string) (Progress, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	p := Progress{Instance: w.takeText()}
	for w.hasMore() {
		p.Entries = append(p.Entries, ProgressEntry{User: w.takeText(), Held: int(w.takeNumber()), Active: int(w.takeNumber()),
			Refused: int(w.takeNumber()), Limit: int(w.takeNumber())})
	}
	return p, w.err
}

// Demand is what one instance has in progress and moves of users with bandwidth
// limits.
type Demand []bandwidth.Report

func decodeDemand(message string) (Demand, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	instance := w.takeText()
	var d Demand
	for w.hasMore() {
		r := bandwidth.Report{Instance: instance, User: w.takeText(), Active: int(w.takeNumber())}
		r.Moved = [2]int64{w.takeNumber(), w.takeNumber()}
		r.Most = [2]int64{w.takeNumber(), w.takeNumber()}
		r.Share = [2]int64{w.takeNumber(), w.takeNumber()}
		d = append(d, r)
	}
	return d, w.err
}

type change struct {
	now          time.Time // when, by Redis' clock, to the microsecond
	from         string    // the epoch before; "" if the change names all instances
	epoch        string    // after it
	left, joined []string  // in this order; joined is sorted
}

func decodeChange(message string) (change, error) {
	w := words{rest: message}
	w.takeVersion(instancesVersion)
	c := change{now: w.takeTime(), from: w.takeText(), epoch: w.takeText()}
	left := int(w.takeNumber())
	// The number is not trusted with memory: names are made as words come.
	for len(c.left) < left && w.err == nil {
		c.left = append(c.left, w.takeText())
	}
	for w.hasMore() {
		c.joined = append(c.joined, w.takeText())
	}
	// To know none is to know nothing of the membership.
	if c.epoch == "" {
		w.failWith(errors.New("no epoch"))
	}
	// Whoever looks for a name in a list of instances takes it to be sorted.
	slices.Sort(c.joined)
	return c, w.err
}

// words reads a message from left to right. After an error every read returns a zero
// value, more is false, and the first error stays, so that decoders check it once.
type words struct {
	rest string
	err  error
}

func (w *words) hasMore() bool { return w.err == nil && w.rest != "" }

func (w *words) failWith(err error) {
	// What follows the first error is wrong because of it.
	if w.err == nil {
		w.err = err
	}
}

func (w *words) takeVersion(want string) {
	var v string
	if v, w.rest, _ = strings.Cut(w.rest, " "); v != want {
		w.failWith(fmt.Errorf("unknown version %.20q", v))
	}
}

func (w *words) takeNumber() int64 {
	digits, rest, _ := strings.Cut(w.rest, " ")
	w.rest = rest
	// 63 bits, so that it fits an int64.
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		w.failWith(fmt.Errorf("number %.30q: %w", digits, errors.Unwrap(err)))
		return 0
	}
	return int64(n)
}

// takeTime reads Redis' clock: seconds and microseconds.
func (w *words) takeTime() time.Time {
	sec, micro := w.takeNumber(), w.takeNumber()
	// Times a thousand it must stay what it is.
	if micro >= 1e6 {
		w.failWith(fmt.Errorf("%d microseconds", micro))
		return time.Time{}
	}
	return time.Unix(sec, micro*1000).UTC()
}

func (w *words) takeText() string {
	digits, rest, ok := strings.Cut(w.rest, ":")
	// 31 bits, more than any message has. A length that fits but does not end before a blank is wrong as well: what
	// follows would be read as other words than were written.
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !ok || n > uint64(len(rest)) || n < uint64(len(rest)) && rest[n] != ' ' {
		w.failWith(fmt.Errorf("string %.30q is not as long as it says", w.rest))
		return ""
	}
	w.rest = strings.TrimPrefix(rest[n:], " ")
	// A copy: what a receiver keeps, for minutes perhaps, must not keep the whole message.
	return strings.Clone(rest[:n])
}

func (w *words) takeKey() ratelimit.Key {
	field := w.takeText()
	// The first one: a name may have more, a class has none.
	name, user, ok := strings.Cut(field, "|")
	parse := limits.ParseRateName
	if strings.HasPrefix(name, costPrefix) {
		parse = limits.ParseCostName
	}
	class, window := parse(name)
	if !ok || !ValidClass(class) {
		w.failWith(fmt.Errorf("%.60q is not limit|user", field))
	}
	return ratelimit.Key{Class: class, User: user, Window: window}
}

// fieldOf is the text of a key in pools and messages: the limit's name, "|" and the user.
func fieldOf(k ratelimit.Key) string {
	// Nearly all limits are of a second, and a field is in each ask and each message.
	if k.Window == limits.Second {
		return k.Class + "|" + k.User
	}
	return k.Class + "/" + k.Window.String() + "|" + k.User
}

func appendText(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	return append(append(b, ':'), s...)
}
