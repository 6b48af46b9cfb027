package bus

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// A published limit file is divided into chunks. A chunk's key is its checksum, so it never
// changes, and a file that was changed in few lines shares all other chunks with the file
// before: who has that one reads only what is different. A head, which is written last, says
// which chunks the file has.
const (
	// A chunk has 80 KiB on average. With smaller ones the head, which everybody reads after each
	// change, would be larger than the chunk that was changed; larger ones make more be read for
	// one changed line.
	chunkSpread = 64 << 10
	minChunk    = 16 << 10
	maxChunk    = 256 << 10

	// maxLimitsSize is more than limitfile.MaxFileSize with the overrides that there can be.
	maxLimitsSize = 128 << 20
)

// ErrDamagedLimits says that published limits are not what their checksums say.
var ErrDamagedLimits = errors.New("the published limits are damaged")

// chunkSum is the beginning of the SHA-256 of a chunk's content. The head has all of that of
// the whole file.
type chunkSum [16]byte

func checksum(content []byte) chunkSum {
	sum := sha256.Sum256(content)
	return chunkSum(sum[:len(chunkSum{})])
}

// chunkKey is the key of a chunk.
func chunkKey(sum chunkSum) string { return limitsKey + ":" + hex.EncodeToString(sum[:]) }

// A chunkRef is what the head says of a chunk.
type chunkRef struct {
	sum    chunkSum
	size   int // bytes of its content
	stored int // bytes in Redis
}

// limitHead says what a published limit file consists of.
type limitHead struct {
	version string
	sum     [sha256.Size]byte // of the whole file
	chunks  []chunkRef        // in the file's order; one may be there several times
}

// limitFile is a limit file as it is published.
type limitFile struct {
	limitHead
	stored map[chunkSum][]byte // the chunks, compressed
}

// encodeLimits divides and compresses a limit file.
func encodeLimits(version string, source []byte, before limitFile) limitFile {
	f := limitFile{
		limitHead: limitHead{version: version, sum: sha256.Sum256(source)},
		stored:    make(map[chunkSum][]byte),
	}
	for len(source) > 0 {
		n := chunkEnd(source)
		sum := checksum(source[:n])
		stored := before.stored[sum]
		// Most chunks of a file that was changed are those of the file before: they are compressed already.
		if stored == nil {
			stored = compress(source[:n])
		}
		f.stored[sum] = stored
		f.chunks = append(f.chunks, chunkRef{sum: sum, size: n, stored: len(stored)})
		source = source[n:]
	}
	return f
}

// chunkEnd is where the first chunk of a text ends.
func chunkEnd(text []byte) int {
	// Also within a line: one of a megabyte must not keep everybody else's calls waiting for a chunk of a megabyte.
	text = text[:min(len(text), maxChunk)]
	for end := 0; end < len(text); {
		line := text[end:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		end += len(line)
		// After a line that is the last of its chunk by its own content, so that lines which come or go move no other
		// chunk's ends. Longer lines are so more often, or chunks of long lines would be larger.
		if end >= minChunk && xxhash.Sum64(line)%chunkSpread < uint64(len(line)) {
			return end
		}
	}
	return len(text)
}

func compress(content []byte) []byte {
	var b bytes.Buffer
	// It fails for unknown levels only, and a Buffer takes everything.
	w, _ := flate.NewWriter(&b, flate.DefaultCompression)
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}

// decompress is the content of a chunk as Redis has it.
func (c chunkRef) decompress(stored []byte) ([]byte, error) {
	// As much as the head says, and no more: what is damaged may decompress to gigabytes.
	content := make([]byte, c.size)
	r := flate.NewReader(bytes.NewReader(stored))
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, fmt.Errorf("%w: chunk %x: %w", ErrDamagedLimits, c.sum, err)
	}
	// What might follow is not read: the checksum says that nothing is missing.
	if checksum(content) != c.sum {
		return nil, fmt.Errorf("%w: chunk %x has another checksum", ErrDamagedLimits, c.sum)
	}
	return content, nil
}

