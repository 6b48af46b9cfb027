package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
)

// pace has the times of a stream.
type pace struct {
	alive time.Duration // a comment is sent when nothing else was for so long
	write time.Duration // a reader who takes nothing for so long is dropped
}

var usualPace = pace{alive: 10 * time.Second, write: 5 * time.Second}

// endWrite is the time for the write under way when the server ends, and then for the end
// of the stream. Only a reader who has stalled needs more. The server waits for a second.
const endWrite = 200 * time.Millisecond

// maxBatch is how many messages are written before they are sent.
const maxBatch = 64

// serveStream answers with server-sent events until the reader goes or is too slow, the
// server ends, or the messages do.
func serveStream(w http.ResponseWriter, r *http.Request, open func() (<-chan *api.Message, func(), error)) {
	// Before the stream is opened, of which there are only so many.
	if r.Method == http.MethodHead {
		streamHeader(w)
		return
	}
	messages, stop, err := open()
	if err != nil {
		daemon.WriteError(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer stop()
	usualPace.stream(w, r, messages)
}

func streamHeader(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	// The names in it are of any bytes, and no browser is to take them for a page.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	w.WriteHeader(http.StatusOK)
}

func (p pace) stream(w http.ResponseWriter, r *http.Request, messages <-chan *api.Message) {
	control := http.NewResponseController(w)
	ended := daemon.Closing(r.Context())
	defer cutShort(control, ended)()
	// send writes and sends; the end of the server cuts it short.
	send := func(write func() error) bool {
		// A reader who takes nothing is dropped. Tests write into a buffer, which has no deadlines.
		if err := control.SetWriteDeadline(time.Now().Add(p.write)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return false
		}
		select {
		case <-ended:
			return false
		default:
		}
		// A stream may go on for days, and its token be taken back meanwhile.
		if !daemon.TokenIsGood(r.Context()) {
			return false
		}
		if write() != nil || control.Flush() != nil {
			return false
		}
		_ = control.SetWriteDeadline(time.Time{})
		return true
	}

	streamHeader(w)
	// Proxies and browsers pass on nothing until the first bytes come.
	if !send(func() error { return comment(w, "the stream begins") }) {
		return
	}
	alive := time.NewTicker(p.alive)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-ended:
			return
		// So that proxies do not take it for dead, and a reader who is gone is noticed.
		case <-alive.C:
			if !send(func() error { return comment(w, "nothing new") }) {
				return
			}
		case m, ok := <-messages:
			if !ok || !send(func() error { return writeEvents(w, m, messages) }) {
				return
			}
			alive.Reset(p.alive)
		}
	}
}

// cutShort ends a write that waits for the reader when the server ends, until stop is
// called.
func cutShort(control *http.ResponseController, ended <-chan struct{}) (stop func()) {
	// A goroutine of its own, because the one that writes is the one that waits.
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ended:
			_ = control.SetWriteDeadline(time.Now().Add(endWrite))
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-done
		_ = control.SetWriteDeadline(time.Now().Add(endWrite)) // unless a write has failed, the end of the stream is still to be written
	}
}

func comment(w http.ResponseWriter, text string) error {
	_, err := fmt.Fprintf(w, ": %s\n\n", text)
	return err
}

// writeEvents writes a message, and those that wait behind it.
func writeEvents(w http.ResponseWriter, m *api.Message, more <-chan *api.Message) error {
	// What waits goes out together: each Flush is a write, and with TLS a record.
	for n := 0; ; n++ {
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", m.Event, m.JSON()); err != nil {
			return err
		}
		// Bounded, so that the end of the server is looked for in between.
		if n == maxBatch {
			return nil
		}
		select {
		case next, ok := <-more:
			if !ok {
				return nil // the next receive says so too
			}
			m = next
		default:
			return nil
		}
	}
}

// parseKinds reads a list of kinds of events, with commas between them; "" is all.
func parseKinds(list string) ([]api.EventKind, error) {
	if list == "" {
		return nil, nil
	}
	var all []api.EventKind
	// A kind that does not exist would be a stream in which nothing ever comes.
	for _, s := range strings.Split(list, ",") {
		kind := api.EventKind(s)
		if !slices.Contains(api.EventKinds, kind) {
			valid := make([]string, len(api.EventKinds))
			for i, k := range api.EventKinds {
				valid[i] = string(k)
			}
			return nil, fmt.Errorf("unknown kind %.40q (valid: %s)", s, strings.Join(valid, ", "))
		}
		if !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	return all, nil
}
