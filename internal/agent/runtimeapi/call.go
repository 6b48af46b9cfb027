package runtimeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

func (c *Client) sendLine(ctx context.Context, tokens chan struct{}, line []byte, a *answer) error {
	// HAProxy serves ten connections of its runtime API at a time, and lets the others wait: without
	// a bound here people who look for what is wrong would wait behind the agent.
	select {
	case tokens <- struct{}{}:
		defer func() { <-tokens }()
	case <-ctx.Done():
		return fmt.Errorf("haproxy's runtime API: %d calls are under way: %w", cap(tokens), ctx.Err())
	}
	for attempt := 1; ; attempt++ {
		heard, err := c.sendLineOnce(ctx, line, a)
		if err == nil {
			return nil
		}
		// All commands may be repeated, but what a caller was given of an answer may not: it counts
		// what it is told. What HAProxy said or did not say in time is no reason to ask again.
		if heard || attempt == attempts || ctx.Err() != nil || !dropped(err) {
			return c.explain(ctx, err)
		}
	}
}

// dropped reports whether the other side closed the connection without a word.
func dropped(err error) bool {
	// So does a process that stops listening at a reload, with all that it had not accepted yet.
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (c *Client) sendLineOnce(ctx context.Context, line []byte, a *answer) (heard bool, err error) {
	// A connection of its own: one that is kept would stay with the process it was made to after a
	// reload, and credit would be withdrawn in a table that nobody uses any more.
	dialer := net.Dialer{Timeout: answerTimeout}
	conn, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	// Closing is what ends a write or read that the deadlines below would let go on.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, err
	}
	// HAProxy answers a line break with all of it, and then closes: that is the end of the answer.
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return false, err
	}
	r := bufio.NewReaderSize(deadlineReader{conn}, maxAnswerLine)
	for {
		text, err := r.ReadSlice('\n')
		switch {
		case err == nil:
			heard = true
			// Taken line by line, as it comes: a dump of 200 000 entries is never in memory as a whole.
			if err := a.takeLine(text[:len(text)-1]); err != nil {
				return true, err
			}
			if err := a.keepRate(ctx); err != nil {
				return true, err
			}
		case errors.Is(err, io.EOF) && len(text) == 0:
			// HAProxy closes in the same way when it has said everything and when it gives up in between.
			return heard, a.checkWhole()
		case errors.Is(err, io.EOF):
			return true, fmt.Errorf("%w, in a line", io.ErrUnexpectedEOF)
		default:
			return heard, err
		}
	}
}

// deadlineReader reads from a connection that may be silent for so long at a time.
type deadlineReader struct{ conn net.Conn }

func (r deadlineReader) Read(p []byte) (int, error) {
	// Anew with each read, because a dump may well take longer than HAProxy may be silent.
	if err := r.conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	return r.conn.Read(p)
}

func (c *Client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		// The connection was closed because of it, which is all that err tells.
		err = ctx.Err()
	}
	// Operators read this in the agent's log, where the cause is nearly always one of these.
	advice := ""
	var refused refusedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = ": HAProxy is not running, or has its runtime socket elsewhere (SLUICE_RUNTIME)"
	case errors.Is(err, syscall.ECONNREFUSED):
		advice = ": the socket is there but nobody listens: HAProxy has ended, or has its runtime socket elsewhere (SLUICE_RUNTIME)"
	case errors.Is(err, fs.ErrPermission):
		advice = ": the agent's user must be in the socket's group, or the socket's mode must let them in (SLUICE_RUNTIME_MODE)"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		advice = ": HAProxy did not answer in time"
	case errors.As(err, &refused):
		advice = refused.advice()
	}
	return fmt.Errorf("haproxy's runtime API at %s: %w%s", c.path, err, advice)
}

type refusedError string

func (e refusedError) Error() string { return fmt.Sprintf("haproxy said %q", string(e)) }

func (e refusedError) advice() string {
	switch e {
	case "Permission denied":
		return `: its "stats socket" needs "level operator"`
	case "No such table", "Data type not stored in this table":
		return ": its configuration is an older one, or does without credit"
	}
	return ""
}