// encode writes a head in words, as those of messages (wire.go):
//
//	1 <version> <checksum> { <checksum of a chunk> <its size> <bytes in Redis> }
func (h limitHead) encode() []byte {
	b := appendText([]byte(wireVersion+" "), h.version)
	b = appendText(append(b, ' '), string(h.sum[:]))
	for _, c := range h.chunks {
		b = appendText(append(b, ' '), string(c.sum[:]))
		b = strconv.AppendInt(append(b, ' '), int64(c.size), 10)
		b = strconv.AppendInt(append(b, ' '), int64(c.stored), 10)
	}
	return b
}

func decodeHead(text string) (limitHead, error) {
	w := words{rest: text}
	w.takeVersion(wireVersion)
	h := limitHead{version: w.takeText()}
	w.takeSum(h.sum[:])
	for size := 0; w.hasMore(); {
		var c chunkRef
		w.takeSum(c.sum[:])
		c.size, c.stored = int(w.takeNumber()), int(w.takeNumber())
		// Memory of this size is made before the chunk is read.
		if c.size == 0 || c.size > maxChunk {
			w.failWith(fmt.Errorf("a chunk of %d bytes", c.size))
		}
		// And all of them are kept.
		if size += c.size; size > maxLimitsSize {
			w.failWith(fmt.Errorf("chunks of more than %d bytes", maxLimitsSize))
		}
		h.chunks = append(h.chunks, c)
	}
	return h, w.err
}

// takeSum reads a checksum of as many bytes as there is room for.
func (w *words) takeSum(sum []byte) {
	text := w.takeText()
	if len(text) != len(sum) {
		w.failWith(fmt.Errorf("a checksum of %d bytes, want %d", len(text), len(sum)))
	}
	copy(sum, text)
}

// limitParts has the chunks of limit files that were read, so that none is read twice.
type limitParts struct {
	head   limitHead // of the last whole file
	source []byte    // that file, never nil but before the first one
	chunks map[chunkSum][]byte
}

// missing are the chunks of a file that are to be read.
func (p *limitParts) missing(head limitHead) []chunkRef {
	// Chunks that are neither of this file nor of the last whole one are forgotten: those of files that were replaced
	// before they were read would add up.
	chunks := make(map[chunkSum][]byte)
	for _, c := range p.head.chunks {
		chunks[c.sum] = p.chunks[c.sum]
	}
	var missing []chunkRef
	wanted := make(map[chunkSum]bool)
	for _, c := range head.chunks {
		if content := p.chunks[c.sum]; content != nil {
			chunks[c.sum] = content
		} else if !wanted[c.sum] {
			missing = append(missing, c)
		}
		// A file may have the same chunk twice: it is read once.
		wanted[c.sum] = true
	}
	p.chunks = chunks
	return missing
}

// assemble makes the whole file of a head whose chunks have all been read.
func (p *limitParts) assemble(head limitHead) error {
	contents := make([][]byte, len(head.chunks))
	for i, c := range head.chunks {
		// A head may name a chunk twice, with two sizes.
		if contents[i] = p.chunks[c.sum]; len(contents[i]) != c.size {
			return fmt.Errorf("%w: a chunk has another size", ErrDamagedLimits)
		}
	}
	source := bytes.Join(contents, nil)
	// Each chunk is right by itself; this says that they are all there, in their order.
	if sha256.Sum256(source) != head.sum {
		return fmt.Errorf("%w: the whole has another checksum", ErrDamagedLimits)
	}
	// From now on the chunks are parts of the file, so that nothing is in memory twice.
	*p = limitParts{head: head, source: source, chunks: make(map[chunkSum][]byte)}
	for _, c := range head.chunks {
		p.chunks[c.sum], source = source[:c.size:c.size], source[c.size:]
	}
	return nil
}
