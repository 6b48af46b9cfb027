package bus

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// put keeps what a reader gets of a file's missing chunks, and returns how many bytes it had to read.
func (p *limitParts) put(t interface{ Fatal(...any) }, f limitFile) (read int) {
	for _, c := range p.missing(f.limitHead) {
		content, err := c.decompress(f.stored[c.sum])
		if err != nil {
			t.Fatal(err)
		}
		p.chunks[c.sum] = content
		read += c.stored
	}
	return read
}

// A reader of one file after the other has each exactly, whatever was changed between them,
// and whichever it missed in part.
func TestReaderHasEachFileExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		line := rapid.OneOf(rapid.StringN(0, 40, 80), rapid.Map(rapid.IntRange(0, 2000), func(n int) string { return strings.Repeat("long ", n) }))
		lines := rapid.SliceOfN(line, 0, 30).Draw(rt, "lines")
		// So much that files have several chunks; without line feeds too, as of a YAML file in one line.
		const enough = 300 << 10
		times := rapid.IntRange(1, 3000).Draw(rt, "times")
		feed := rapid.SampledFrom([]string{"\n", "\n", ""}).Draw(rt, "line feed")
		var all []string
		size := 0
		for i := range times {
			for _, l := range lines {
				if size < enough {
					all = append(all, fmt.Sprint(i, l, feed))
					size += len(l)
				}
			}
		}
		var parts limitParts
		var before limitFile
		for version := range 4 {
			source := []byte(strings.Join(all, ""))
			file := encodeLimits(fmt.Sprint("v", version), source, before)
			head, err := decodeHead(string(file.encode()))
			if err != nil || !reflect.DeepEqual(head, file.limitHead) {
				rt.Fatalf("a head is read as %+v, %v, want %+v", head, err, file.limitHead)
			}
			if missing := parts.missing(head); len(missing) > 0 && rapid.Bool().Draw(rt, "only a part is read") {
				parts.chunks[missing[0].sum], _ = missing[0].decompress(file.stored[missing[0].sum])
			} else {
				parts.put(rt, file)
				if err := parts.assemble(head); err != nil || !bytes.Equal(parts.source, source) {
					rt.Fatalf("version %d has %d bytes, %v, want the %d published", version, len(parts.source), err, len(source))
				}
				if again := parts.put(rt, file); again != 0 {
					rt.Fatalf("the same file is read again: %d bytes", again)
				}
			}
			before = file
			for range rapid.IntRange(0, 5).Draw(rt, "edits") {
				at := rapid.IntRange(0, len(all)).Draw(rt, "at")
				until := min(len(all), at+rapid.IntRange(0, 3).Draw(rt, "gone"))
				all = append(append(append([]string(nil), all[:at]...), rapid.SliceOfN(line, 0, 3).Draw(rt, "come")...), all[until:]...)
			}
		}
	})
}

func manyUsers(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("  user-%07d: pro\n", i)
	}
	return lines
}

// One line of many costs one chunk or two, wherever it is and whether it is new, gone or changed.
func TestOneChangedLineIsReadAlone(t *testing.T) {
	lines := manyUsers(200_000) // 4 MB
	whole := encodeLimits("1", []byte(strings.Join(lines, "")), limitFile{})
	size := 0
	for _, c := range whole.chunks {
		size += c.stored
	}
	if n := len(whole.chunks); n < 30 || n > 80 {
		t.Errorf("4 MB are %d chunks, want about 50", n)
	}
	for name, changed := range map[string][]string{
		"first gone":    lines[1:],
		"last gone":     lines[:len(lines)-1],
		"middle new":    append(append(append([]string{}, lines[:77_777]...), "  a-new-user: free\n"), lines[77_777:]...),
		"first changed": append([]string{"  user-0000000: free\n"}, lines[1:]...),
	} {
		var parts limitParts
		parts.put(t, whole)
		if err := parts.assemble(whole.limitHead); err != nil {
			t.Fatal(err)
		}
		delta := encodeLimits("2", []byte(strings.Join(changed, "")), whole)
		if read := parts.put(t, delta); read == 0 || read > size/8 {
			t.Errorf("%s: %d bytes are read, want a small part of %d", name, read, size)
		}
	}
}

func TestDamagedChunksAreRefused(t *testing.T) {
	content := []byte(strings.Join(manyUsers(3000), ""))
	f := encodeLimits("1", content[:chunkEnd(content)], limitFile{})
	c := f.chunks[0]
	stored := f.stored[c.sum]
	for name, damaged := range map[string][]byte{
		"empty":                      nil,
		"cut":                        stored[:len(stored)/2],
		"one bit":                    append(append([]byte{}, stored[:9]...), append([]byte{stored[9] ^ 4}, stored[10:]...)...),
		"another content":            compress(append([]byte("x"), content[1:c.size]...)),
		"shorter":                    compress(content[:c.size-1]),
		"no compression to speak of": content,
	} {
		if _, err := c.decompress(damaged); !errors.Is(err, ErrDamagedLimits) {
			t.Errorf("%s: open = %v, want %v", name, err, ErrDamagedLimits)
		}
	}
	var parts limitParts
	head := f.limitHead
	head.sum[3]++
	parts.put(t, f)
	if err := parts.assemble(head); !errors.Is(err, ErrDamagedLimits) || parts.source != nil {
		t.Errorf("a whole of another checksum: join = %v, want %v", err, ErrDamagedLimits)
	}
}

// Whoever reads a head makes room for what it says that there is.
func TestAHeadOfTooMuchIsRefused(t *testing.T) {
	for chunks, want := range map[int]string{512: "", 513: "chunks of more than 134217728 bytes"} {
		head := limitHead{version: "1", chunks: slices.Repeat([]chunkRef{{size: maxChunk, stored: 1}}, chunks)}
		if _, err := decodeHead(string(head.encode())); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("decodeHead of %d chunks = %v, want %q", chunks, err, want)
		}
	}
}

func FuzzDecodeHead(f *testing.F) {
	f.Add(string(encodeLimits("v\n1", []byte("a\n"), limitFile{}).encode()))
	f.Add(string(limitHead{}.encode()))
	f.Add("1 1:v 32:x")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := decodeHead(text)
		if err != nil {
			return
		}
		again, err := decodeHead(string(h.encode()))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Errorf("decodeHead(%q) = %+v, read again as %+v, %v", text, h, again, err)
		}
	})
}

func FuzzOpenChunk(f *testing.F) {
	source := []byte("version: 1\n")
	file := encodeLimits("1", source, limitFile{})
	c := file.chunks[0]
	f.Add(file.stored[c.sum])
	f.Fuzz(func(t *testing.T, stored []byte) {
		if content, err := c.decompress(stored); err == nil && !bytes.Equal(content, source) {
			t.Errorf("open(%q) = %q, want %q", stored, content, source)
		}
	})
}
