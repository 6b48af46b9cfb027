//go:build !race

package spoa

import (
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// The functions here say how many bytes a call, an answer or a message has on the wire, without
// making it: internal/bus's encoders take more time than all that is simulated. TestSimulatedBytes
// holds them to what internal/bus sends.

// callBytes adds up a command of Redis' protocol.
type callBytes struct{ args, bytes int }

func (c *callBytes) text(length int) { c.args, c.bytes = c.args+1, c.bytes+bulkBytes(length) }

func (c *callBytes) numbers(numbers ...int) {
	for _, n := range numbers {
		c.text(digits(n))
	}
}

func (c *callBytes) total() int { return arrayBytes(c.args) + c.bytes }

// script begins a call of one.
func script() callBytes {
	var c callBytes
	c.text(len("evalsha"))
	c.text(40)
	return c
}

func digits(n int) int {
	d := 1
	if n < 0 {
		d, n = 2, -n
	}
	for ; n >= 10; n /= 10 {
		d++
	}
	return d
}

func bulkBytes(length int) int { return 1 + digits(length) + 2 + length + 2 }

func arrayBytes(n int) int { return 1 + digits(n) + 2 }

func integerBytes(n int) int { return 1 + digits(n) + 2 }

// textBytes is a name in one of our messages.
func textBytes(length int) int { return digits(length) + 1 + length }

// timeBytes is Redis' time at the head of an answer.
func timeBytes() int { return bulkBytes(10) + bulkBytes(6) }

// pushBytes is a message as a subscriber gets it.
func pushBytes(kind string, channel, length int) int {
	return arrayBytes(3) + bulkBytes(len(kind)) + bulkBytes(channel) + bulkBytes(length)
}

// publishBytes is a message as it is sent.
func publishBytes(command string, channel, length int) int {
	c := callBytes{}
	c.text(len(command))
	c.text(channel)
	c.text(length)
	return c.total()
}

// In a Redis Cluster messages about users go over channels of their shards.
const toShard, fromShard = "spublish", "smessage"

// channelBytes is the name of such a channel.
func channelBytes(kind string, shard int) int { return len("sluice:{}:") + digits(shard) + len(kind) }

// channel is how a script is told to publish.
func (c *callBytes) channel(kind string, shard int) {
	c.text(len(toShard))
	c.text(channelBytes(kind, shard))
}

const (
	sessionLength = 8 // of the random word in keys
	maxTogether   = 256
)

func fieldBytes(k ratelimit.Key) int { return len(k.Class) + 1 + len(k.User) }

// takeBytes is a call of scripts/take.lua for asks of one shard, up to maxTogether of them.
func takeBytes(instance string, shard int, asks []ratelimit.Ask) int {
	c := script()
	var windows []int64
	for i := range asks {
		known := false
		for _, w := range windows {
			known = known || w == asks[i].WindowStart
		}
		if !known {
			windows = append(windows, asks[i].WindowStart)
		}
	}
	prefix := len("sluice:{}:") + digits(shard)
	c.numbers(len(windows) + 1)
	for range windows {
		c.text(prefix + len("requests:") + 10)
	}
	c.text(prefix + len("heard:take:") + len(instance) + 1 + sessionLength)
	c.text(2 + textBytes(len(instance)))
	c.channel("usage", shard)
	c.numbers(11, int(asks[0].Seq)<<13, int(time.Hour/time.Second))
	for _, w := range windows {
		n := 0
		for i := range asks {
			if asks[i].WindowStart == w {
				n++
			}
		}
		c.text(10)
		c.numbers(1, n)
	}
	for i := range asks {
		a := &asks[i]
		c.text(fieldBytes(a.Key))
		c.numbers(a.Debt-a.Back, a.Need, a.Ahead, a.Limit, max(1, a.Instances), a.Reserve, 1)
	}
	return c.total()
}

// slotBytes is a call of scripts/slots.lua for asks of one shard, up to maxTogether of them.
func slotBytes(instance string, shard, instances int, asks []concurrency.Ask) int {
	c := script()
	prefix := len("sluice:{}:slots:") + digits(shard)
	c.numbers(1 + len(asks))
	c.text(len("sluice:{}:alive") + digits(shard))
	for i := range asks {
		c.text(prefix + len(asks[i].User))
	}
	c.text(len(instance))
	c.text(2 + textBytes(len(instance)))
	forgiven := 1750 + int(bus.AliveEvery(instances)/time.Millisecond) - 500
	c.numbers(prefix+1, 30, 1000, instances, 1750, forgiven)
	c.channel("progress", shard)
	for i := range asks {
		a := &asks[i]
		c.numbers(a.Want, a.Active, int(a.Seq), a.Refused, a.Limit, a.Portion)
	}
	return c.total()
}

// aliveBytes is a call of scripts/alive.lua.
func aliveBytes(instance string, shard int) int {
	c := script()
	c.numbers(1)
	c.text(len("sluice:{}:alive") + digits(shard))
	c.text(len(instance))
	c.numbers(1750, int(time.Minute/time.Millisecond))
	return c.total()
}

// heartbeatBytes is a call of scripts/heartbeat.lua, and its answer.
func heartbeatBytes(instance string, instances int) (call, answer int) {
	c := script()
	c.numbers(3)
	for _, key := range []string{"instances", "shards", "epoch"} {
		c.text(len("sluice:{cluster}:") + len(key))
	}
	c.text(len(instance))
	c.numbers(simShards)
	c.text(len("1000-") + sessionLength + 3) // an epoch: the count of changes, and the word of a call
	c.text(13)
	c.numbers(500, 1500, 5000, instances)
	return c.total(), arrayBytes(2) + timeBytes()
}

// demandBytes is one message of reports.
func demandBytes(instance string, reports []bandwidth.Report) int {
	n := 2 + textBytes(len(instance))
	for i := range reports {
		r := &reports[i]
		n += 1 + textBytes(len(r.User)) + 7 + digits(r.Active)
		for d := range 2 {
			n += digits(int(r.Moved[d])) + digits(int(r.Most[d])) + digits(int(r.Share[d]))
		}
	}
	return n
}

// startedBytes is one message of starts.
func startedBytes(instance string, users []bus.Started) int {
	n := 2 + textBytes(len(instance)) + 1 + digits(1000)
	for i := range users {
		u := &users[i]
		n += 1 + textBytes(len(u.User)) + 1 + digits(u.Active) + 1 + digits(int(u.Starts)) + classesBytes(u.Classes)
	}
	return n
}

func classesBytes(classes []bus.StartedClass) int {
	n := 1 + digits(len(classes))
	for _, c := range classes {
		n += 1 + textBytes(len(c.Class)) + 1 + digits(int(c.Starts))
	}
	return n
}

// eventsBytes is what a user takes in a report of a second.
func eventsBytes(of *bus.EventsOf) int {
	return 1 + textBytes(len(of.Name)) + 1 + digits(int(of.Ends)) + classesBytes(of.Classes)
}

// eventsCallBytes is a call of scripts/events.lua with the first part of a report, and an HSET of the others, which have
// so many bytes; and the answers.
func eventsCallBytes(report string, tag int, parts []int) (call, answers int) {
	key := len("sluice:{}:events::reports") + tag + 10
	first, others := script(), callBytes{}
	first.numbers(1)
	first.text(key)
	first.numbers(60)
	others.text(len("hset"))
	others.text(key)
	to, told := &first, 0
	for i, n := range parts {
		if n > 0 {
			to.text(len(report) + 1 + len(strconv.Itoa(i)))
			to.text(1 + n)
			to, told = &others, told+1
		}
	}
	if told <= 1 {
		return first.total(), integerBytes(1)
	}
	return first.total() + others.total(), integerBytes(1) + integerBytes(told-1)
}
