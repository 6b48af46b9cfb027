package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Client.
type Options struct {
	// Network and Address are where HAProxy's own peer listens: "unix" and a
	// path, or "tcp" and a loopback address. Required.
	Network, Address string

	// Local is this endpoint's peer name and Remote is HAProxy's, both as in
	// HAProxy's peers section. Required. HAProxy keeps one session per name: a
	// second endpoint with the same one ends the session of the first.
	Local, Remote string

	// Teach lists the tables that entries are taught into.
	Teach []Table

	// Learn is called for each entry that HAProxy pushes, of every table of its
	// peers section, also of those in Teach. It is called from the goroutine
	// that reads and must return fast; it may call Teach. Nil ignores them.
	Learn func(Update)

	// OnSession is called when a session changes its state: with Up before the
	// first Learn of the session and with Down after its last one. Nil ignores
	// it.
	OnSession func(Session)

	// Logger gets state changes and, rate-limited, failures. Nil discards them.
	Logger *slog.Logger
	// Registerer gets the metrics. Nil leaves them unregistered.
	Registerer prometheus.Registerer

	// MaxEntries bounds the entries of each table that have not ended: a table that is
	// full takes no room from another. Beyond it new keys are dropped and counted.
	// 0 means 200 000, about 40 MB for each table, and what HAProxy's tables hold.
	MaxEntries int

	// DialTimeout bounds connecting and the handshake. 0 means 2 s.
	DialTimeout time.Duration
	// IdleTimeout ends a session in which nothing arrives, or nothing can be
	// written, for so long. HAProxy sends something every 3 s. 0 means 5 s,
	// after which HAProxy gives up as well.
	IdleTimeout time.Duration
	// Heartbeat is how long this side is silent at most. 0 means 1 s.
	Heartbeat time.Duration
	// RetryMin and RetryMax bound the time between two attempts to connect; it
	// doubles from one to the other. The attempt after a session is made at once,
	// unless sessions end quickly. 0 means 10 ms, less than a HAProxy takes to
	// start, and 500 ms.
	RetryMin, RetryMax time.Duration
}

// Table is a stick table with string keys that this endpoint announces and
// teaches. HAProxy silently ignores it unless name, key length and data types
// are those of its own table.
type Table struct {
	Name   string        // on the wire: "/throttle" for a table of the peers section
	KeyLen int           // as in HAProxy's "type string len"; longer keys are not taught
	Expire time.Duration // as HAProxy's "expire", which bounds every entry's ttl
	Data   []DataType    // as HAProxy's "store", in any order: plain numbers only
}

// Session tells of a change of a session's state.
type Session struct {
	ID    uint64 // counts up from 1 with each session of the Client
	State State

	// Closed says, with Down, that HAProxy closed a working session: it has been replaced,
	// for instance by a reload, or it has ended.
	Closed bool
}

// State is a session's state.
type State int

// The states of a session, in their order: Up, then Synced unless the session ends before,
// then Down, then Gone if no HAProxy listens any more.
const (
	Up     State = iota + 1 // established
	Synced                  // HAProxy has pushed all it had: what was not learned in this session is not there
	Down                    // ended
	Gone                    // HAProxy has ended, and with it all its requests in progress
)

func (s State) String() string {
	switch s {
	case Up:
		return "up"
	case Synced:
		return "synced"
	case Down:
		return "down"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// maxKeyLen bounds keys: a message must fit into HAProxy's buffer.
const maxKeyLen = 4096

func (o Options) withDefaults() Options {
	setDefault(&o.MaxEntries, 200_000)
	setDefault(&o.DialTimeout, 2*time.Second)
	setDefault(&o.IdleTimeout, 5*time.Second)
	setDefault(&o.Heartbeat, time.Second)
	setDefault(&o.RetryMin, 10*time.Millisecond)
	setDefault(&o.RetryMax, 500*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// validate reports the first rule that the options, defaults included, break.
func (o Options) validate() error {
	switch o.Network {
	case "unix", "tcp", "tcp4", "tcp6":
	default:
		return fmt.Errorf("network %q: want unix or tcp", o.Network)
	}
	if o.Address == "" {
		return errors.New("no address")
	}
	for _, name := range []string{o.Local, o.Remote} {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("peer name %q: want a word", name)
		}
	}
	if o.MaxEntries < 0 || min(o.DialTimeout, o.IdleTimeout, o.Heartbeat, o.RetryMin, o.RetryMax) < 0 {
		return errors.New("a limit or timeout is negative")
	}
	seen := make(map[string]bool)
	for _, t := range o.Teach {
		if err := t.validate(); err != nil {
			return fmt.Errorf("table %q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return fmt.Errorf("table %q: named twice", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

func (t Table) validate() error {
	switch {
	case t.Name == "" || len(t.Name) > maxKeyLen:
		return errors.New("want a name")
	case t.KeyLen < 1 || t.KeyLen > maxKeyLen:
		return fmt.Errorf("key length %d: want 1 to %d", t.KeyLen, maxKeyLen)
	case t.Expire < time.Millisecond:
		return fmt.Errorf("expire %v: want a millisecond at least", t.Expire)
	case len(t.Data) == 0:
		return errors.New("want data types")
	}
	for _, d := range t.Data {
		if d.wireShape() != number {
			return fmt.Errorf("data type %d: cannot be taught", d)
		}
	}
	return nil
}

// definition announces the table with the given id.
func (t Table) definition(id uint64) definition {
	d := definition{
		id:      id,
		name:    t.Name,
		keyType: keyString,
		keyLen:  uint64(t.KeyLen) + 1, // HAProxy counts the NUL that ends a string
		expire:  t.Expire,
	}
	for _, dt := range t.Data {
		d.data |= 1 << dt
	}
	return d
}
