package redisbus

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// headOf is the head of a file, and the file as it is in Redis.
func headOf(content []byte) (limitHead, []byte) {
	stored := compress(content)
	return limitHead{sum: checksum(content), size: len(content), stored: len(stored)}, stored
}

func TestDamagedFilesAreRefused(t *testing.T) {
	content := []byte(strings.Repeat("  alice: pro\n", 1000))
	h, stored := headOf(content)
	for name, damaged := range map[string][]byte{
		"empty":                      nil,
		"cut":                        stored[:len(stored)/2],
		"one bit":                    slices.Concat(stored[:9], []byte{stored[9] ^ 4}, stored[10:]),
		"another content":            compress(append([]byte("x"), content[1:]...)),
		"shorter":                    compress(content[1:]),
		"no compression to speak of": content,
		"larger than its head says":  compress(make([]byte, 1<<24)),
	} {
		if got, err := h.decompress(damaged); err == nil {
			t.Errorf("%s: decompress = %d bytes, want an error", name, len(got))
		}
	}
}

// Readers of a head make room for the sizes in it.
func TestAHeadOfTooMuchIsRefused(t *testing.T) {
	const most = maxLimitsSize
	for h, ok := range map[limitHead]bool{{"x", most, most}: true, {"x", most + 1, 1}: false, {"x", 1, most + 1}: false} {
		if _, err := decodeHead(h.encode()); (err == nil) != ok {
			t.Errorf("decodeHead of %d bytes, %d in Redis = %v, want no error: %v", h.size, h.stored, err, ok)
		}
	}
}

func FuzzDecodeHead(f *testing.F) {
	h, _ := headOf([]byte("a\n"))
	f.Add(h.encode())
	f.Add(limitHead{}.encode())
	f.Add("1 1:v 32:x")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := decodeHead(text)
		if err != nil {
			return
		}
		if again, err := decodeHead(h.encode()); again != h || err != nil {
			t.Errorf("decodeHead(%q) = %+v, read again as %+v, %v", text, h, again, err)
		}
	})
}

func FuzzDecompress(f *testing.F) {
	content := []byte("version: 1\n")
	h, stored := headOf(content)
	f.Add(stored)
	f.Fuzz(func(t *testing.T, stored []byte) {
		if got, err := h.decompress(stored); err == nil && !bytes.Equal(got, content) {
			t.Errorf("decompress(%q) = %q, want %q", stored, got, content)
		}
	})
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		readers int64
		stored  int
		want    time.Duration
	}{
		{0, 10_000_000, 0}, // nothing is known of the others yet
		{1, 10_000_000, 0},
		{11, 10_000_000, time.Second},
		{1001, 3_700_000, 37 * time.Second}, // 20 MiB of mail addresses: see docs/capacity.md
		{1001, 6_000_000, time.Minute},
	} {
		if got := spread(tt.readers, tt.stored); got != tt.want {
			t.Errorf("spread(%d, %d) = %v, want %v", tt.readers, tt.stored, got, tt.want)
		}
	}
}
