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

func lossOf(shard int) message { return message{channel: lostChannel, shard: shard} }

// isMark reports whether a message says something of the messages of its shard.
func (m message) isMark() bool { return m.channel == gapChannel || m.channel == lostChannel }

// A queue stands between the reading of a connection and the handling of what was read.
// Reading must never wait: a real Redis cuts slow readers off, and the embedded one waits
// for them. The zero queue is not ready: use newQueue.
type queue struct {
	filled chan struct{} // has one element while messages wait

	mu       sync.Mutex
	messages []message
	bytes    int
	marks    map[int]int // by shard, where its last message is, if that is a mark
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1), marks: make(map[int]int)} }

// enqueue appends a message. When there is no room it is dropped, enqueue returns
// false, and a gap takes its place. There is always room for marks.
func (q *queue) enqueue(m message) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := messageCost + len(m.payload)
	// A full queue is when messages are lost: a mark that is dropped then would hide it, or call a lost shard heard.
	ok = m.isMark() || q.bytes+cost <= maxQueue
	at, marked := q.marks[m.shard]
	switch {
	// Marks in a row would have no bound, and the last one says all: whether the shard is heard from now on.
	case ok && m.isMark() && marked:
		q.messages[at] = m
	case ok:
		q.append(m, cost)
	case !marked:
		q.append(gapOf(m.shard), messageCost)
	}
	select {
	case q.filled <- struct{}{}:
	// The reader was told already, and takes all that is there.
	default:
	}
	return ok
}

func (q *queue) append(m message, cost int) {
	// What follows a mark was heard after it: the next mark must not stand before that.
	delete(q.marks, m.shard)
	if m.isMark() {
		q.marks[m.shard] = len(q.messages)
	}
	q.messages, q.bytes = append(q.messages, m), q.bytes+cost
}

// takeAll removes all messages.
func (q *queue) takeAll() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages := q.messages
	// Another array from here on: these are handled while more come.
	q.messages, q.bytes = nil, 0
	clear(q.marks)
	return messages
}
