package peers

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

func TestVarintBytes(t *testing.T) {
	// The ranges' ends are those of doc/peers-v2.0.txt.
	for _, tt := range []struct {
		v    uint64
		want []byte
	}{
		{0, []byte{0x00}},
		{239, []byte{0xef}},
		{240, []byte{0xf0, 0x00}},
		{2287, []byte{0xff, 0x7f}},
		{2288, []byte{0xf0, 0x80, 0x00}},
		{264431, []byte{0xff, 0xff, 0x7f}},
		{264432, []byte{0xf0, 0x80, 0x80, 0x00}},
		{math.MaxUint64, []byte{0xff, 0xf0, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x0e}},
	} {
		if got := appendVarint(nil, tt.v); !bytes.Equal(got, tt.want) {
			t.Errorf("appendVarint(%d) = %x, want %x", tt.v, got, tt.want)
		}
		d := decoder{rest: tt.want}
		if got := d.takeVarint(); got != tt.v || d.err != nil || len(d.rest) != 0 {
			t.Errorf("varint(%x) = %d, %v with %d bytes left, want %d", tt.want, got, d.err, len(d.rest), tt.v)
		}
	}
}

func TestVarintRejects(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, errShort},
		{"a first byte that promises more", []byte{0xf0}, errShort},
		{"no end", []byte{0xff, 0xff, 0xff}, errShort},
		{"one more than 64 bits hold", []byte{0xf0, 0xf1, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x0e}, errVarint},
		{"65 bits", []byte{0xf0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10}, errVarint},
		{"eleven bytes", bytes.Repeat([]byte{0xf0}, 11), errVarint},
	} {
		d := decoder{rest: tt.in}
		if got := d.takeVarint(); got != 0 || !errors.Is(d.err, tt.want) {
			t.Errorf("%s: varint(%x) = %d, %v, want error %v", tt.name, tt.in, got, d.err, tt.want)
		}
	}
}

func TestDecoderStaysAtItsFirstError(t *testing.T) {
	d := decoder{rest: []byte{1, 2, 3}}
	d.takeBytes(4)
	if v, u, b := d.takeVarint(), d.takeUint32(), d.takeBytes(1); v != 0 || u != 0 || b != nil || !errors.Is(d.err, errShort) {
		t.Errorf("after an error: varint %d, uint32 %d, bytes %x, error %v", v, u, b, d.err)
	}
}

func FuzzVarint(f *testing.F) {
	f.Add(uint64(0), []byte{0xf0, 0x80, 0x00})
	f.Add(uint64(math.MaxUint64), []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, v uint64, in []byte) {
		b := appendVarint(nil, v)
		d := decoder{rest: b}
		if got := d.takeVarint(); got != v || d.err != nil || len(d.rest) != 0 {
			t.Fatalf("varint(%x) = %d, %v, want %d", b, got, d.err, v)
		}
		if got := varintLen(v); got != len(b) {
			t.Fatalf("varintLen(%d) = %d, want %d", v, got, len(b))
		}
		d = decoder{rest: in}
		if got := d.takeVarint(); d.err == nil {
			// The encoding has no second spelling of a number.
			if again := appendVarint(nil, got); !bytes.HasPrefix(in, again) {
				t.Fatalf("varint(%x) = %d, which is written %x", in, got, again)
			}
		}
	})
}
