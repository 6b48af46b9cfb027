package load

import (
	"strconv"
	"syscall"
)

// A conn is one connection to a target. At most one request is on it.
type conn struct {
	fd     int
	target *target
	state  connState
	since  int64  // when it began to connect, or its request was sent
	result int    // the request in progress, while busy
	buf    []byte // the request, as it goes on the wire
	unsent []byte // what of buf or of the body has not been written yet
	body   []byte // follows unsent
	parser parser
}

// sending reports whether some of the request has not been written yet.
func (c *conn) sending() bool { return len(c.unsent) > 0 || len(c.body) > 0 }

type connState uint8

const (
	connecting connState = iota
	idle
	busy
	closed
)

type target struct {
	index      uint16
	family     int
	sockaddr   syscall.Sockaddr
	host       string
	idle       queue[*conn] // least recently used first; closed ones are skipped
	waiting    queue[int]   // requests that are due and have no connection
	open       int          // connections in any state but closed
	connecting int
}

// A queue is first in, first out. The zero value is empty.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(x T) { q.items = append(q.items, x) }

func (q *queue[T]) peek() T { return q.items[q.head] }

func (q *queue[T]) pop() T {
	var none T
	x := q.items[q.head]
	q.items[q.head] = none
	if q.head++; 2*q.head >= len(q.items) { // each item moves once at most on average
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return x
}

func render(b []byte, r Request, host string) []byte {
	method, path := r.Method, r.Path
	if method == "" {
		method = "GET"
	}
	if path == "" {
		path = "/"
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	b = append(b, r.Headers...)
	if len(r.Body) > 0 || method == "POST" || method == "PUT" || method == "PATCH" { // RFC 9110 section 8.6
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}
