package load

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Bounds of an answer's parts, in bytes.
const (
	maxHead = 64 << 10 // status line and headers
	maxLine = 16 << 10 // one line of chunked framing, or of a trailer
)

// A parser reads one answer (RFC 9112) from pieces of any size and keeps of it
// what a Result needs. It throws bodies away. It is strict where leniency could
// make it lose count of where the answer ends.
type parser struct {
	status    int    // of the final answer; 0 until its head is complete
	reason    []byte // the value of Sluice-Reason, kept until the next reset
	keepAlive bool   // the connection may be used again

	state parserState
	head  bool   // the request was HEAD: no body
	held  []byte // the beginning of an unfinished head or line
	left  int64  // bytes left of the body or chunk
}

type parserState uint8

const (
	inHead parserState = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
	inBodyUntilClose
	ended
)

func (p *parser) reset(head bool) {
	*p = parser{head: head, held: p.held[:0], reason: p.reason[:0]}
}

// feed reads a piece and returns how many of its bytes belong to the answer,
// and whether the answer is complete. Until it is, that is all of them.
func (p *parser) feed(b []byte) (n int, done bool, err error) {
	for n < len(b) && p.state != ended {
		k, err := p.step(b[n:])
		n += k
		if err != nil {
			return n, false, err
		}
	}
	return n, p.state == ended, nil
}

// eof tells that the server has closed the connection, and reports whether
// that completes the answer.
func (p *parser) eof() bool { return p.state == inBodyUntilClose }

// step reads as much of b, which is not empty, as one state takes.
func (p *parser) step(b []byte) (int, error) {
	switch p.state {
	case inHead:
		head, n, err := p.until(b, "\r\n\r\n", maxHead)
		if head == nil {
			return n, err
		}
		return n, p.readHead(head)

	case inBody, inChunk:
		n := min(p.left, int64(len(b)))
		if p.left -= n; p.left == 0 {
			if p.state == inBody {
				p.state = ended
			} else {
				p.state = inChunkEnd
			}
		}
		return int(n), nil

	case inChunkSize:
		line, n, err := p.until(b, "\r\n", maxLine)
		if line == nil {
			return n, err
		}
		p.left, err = chunkSize(line)
		if p.left > 0 {
			p.state = inChunk
		} else {
			p.state = inTrailer
		}
		return n, err

	case inChunkEnd:
		line, n, err := p.until(b, "\r\n", len("\r\n"))
		if line != nil {
			p.state = inChunkSize
		}
		return n, err

	case inTrailer:
		line, n, err := p.until(b, "\r\n", maxLine)
		if line != nil && len(line) == 0 {
			p.state = ended
		}
		return n, err

	default: // inBodyUntilClose
		return len(b), nil
	}
}

// until collects bytes up to and including end, and returns what precedes it
// (not nil, valid until the next call) once it is complete, with how many bytes
// of b that took. More than limit bytes are an error.
func (p *parser) until(b []byte, end string, limit int) (text []byte, n int, err error) {
	if len(p.held) == 0 { // the usual case: nothing need be copied
		if i := bytes.Index(b, []byte(end)); i >= 0 && i+len(end) <= limit {
			return b[:i:i], i + len(end), nil
		}
	}
	before := len(p.held)
	p.held = append(p.held, b[:min(len(b), limit-before)]...)
	i := bytes.Index(p.held[max(0, before-len(end)+1):], []byte(end))
	if i < 0 {
		if len(p.held) == limit {
			return nil, limit - before, fmt.Errorf("answer: no %q within %d bytes", end, limit)
		}
		return nil, len(b), nil
	}
	i += max(0, before-len(end)+1)
	text = p.held[:i:i]
	p.held = p.held[:0]
	return text, i + len(end) - before, nil
}

