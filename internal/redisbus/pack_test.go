package redisbus

import (
	"bytes"
	"strings"
	"testing"
)

// What Pack has made is read again, and nothing else: a writer to Redis can send any bytes.
func TestUnpack(t *testing.T) {
	var u Unpacker
	full := bytes.Repeat([]byte("0123456789abcde\n"), MaxBatch/16)
	packed := string(Pack(full))
	for _, tt := range []struct{ name, message, err string }{
		{"nothing", "", "unpack policies: unexpected EOF"},
		{"lines as they are", "1 unblock \"alice\"\n", "unpack policies: flate: corrupt input before offset 5"},
		{"the beginning of a batch", packed[:len(packed)/2], "unpack policies: unexpected EOF"},
		{"more behind it", packed + "x", "unpack policies: 1 bytes follow them"},
		{"a batch that grows beyond the most", string(Pack(make([]byte, 1<<26))), "unpack policies: more than 1048576 bytes"},
	} {
		if lines, err := u.Unpack(tt.message); err == nil || err.Error() != tt.err {
			t.Errorf("%s: Unpack = %d bytes, %v, want %s", tt.name, len(lines), err, tt.err)
		}
		if lines, err := u.Unpack(packed); err != nil || !bytes.Equal(lines, full) {
			t.Errorf("%s: the next message is %d bytes, %v, want %d", tt.name, len(lines), err, len(full))
		}
	}
	if lines, err := u.Unpack(string(Pack(nil))); err != nil || len(lines) != 0 {
		t.Errorf("Unpack of an empty batch = %q, %v", lines, err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add("")
	f.Add(string(Pack([]byte("1 unblock \"alice\"\n"))))
	f.Add(strings.Repeat("\xff", 100))
	f.Fuzz(func(t *testing.T, message string) {
		var u Unpacker
		lines, err := u.Unpack(message)
		if len(lines) > MaxBatch {
			t.Fatalf("%d bytes", len(lines))
		}
		if err != nil {
			return
		}
		if again, err := u.Unpack(string(Pack(lines))); err != nil || !bytes.Equal(again, lines) {
			t.Errorf("Unpack(%q) = %q, read again as %q, %v", message, lines, again, err)
		}
	})
}
