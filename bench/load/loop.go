package load

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"time"
)

// sweepEvery is how often what takes too long is looked for, and whether the
// context has ended. It bounds by how much a timeout is overrun.
const sweepEvery = 10 * time.Millisecond

// aheadWithin bounds the wait for the connections that are opened ahead.
const aheadWithin = time.Second

// yieldEvery is how often the loop lets Go's scheduler run. A goroutine that
// does not for 10 ms, because it is always in system calls, has its processor
// taken away and its process watched every 20 µs, which costs 3 µs a request.
const yieldEvery = 5 * time.Millisecond

// copyBody is the largest body, in bytes, that is written together with its head.
const copyBody = 16 << 10

type loop struct {
	spec    Spec
	poller  *poller
	targets []*target
	conns   []*conn // by file descriptor
	report  *Report
	results []Result // the report's
	users   map[string]int32
	reasons map[string]uint8
	made    int       // connections, to choose their sources
	due     int       // results[:due] have been due
	settled int       // how many of these are final
	swept   int64     // when it last looked for what takes too long
	yielded int64     // when it last let the scheduler run
	woke    int64     // when it last woke up
	wall    int64     // the wall clock …
	mono    time.Time // … when the monotonic clock said this
	in      *receiver
	turns   *turns // of a Slicer; nil: requests are sent when they are due
}

func newLoop(s Spec, addrs []netip.AddrPort) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	l := &loop{
		spec:    s,
		poller:  p,
		results: plan(s),
		users:   make(map[string]int32),
		reasons: map[string]uint8{"": 0},
		wall:    now.UnixNano(),
		mono:    now,
		in:      newReceiver(),
	}
	l.report = &Report{Duration: s.Duration, Reasons: []string{""}}
	for i, a := range addrs {
		family, sa := address(a)
		l.targets = append(l.targets, &target{index: uint16(i), family: family, sockaddr: sa, host: a.String()})
		l.report.Targets = append(l.report.Targets, s.Targets[i].Address)
	}
	return l, nil
}

func (l *loop) now() int64 { return l.wall + int64(time.Since(l.mono)) }

func (l *loop) run(ctx context.Context) (*Report, error) {
	defer l.close()
	if err := l.openAhead(); err != nil {
		return nil, err
	}
	cpu := processCPU()
	l.start()
	err := l.send(ctx)
	l.report.CPU = processCPU() - cpu
	l.finish()
	return l.report, err
}

// openAhead opens the connections that a run begins with. Those that fail are
// for the requests to find out about.
func (l *loop) openAhead() error {
	l.refill()
	for deadline := l.now() + int64(aheadWithin); l.now() < deadline; {
		pending := 0
		for _, t := range l.targets {
			pending += t.connecting
		}
		if pending == 0 {
			return nil
		}
		if err := l.poll(deadline); err != nil {
			return err
		}
	}
	return nil
}

// refill opens connections until each target has as many as are opened ahead.
func (l *loop) refill() {
	for _, t := range l.targets {
		for t.open < l.spec.Ahead && l.connect(t) {
		}
	}
}

func (l *loop) start() {
	now := time.Unix(0, l.now())
	start := now.Add(time.Millisecond)
	if l.spec.Align {
		start = now.Add(20 * time.Millisecond).Truncate(time.Second).Add(time.Second)
	}
	l.report.Start = start
	for i := range l.results {
		l.results[i].Scheduled += start.UnixNano()
	}
}

// send runs until every request is settled, or ctx ends.
func (l *loop) send(ctx context.Context) error {
	for {
		l.pause()
		now := l.sendDue()
		if now-l.swept >= int64(sweepEvery) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			l.sweep(now)
			l.swept = now
		}
		if l.settled == len(l.results) {
			return nil
		}
		until := l.swept + int64(sweepEvery)
		if l.due < len(l.results) {
			until = min(until, l.results[l.due].Scheduled)
		}
		if until < l.woke+int64(l.spec.Tick) {
			until = 0 // pause waits, and for more than the first answer
		}
		if err := l.poll(until); err != nil {
			return err
		}
	}
}

// pause sleeps until a tick has passed since the last waking. Waking up, once
// for each request and again for its answer, would cost more than everything
// else (measured: 25 µs a request on a virtual machine, against 9); sleeping
// lets both collect. Answers carry the time of their arrival, so that nothing
// is lost by reading them later.
func (l *loop) pause() {
	if now := l.now(); now-l.yielded >= int64(yieldEvery) {
		l.yielded = now
		runtime.Gosched()
	}
	if d := l.woke + int64(l.spec.Tick) - l.now(); d > 0 {
		sleep(time.Duration(d))
	}
	l.woke = l.now()
}

