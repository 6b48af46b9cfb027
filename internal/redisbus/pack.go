package redisbus

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Policies for all agents travel compressed. Pack returns a batch of lines, of at most MaxBatch
// bytes, in that form. It is safe for concurrent use.
func Pack(lines []byte) []byte {
	var out bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	// A buffer takes everything.
	_, _ = w.Write(lines)
	_ = w.Close()
	return out.Bytes()
}

// A compressor has more than half a megabyte of tables, which are used again.
var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	// Only a level that does not exist is an error.
	if err != nil {
		panic(err)
	}
	return w
}}

// An Unpacker reads what Pack has made. The zero Unpacker is ready. It is not safe for concurrent use.
type Unpacker struct{ reader io.ReadCloser }

// Unpack returns the lines of a message, or an error if they are more than MaxBatch bytes or the message is
// damaged. Whatever the message says, it takes no more memory than that.
func (u *Unpacker) Unpack(message string) ([]byte, error) {
	in := strings.NewReader(message)
	if u.reader == nil {
		u.reader = flate.NewReader(in)
	} else if err := u.reader.(flate.Resetter).Reset(in, nil); err != nil {
		return nil, err
	}
	lines, err := io.ReadAll(io.LimitReader(u.reader, MaxBatch+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unpack policies: %w", err)
	case len(lines) > MaxBatch:
		return nil, fmt.Errorf("unpack policies: more than %d bytes", MaxBatch)
	case in.Len() > 0:
		return nil, fmt.Errorf("unpack policies: %d bytes follow them", in.Len())
	}
	return lines, nil
}
