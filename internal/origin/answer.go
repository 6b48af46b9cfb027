package origin

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ServeHTTP implements http.Handler.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Counted before anything is read of it, so that what HAProxy lets through at once is seen as such.
	o.all.countBegin()
	defer o.all.countEnd()
	// Not for benchmarks, in which a lock for each request would be measured.
	if o.MaxUsers > 0 {
		if g := o.userGauge(r.Header.Get(UserHeader)); g != nil {
			g.countBegin()
			defer g.countEnd()
		}
	}
	// Not by Set, which makes a slice for each request.
	w.Header()["Content-Type"] = plain
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		if r.Method == http.MethodPost && r.URL.Path == ChatPath {
			answerChat(w, r)
		} else {
			readBody(w, r)
		}
		return
	}
	path := r.URL.Path
	if n, ok := strings.CutPrefix(path, "/bytes/"); ok {
		sendBytes(w, r, n)
	} else if ms, ok := strings.CutPrefix(path, "/sleep/"); ok {
		sendAfter(w, r, ms)
	} else if n, ok := strings.CutPrefix(path, "/cost/"); ok {
		sendCost(w, n)
	} else {
		_, _ = io.WriteString(w, "hello "+path+"\n")
	}
}

var plain = []string{"text/plain; charset=utf-8"} // shared, so that a request allocates none

func sendBytes(w http.ResponseWriter, r *http.Request, size string) {
	n, err := parseSize(size)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Else net/http would send it in chunks, and a client could not tell an answer that was cut off.
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	if r.Method == http.MethodHead {
		return
	}
	for n > 0 {
		k := min(n, block)
		if _, err := w.Write(filler[:k]); err != nil {
			return // the client went away
		}
		n -= k
	}
}

func sendAfter(w http.ResponseWriter, r *http.Request, ms string) {
	n, err := strconv.ParseUint(ms, 10, 32)
	d := time.Duration(n) * time.Millisecond
	if err != nil || d > MaxSleep {
		http.Error(w, fmt.Sprintf("sleep %q: want 0 to %d milliseconds", ms, MaxSleep.Milliseconds()), http.StatusBadRequest)
		return
	}
	if wait(r.Context(), d) {
		_, _ = io.WriteString(w, "slept "+ms+" ms\n")
	}
}

// sendCost says what the request has cost, in a header.
func sendCost(w http.ResponseWriter, cost string) {
	n, err := strconv.ParseUint(cost, 10, 64)
	if err != nil || n > MaxCost {
		http.Error(w, fmt.Sprintf("cost %q: want 0 to %d", cost, int64(MaxCost)), http.StatusBadRequest)
		return
	}
	w.Header().Set(CostHeader, strconv.FormatUint(n, 10))
	_, _ = io.WriteString(w, "cost "+strconv.FormatUint(n, 10)+"\n")
}

func readBody(w http.ResponseWriter, r *http.Request) {
	// Used again: uploads come by the thousand in benchmarks.
	buf := blocks.Get().(*[block]byte)
	defer blocks.Put(buf)
	// It also has net/http close the connection, so that the rest of the body is not read.
	body := http.MaxBytesReader(w, r.Body, MaxBytes)
	var size int64
	for {
		n, err := body.Read(buf[:])
		size += int64(n)
		if err == nil {
			continue
		}
		var tooLarge *http.MaxBytesError
		switch {
		case err == io.EOF:
			_, _ = io.WriteString(w, strconv.FormatInt(size, 10)+"\n")
		case errors.As(err, &tooLarge):
			http.Error(w, fmt.Sprintf("body: want at most %d bytes", MaxBytes), http.StatusRequestEntityTooLarge)
		default:
			http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		}
		return
	}
}

// parseSize reads a number of bytes, 0 to MaxBytes, such as "512" or "10MiB".
func parseSize(s string) (int64, error) {
	digits, shift := s, 0
	// As in the limit file, so that people can try what they have written there.
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	// The first comparison keeps the shift of the second from losing bits.
	if err != nil || n > math.MaxInt64>>shift || int64(n)<<shift > MaxBytes {
		return 0, fmt.Errorf("size %q: want 0 to %d bytes, such as 512, 64KiB or 10MiB", s, MaxBytes)
	}
	return int64(n) << shift, nil
}