// sendDue sends what is due, or lets it wait for a connection.
func (l *loop) sendDue() (now int64) {
	now = l.now()
	for l.due < len(l.results) && l.results[l.due].Scheduled <= now {
		i := l.due
		l.due++
		r := l.spec.Requests(i)
		l.results[i].User = l.user(r.User)
		t := l.targets[l.results[i].Target]
		if !l.sendIdle(t, i, r) {
			t.waiting.push(i)
			l.ensure(t)
		}
		now = l.now()
	}
	return now
}

// sendIdle sends a request on an idle connection, if there is one.
func (l *loop) sendIdle(t *target, i int, r Request) bool {
	for t.idle.len() > 0 {
		if c := t.idle.pop(); c.state == idle && l.sendOn(c, i, r) {
			return true
		}
	}
	return false
}

// sendOn sends a request. It reports false if the connection turns out to be
// closed before the first byte.
func (l *loop) sendOn(c *conn, i int, r Request) bool {
	c.buf = render(c.buf[:0], r, c.target.host)
	c.body = r.Body
	if len(c.body) <= copyBody {
		c.buf, c.body = append(c.buf, c.body...), nil
	}
	c.parser.reset(r.Method == "HEAD")
	c.since = l.now()
	n := write(c.fd, c.buf)
	if n < 0 {
		l.drop(c)
		return false
	}
	c.state, c.result = busy, i
	l.results[i].Sent = c.since
	if c.unsent = c.buf[n:]; c.sending() {
		_ = l.poller.change(c.fd, readable|writable)
	}
	return true
}

// flush writes a piece of the rest of a request. A failure is for read to find:
// the server may have answered before it closed.
func (l *loop) flush(c *conn) {
	if len(c.unsent) == 0 {
		c.unsent, c.body = c.body, nil
	}
	if n := write(c.fd, c.unsent); n < 0 {
		c.unsent, c.body = nil, nil
	} else {
		c.unsent = c.unsent[n:]
	}
	if !c.sending() {
		_ = l.poller.change(c.fd, readable)
	}
}

func (l *loop) connect(t *target) bool {
	source := 0
	if l.spec.Sources > 0 {
		l.made++
		source = 1 + l.made%l.spec.Sources
	}
	fd, err := connect(t.family, t.sockaddr, source)
	if err != nil {
		return false
	}
	c := &conn{fd: fd, target: t, since: l.now()}
	for len(l.conns) <= fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[fd] = c
	t.open++
	t.connecting++
	if l.poller.add(fd, writable) != nil {
		l.drop(c)
		return false
	}
	return true
}

// ensure sees to it that a connection is being made for each waiting request,
// as far as the bound allows. A request whose connection fails has failed.
func (l *loop) ensure(t *target) {
	for t.waiting.len() > t.connecting && t.open < l.spec.Conns {
		if !l.connect(t) {
			l.settle(t.waiting.pop(), NoConnect)
		}
	}
}

// poll waits for sockets until a time and serves those that are ready.
func (l *loop) poll(until int64) error {
	events, err := l.poller.wait(time.Duration(until - l.now()))
	if err != nil {
		return fmt.Errorf("load: epoll_pwait2: %w", err)
	}
	for _, e := range events {
		// A descriptor occurs once among the events. It is closed, and so
		// used anew, only while its own event is served.
		c := l.conns[e.Fd]
		if c.state == connecting {
			l.connected(c)
			continue
		}
		if e.Events&writable != 0 && c.sending() {
			l.flush(c)
		}
		if e.Events&^writable != 0 {
			l.read(c)
		}
	}
	return nil
}

// connected takes a new connection into use, or fails the request that it was
// to be for.
func (l *loop) connected(c *conn) {
	t := c.target
	if !connected(c.fd) || l.poller.change(c.fd, readable) != nil {
		l.drop(c)
		if t.waiting.len() > 0 {
			l.settle(t.waiting.pop(), NoConnect)
		}
		l.ensure(t)
		return
	}
	t.connecting--
	l.free(c)
}

