package load

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParser(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	tests := []struct {
		name, in  string
		head      bool // of a HEAD request
		status    int
		reason    string
		keepAlive bool
		rest      string // what is left unread after the end
		end       string // "": ended, "more": not yet, "eof": ends with the connection, or part of the error
	}{
		{name: "a length", in: ok + "Content-Length: 5\r\n\r\nhello", status: 200, keepAlive: true},
		{name: "a length of zero", in: ok + "Content-Length: 0\r\n\r\n", status: 200, keepAlive: true},
		{name: "names in any case, no blank", in: ok + "cONTENT-lENGTH:2\r\n\r\nhi", status: 200, keepAlive: true},
		{name: "an unfinished body", in: ok + "Content-Length: 5\r\n\r\nhell", status: 200, keepAlive: true, end: "more"},
		{name: "an unfinished head", in: ok + "Content-Length: 5\r\n", end: "more"},
		{name: "the rest is not read", in: ok + "Content-Length: 2\r\n\r\nhi there", status: 200, keepAlive: true, rest: " there"},
		{name: "a reason", in: "HTTP/1.1 429 Too Many Requests\r\nSluice-Reason:  request-rate \r\nContent-Length: 0\r\n\r\n", status: 429, reason: "request-rate", keepAlive: true},
		{name: "no phrase", in: "HTTP/1.1 204\r\n\r\n", status: 204, keepAlive: true},
		{name: "chunks", in: ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", status: 200, keepAlive: true},
		{name: "chunks with trailers", in: ok + "Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\nrest", status: 200, keepAlive: true, rest: "rest"},
		{name: "chunks without the last line", in: ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n", status: 200, keepAlive: true, end: "more"},
		{name: "chunks win over a length", in: ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200, keepAlive: true},
		{name: "another coding ends with the connection", in: ok + "Transfer-Encoding: gzip\r\n\r\nx", status: 200, end: "eof"},
		{name: "no length ends with the connection", in: ok + "\r\nx", status: 200, end: "eof"},
		{name: "close", in: ok + "Connection: close\r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "close wins over keep-alive", in: ok + "Connection: close\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "1.0 closes", in: "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "1.0 keeps alive if it says so", in: "HTTP/1.0 200 OK\r\nConnection: foo, Keep-Alive\r\nContent-Length: 0\r\n\r\n", status: 200, keepAlive: true},
		{name: "no body after HEAD", in: ok + "Content-Length: 5\r\n\r\n", head: true, status: 200, keepAlive: true},
		{name: "no body after 304", in: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304, keepAlive: true},
		{name: "interim answers are passed over", in: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nSluice-Reason: x\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", status: 200, keepAlive: true},
		{name: "another protocol ends it", in: "HTTP/1.1 101 Switching Protocols\r\n\r\nxyz", status: 101, rest: "xyz"},
		{name: "equal lengths", in: ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", status: 200, keepAlive: true},
		{name: "unequal lengths", in: ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", end: "two different values of Content-Length"},
		{name: "a list of lengths", in: ok + "Content-Length: 1, 1\r\n\r\nx", end: `Content-Length "1, 1"`},
		{name: "a signed length", in: ok + "Content-Length: -1\r\n\r\n", end: `Content-Length "-1"`},
		{name: "an empty length", in: ok + "Content-Length: \r\n\r\n", end: "empty Content-Length"},
		{name: "a length that overflows", in: ok + "Content-Length: 99999999999999999999\r\n\r\n", end: "Content-Length"},
		{name: "not HTTP", in: "SSH-2.0-x\r\n\r\n", end: `status line "SSH-2.0-x"`},
		{name: "a status of two digits", in: "HTTP/1.1 20 OK\r\n\r\n", end: "status line"},
		{name: "a status of four digits", in: "HTTP/1.1 2000 OK\r\n\r\n", end: "status line"},
		{name: "a status below 100", in: "HTTP/1.1 099 OK\r\n\r\n", end: "status line"},
		{name: "HTTP/2", in: "HTTP/2.0 200 OK\r\n\r\n", end: "status line"},
		{name: "a header without a colon", in: ok + "foo\r\n\r\n", end: `header line "foo"`},
		{name: "a blank before the colon", in: ok + "Content-Length : 1\r\n\r\n", end: "header line"},
		{name: "a folded header", in: ok + "X: a\r\n b: c\r\n\r\n", end: "header line"},
		{name: "a head too long", in: ok + "X: " + strings.Repeat("x", maxHead), end: "within 65536 bytes"},
		{name: "a chunk size that is no number", in: ok + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", status: 200, keepAlive: true, end: `chunk size "xyz"`},
		{name: "a chunk size that overflows", in: ok + "Transfer-Encoding: chunked\r\n\r\n1000000000000000\r\n", status: 200, keepAlive: true, end: "chunk size"},
		{name: "an empty chunk size", in: ok + "Transfer-Encoding: chunked\r\n\r\n\r\n", status: 200, keepAlive: true, end: "chunk size"},
		{name: "a chunk longer than its size", in: ok + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", status: 200, keepAlive: true, end: "within 2 bytes"},
		{name: "a chunk line too long", in: ok + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", maxLine), status: 200, keepAlive: true, end: "within 16384 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{len(tt.in), 1, 3} {
				p := parser{status: 999, keepAlive: true, reason: []byte("of the answer before")}
				p.reset(tt.head)
				n, done, err := feedBy(&p, tt.in, size)
				end := "more"
				switch {
				case err != nil:
					end = err.Error()
				case done:
					end = ""
				case p.eof():
					end = "eof"
				}
				if (end != tt.end && (tt.end == "" || !strings.Contains(end, tt.end))) ||
					p.status != tt.status || string(p.reason) != tt.reason || (p.keepAlive != tt.keepAlive && p.status != 0) {
					t.Errorf("in pieces of %d: status %d, reason %q, keepAlive %v, end %q; want %d, %q, %v, %q",
						size, p.status, p.reason, p.keepAlive, end, tt.status, tt.reason, tt.keepAlive, tt.end)
				}
				if rest := tt.in[n:]; err == nil && rest != tt.rest {
					t.Errorf("in pieces of %d: left %q, want %q", size, rest, tt.rest)
				}
			}
		})
	}
}

// Of any two valid answers in a row, the parser reads exactly the first,
// however they are cut into pieces.
func TestParserFindsTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.StringN(-1, -1, 300).Draw(t, "body")
		status := rapid.SampledFrom([]int{200, 206, 404, 429, 503}).Draw(t, "status")
		var b strings.Builder
		fmt.Fprintf(&b, "HTTP/1.1 %d X\r\nX-Any: %s\r\n", status, strings.Repeat("y", rapid.IntRange(0, 99).Draw(t, "padding")))
		if rapid.Bool().Draw(t, "chunked") {
			b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
			for rest := body; rest != ""; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
				fmt.Fprintf(&b, "%x\r\n%s\r\n", n, rest[:n])
				rest = rest[n:]
			}
			b.WriteString("0\r\n\r\n")
		} else {
			fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
		}
		want := b.Len()
		in := b.String() + "HTTP/1.1 200 OK\r\n"
		p := parser{}
		p.reset(false)
		n, done, err := feedBy(&p, in, rapid.IntRange(1, len(in)).Draw(t, "size"))
		if n != want || !done || err != nil || p.status != status || !p.keepAlive {
			t.Errorf("feed(%q) = %d, %v, %v with status %d; want %d bytes and %d", in, n, done, err, p.status, want, status)
		}
	})
}

// The outcome does not depend on how an answer is cut into pieces.
func FuzzParser(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", false, byte(1))
	f.Add("HTTP/1.1 429 X\r\nSluice-Reason: request-rate\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", false, byte(2))
	f.Add("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", false, byte(3))
	f.Add("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", true, byte(4))
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", false, byte(5))
	f.Fuzz(func(t *testing.T, in string, head bool, size byte) {
		type outcome struct {
			n, status  int
			reason     string
			done, fail bool
			eof, alive bool
		}
		of := func(size int) outcome {
			p := parser{}
			p.reset(head)
			n, done, err := feedBy(&p, in, size)
			if err != nil {
				n = 0 // where an error is noticed may differ
			}
			return outcome{n, p.status, string(p.reason), done, err != nil, p.eof(), p.keepAlive}
		}
		whole, pieces := of(len(in)), of(int(size)+1)
		if whole != pieces {
			t.Errorf("feed(%q) = %+v, in pieces of %d %+v", in, whole, int(size)+1, pieces)
		}
		if whole.n > len(in) || (!whole.done && !whole.fail && whole.n != len(in)) {
			t.Errorf("feed(%q) = %+v, of %d bytes", in, whole, len(in))
		}
	})
}

// feedBy feeds an answer in pieces until it ends.
func feedBy(p *parser, in string, size int) (n int, done bool, err error) {
	for n < len(in) && !done && err == nil {
		var k int
		k, done, err = p.feed([]byte(in[n:min(len(in), n+size)]))
		n += k
	}
	return n, done, err
}
