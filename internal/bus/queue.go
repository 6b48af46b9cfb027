package bus

import "sync"

// maxQueue bounds the bytes that wait to be handled, each message counted with
// messageCost beside its payload. At most twice as much is held: what waits and
// what is being handled.
const (
	maxQueue    = 8 << 20
	messageCost = 128
)

// A message is one that was published, or says something of the messages of its shard.
type message struct {
	channel Channel
	payload string
	shard   int // or noShard
}

const (
	gapChannel  Channel = ""     // others may have been lost before it
	lostChannel Channel = "lost" // those that follow are not heard
)

func gapOf(shard int) message { return message{channel: gapChannel, shard: shard} }

// A queue stands between the reading of a connection and the handling of what was read.
// Reading must never wait: a real Redis cuts slow readers off, and the embedded one waits
// for them. The zero queue is not ready: use newQueue.
type queue struct {
	filled chan struct{} // has one element while messages wait

	mu       sync.Mutex
	messages []message
	bytes    int
	gaps     map[int]bool // by shard, whether its last message is a gap
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1), gaps: make(map[int]bool)} }

// enqueue appends a message. When there is no room it is dropped, enqueue returns
// false, and a gap takes its place.
func (q *queue) enqueue(m message) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := messageCost + len(m.payload)
	// A gap has room in any case, or it would be hidden just when messages are lost.
	if ok = m.channel == gapChannel || q.bytes+cost <= maxQueue; ok {
		q.bytes += cost
	} else {
		m = gapOf(m.shard)
	}
	// One gap says as much as several in a row, which would have no bound.
	if gap := m.channel == gapChannel; !gap || !q.gaps[m.shard] {
		q.messages = append(q.messages, m)
		q.gaps[m.shard] = gap
	}
	select {
	case q.filled <- struct{}{}:
	// The reader was told already, and takes all that is there.
	default:
	}
	return ok
}

// takeAll removes all messages.
func (q *queue) takeAll() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages := q.messages
	// Another array from here on: these are handled while more come.
	q.messages, q.bytes = nil, 0
	clear(q.gaps)
	return messages
}
