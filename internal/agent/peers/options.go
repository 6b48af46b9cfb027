package peers

import (
	"fmt"
	"log/slog"
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

	// Teach lists the tables that entries are taught into, each of another name.
	Teach []Table

	// Learn is called for each entry that HAProxy pushes, of every table of its
	// peers section with string or binary keys, also of those in Teach. It is called from the goroutine
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
}

const (
	// maxEntries bounds the entries of each table that have not ended: a table that is full takes
	// no room from another. Beyond it new keys are dropped and counted. So many take about 40 MB for each
	// table, and are what HAProxy's tables hold.
	maxEntries = 200_000

	dialTimeout = 2 * time.Second // of connecting and the handshake
	// idleTimeout ends a session in which nothing arrives, or nothing can be written, for so long. HAProxy
	// sends something every 3 s, and gives up as well after 5 s.
	idleTimeout       = 5 * time.Second
	heartbeatInterval = time.Second // this side is silent for so long at most

	// The time between two attempts to connect doubles from one to the other. The attempt after a
	// session is made at once, unless sessions end quickly. A HAProxy takes longer than the shorter one to start.
	retryMin, retryMax = 10 * time.Millisecond, 500 * time.Millisecond
)

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

func (t Table) definition(id uint64) definition {
	d := definition{
		id:      id,
		name:    t.Name,
		keyType: keyString,
		keyLen:  uint64(t.KeyLen) + 1, // HAProxy counts the NUL that ends a string
		expire:  t.Expire,
	}
	// HAProxy ignores the table unless these are exactly the bits of its own.
	for _, dt := range t.Data {
		d.data |= 1 << dt
	}
	return d
}