// readHead reads a status line and headers, without the blank line at the end.
func (p *parser) readHead(head []byte) error {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	status, minor, err := statusLine(line)
	if err != nil {
		return err
	}
	p.keepAlive = minor >= 1
	p.reason = p.reason[:0]
	length, chunked, coded, closes := int64(-1), false, false, false
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
			return fmt.Errorf("answer: header line %.80q", line)
		}
		value = bytes.Trim(value, " \t")
		switch len(name) { // saves a comparison with every name for every header
		case len("Content-Length"):
			if !foldEqual(name, "Content-Length") {
				continue
			}
			n, err := contentLength(value)
			if err == nil && length >= 0 && length != n {
				err = errors.New("answer: two different values of Content-Length")
			}
			if err != nil {
				return err
			}
			length = n
		case len("Transfer-Encoding"):
			if foldEqual(name, "Transfer-Encoding") {
				last := value[bytes.LastIndexByte(value, ',')+1:]
				coded, chunked = true, foldEqual(bytes.Trim(last, " \t"), "chunked")
			}
		case len("Connection"):
			if foldEqual(name, "Connection") {
				p.keepAlive = p.keepAlive || hasToken(value, "keep-alive")
				closes = closes || hasToken(value, "close")
			}
		case len("Sluice-Reason"):
			if foldEqual(name, "Sluice-Reason") {
				p.reason = append(p.reason[:0], value...)
			}
		}
	}
	if status < 200 && status != 101 { // an interim answer; the final one follows
		return nil
	}
	p.status = status
	p.keepAlive = p.keepAlive && !closes
	p.expectBody(length, chunked, coded)
	return nil
}

// expectBody decides where the answer ends: RFC 9112 section 6.3.
func (p *parser) expectBody(length int64, chunked, coded bool) {
	switch {
	case p.status == 101: // what follows is no HTTP
		p.keepAlive = false
		p.state = ended
	case p.head || p.status == 204 || p.status == 304:
		p.state = ended
	case chunked:
		p.state = inChunkSize
	case coded || length < 0:
		p.keepAlive = false
		p.state = inBodyUntilClose
	case length == 0:
		p.state = ended
	default:
		p.left = length
		p.state = inBody
	}
}

// statusLine reads a line such as "HTTP/1.1 200 OK".
func statusLine(line []byte) (status, minor int, err error) {
	const form = "HTTP/1.x sss"
	ok := len(line) >= len(form) && string(line[:7]) == "HTTP/1." && line[8] == ' ' &&
		(len(line) == len(form) || line[len(form)] == ' ')
	if ok {
		for _, c := range line[9:12] {
			ok = ok && isDigit(c)
			status = 10*status + int(c-'0')
		}
		minor = int(line[7] - '0')
		ok = ok && isDigit(line[7]) && status >= 100 && status < 600
	}
	if !ok {
		return 0, 0, fmt.Errorf("answer: status line %.80q", line)
	}
	return status, minor, nil
}

func contentLength(value []byte) (int64, error) {
	var n int64
	for _, c := range value {
		if !isDigit(c) || n > (math.MaxInt64-9)/10 {
			return 0, fmt.Errorf("answer: Content-Length %.80q", value)
		}
		n = 10*n + int64(c-'0')
	}
	if len(value) == 0 {
		return 0, errors.New("answer: empty Content-Length")
	}
	return n, nil
}

// chunkSize reads the line before a chunk, whose extensions are ignored.
func chunkSize(line []byte) (int64, error) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	if len(digits) == 0 || len(digits) > 15 { // 15 hex digits fit an int64
		return 0, fmt.Errorf("answer: chunk size %.80q", line)
	}
	var n int64
	for _, c := range digits {
		switch {
		case isDigit(c):
			n = n<<4 | int64(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, fmt.Errorf("answer: chunk size %.80q", line)
		}
	}
	return n, nil
}

func hasToken(value []byte, token string) bool {
	for part := range bytes.SplitSeq(value, []byte(",")) {
		if foldEqual(bytes.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

func foldEqual(b []byte, s string) bool { return len(b) == len(s) && strings.EqualFold(string(b), s) }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
