package redisbus

import "sync"

// maxQueue bounds the bytes that wait to be handled, each message counted with
// messageCost beside its payload. At most twice as much is held: what waits and
// what is being handled.
const (
	maxQueue    = 8 << 20
	messageCost = 128
)

// A message is one that was published, or a gap, of which the payload names the connection.
type message struct {
	channel Channel
	payload string
}

// A gap says that other messages may have been lost before it.
const gapChannel Channel = ""

func (m message) isGap() bool { return m.channel == gapChannel }

// A queue stands between the reading of a connection and the handling of what was read.
// Reading must never wait: a real Redis cuts slow readers off, and the embedded one waits
// for them. The zero queue is not ready: use newQueue.
type queue struct {
	filled chan struct{} // has one element while messages wait

	mu       sync.Mutex
	messages []message
	bytes    int
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

// enqueue appends a message. When there is no room it is dropped, enqueue returns
// false, and a gap takes its place. There is always room for a gap.
func (q *queue) enqueue(m message) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	fits := q.bytes+messageCost+len(m.payload) <= maxQueue
	if ok = fits || m.isGap(); !ok {
		m = message{}
	}
	// One gap says as much as several in a row, which would have no bound.
	if n := len(q.messages); !m.isGap() || n == 0 || !q.messages[n-1].isGap() || fits && m != q.messages[n-1] {
		q.messages, q.bytes = append(q.messages, m), q.bytes+messageCost+len(m.payload)
	}
	select {
	case q.filled <- struct{}{}:
	// The reader was told already, and takes all that is there.
	default:
	}
	return ok
}

func (q *queue) takeAll() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages := q.messages
	// Another array from here on: these are handled while more come.
	q.messages, q.bytes = nil, 0
	return messages
}