func (l *loop) free(c *conn) {
	c.state = idle
	if l.turns != nil && l.turns.take(l, c) {
		return
	}
	for t := c.target; t.waiting.len() > 0; {
		i := t.waiting.peek()
		if l.overdue(i, l.now()) {
			l.settle(t.waiting.pop(), Dropped)
			continue
		}
		if l.sendOn(c, i, l.spec.Requests(i)) {
			t.waiting.pop()
		} else {
			l.ensure(t)
		}
		return
	}
	c.target.idle.push(c)
}

func (l *loop) read(c *conn) {
	piece, arrived, open := l.in.read(c.fd)
	if c.state != busy {
		if !open || len(piece) > 0 { // an answer to nothing
			l.drop(c)
			l.ensure(c.target)
		}
		return
	}
	at := min(max(arrived, c.since), l.now()) // whatever the wall clock did meanwhile
	if !open {
		if c.parser.eof() {
			l.answered(c, l.now())
		} else {
			l.fail(c, Closed)
		}
		return
	}
	used, done, err := c.parser.feed(piece)
	if r := &l.results[c.result]; r.Status == 0 && c.parser.status != 0 {
		r.Status = uint16(c.parser.status)
		r.Reason = l.reason(c.parser.reason)
		r.Answered = at
	}
	switch {
	case err != nil:
		l.fail(c, Malformed)
	case done:
		if used < len(piece) {
			c.parser.keepAlive = false
		}
		l.answered(c, at)
	}
}

// answered settles the request of a connection and uses it for the next, unless
// the server closes it, or answered before it had read everything.
func (l *loop) answered(c *conn, now int64) {
	l.settleAt(c.result, Answered, now)
	if c.parser.keepAlive && !c.sending() {
		l.free(c)
		return
	}
	l.drop(c)
	l.ensure(c.target)
}

// fail settles the request of a connection without an answer.
func (l *loop) fail(c *conn, f Failure) {
	l.drop(c)
	l.settle(c.result, f)
	l.ensure(c.target)
}

func (l *loop) settle(i int, f Failure) { l.settleAt(i, f, l.now()) }

func (l *loop) settleAt(i int, f Failure, now int64) {
	r := &l.results[i]
	r.Received, r.Failure = now, f
	l.settled++
	if l.turns != nil {
		l.turns.note(r)
	}
	if l.spec.Settled != nil {
		l.spec.Settled(l.report.Users[r.User], l.report.Reasons[r.Reason], *r)
	}
}

func (l *loop) drop(c *conn) {
	l.poller.closeSocket(c.fd)
	l.conns[c.fd] = nil
	c.target.open--
	if c.state == connecting {
		c.target.connecting--
	}
	c.state = closed
	c.unsent, c.body = nil, nil
}

func (l *loop) sweep(now int64) {
	for _, c := range l.conns {
		if c == nil || now-c.since < int64(l.spec.Timeout) {
			continue
		}
		switch c.state {
		case busy:
			l.fail(c, TimedOut)
		case connecting:
			l.drop(c)
			l.ensure(c.target)
		}
	}
	for _, t := range l.targets {
		for t.waiting.len() > 0 && l.overdue(t.waiting.peek(), now) {
			l.settle(t.waiting.pop(), Dropped)
		}
	}
}

func (l *loop) overdue(i int, now int64) bool {
	return now-l.results[i].Scheduled >= int64(l.spec.Timeout)
}

// user returns a user's index, a new one for a user not seen before.
func (l *loop) user(name string) int32 {
	i, ok := l.users[name]
	if !ok {
		i = int32(len(l.report.Users))
		l.users[name] = i
		l.report.Users = append(l.report.Users, name)
	}
	return i
}

// reason returns the index of a value of Sluice-Reason. A server that invents
// ever new ones gets one index for all of them.
func (l *loop) reason(value []byte) uint8 {
	if i, ok := l.reasons[string(value)]; ok {
		return i
	}
	name := string(value)
	if len(l.reasons) >= 255 {
		name = "other"
		if i, ok := l.reasons[name]; ok {
			return i
		}
	}
	i := uint8(len(l.report.Reasons))
	l.reasons[name] = i
	l.report.Reasons = append(l.report.Reasons, name)
	return i
}

func (l *loop) finish() {
	l.report.Planned = len(l.results)
	l.report.Results = l.results[:l.due]
	for i := range l.report.Results {
		if r := &l.report.Results[i]; r.Received == 0 {
			r.Failure = Unfinished
		}
	}
}

func (l *loop) close() {
	for _, c := range l.conns {
		if c != nil {
			l.drop(c)
		}
	}
	l.poller.close()
}
