package peers

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var throttle = Table{Name: "/throttle", KeyLen: 160, Expire: 5 * time.Second, Data: []DataType{GPC0, GPT0}}

func TestDefinitionBytes(t *testing.T) {
	want := []byte("\x0a\x82\x11" + // class 10, type 130, 17 bytes
		"\x01\x09/throttle" + // id, name
		"\x06\xa1\x06" + // string, 160+1, gpt0 and gpc0
		"\xf8\xa9\x01") // 5000 ms
	if got := appendDefinition(nil, throttle.definition(1)); !bytes.Equal(got, want) {
		t.Errorf("appendDefinition() = %x, want %x", got, want)
	}
	got, err := parseDefinition(want[3:])
	if diff := cmp.Diff(throttle.definition(1), got, cmp.AllowUnexported(definition{})); diff != "" || err != nil {
		t.Errorf("parseDefinition(), %v (-want +got):\n%s", err, diff)
	}
}

func TestTimedUpdateBytes(t *testing.T) {
	want := []byte("\x0a\x85\x10" + // class 10, type 133, 16 bytes
		"\x00\x00\x00\x07\x00\x00\x03\xe8" + // id 7, 1000 ms
		"\x04GET|" + // key
		"\xf0\x00\x01") // gpt0 240, gpc0 1
	if got := appendTimed(nil, 7, time.Second, "GET|", []byte{0xf0, 0, 1}); !bytes.Equal(got, want) {
		t.Errorf("appendTimed() = %x, want %x", got, want)
	}
}

// active is HAProxy's definition of a table with conn_cur and http_req_cnt.
var active = definition{id: 3, name: "/active", keyType: keyString, keyLen: 129, data: 1<<ConnCur | 1<<HTTPReqCnt, expire: time.Minute}

func TestParseUpdate(t *testing.T) {
	with := func(d definition, change func(*definition)) definition {
		change(&d)
		return d
	}
	key := "\x03bob"
	for _, tt := range []struct {
		name string
		def  definition
		kind byte
		body string
		id   uint32
		want Update
	}{
		{"update has an id and the table's expire", active, tableUpdate, "\x00\x00\x00\x09" + key + "\x01\x02",
			9, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: time.Minute}},
		{"a binary key ends with its zeros", with(active, func(d *definition) { d.keyType, d.keyLen = keyBinary, 6 }), tableIncremental, "bob\x00\x00\x00\x01\x02",
			42, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: time.Minute}},
		{"incremental counts on", active, tableIncremental, key + "\x01\x02",
			42, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: time.Minute}},
		{"timed has its own expire", active, tableTimed, "\x00\x00\x00\x09\x00\x00\x01\x00" + key + "\x01\x02",
			9, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: 256 * time.Millisecond}},
		{"timed incremental has both", active, tableTimedIncremental, "\x00\x00\x01\x00" + key + "\x01\x02",
			42, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: 256 * time.Millisecond}},
		{"what follows a rate is left", with(active, func(d *definition) { d.data |= 1 << 8 }), tableIncremental, key + "\x01\xff\xff",
			42, Update{Key: "bob", Values: Values{ConnCur: 1}, Expire: time.Minute}},
		{"what follows an unknown data type is left", with(active, func(d *definition) { d.data |= 1<<40 | 1<<63 }),
			tableIncremental, key + "\x01\x02" + "\xff\xff\xff",
			42, Update{Key: "bob", Values: Values{ConnCur: 1, HTTPReqCnt: 2}, Expire: time.Minute}},
	} {
		id, got, err := tt.def.parseUpdate(tt.kind, []byte(tt.body), 41)
		if id != tt.id || err != nil {
			t.Errorf("%s: parseUpdate() = id %d, %v, want %d", tt.name, id, err, tt.id)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: parseUpdate() (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestParseUpdateRejects(t *testing.T) {
	for _, tt := range []struct {
		name, body, want string
		def              definition
		kind             byte
	}{
		{"half an id", "\x00\x00", `protocol error: update of table "/active": message ends too early`, active, tableUpdate},
		{"no time", "\x00\x00\x00\x01", `protocol error: update of table "/active": message ends too early`, active, tableTimed},
		{"a key past the end", "\x09bob", `protocol error: update of table "/active": message ends too early`, active, tableIncremental},
		{"a key of 2^64-1 bytes", "\xff\xf0\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x0ebob", `protocol error: update of table "/active": message ends too early`, active, tableIncremental},
		{"a value missing", "\x03bob\x01", `protocol error: update of table "/active": message ends too early`, active, tableIncremental},
	} {
		if _, _, err := tt.def.parseUpdate(tt.kind, []byte(tt.body), 0); err == nil || err.Error() != tt.want {
			t.Errorf("%s: parseUpdate(%q) = %v, want %s", tt.name, tt.body, err, tt.want)
		}
	}
}

func TestParseDefinition(t *testing.T) {
	head := "\x02\x04/tab\x04\x04"
	for _, tt := range []struct {
		name, body string
		want       definition
	}{
		{"a table with rates and arrays", head + appended(1<<GPT0|1<<3|1<<22) + "\x05" + "\x03\x07\x16\x02",
			definition{data: 1<<GPT0 | 1<<3 | 1<<22, expire: 5 * time.Millisecond}},
		{"unknown types", head + appended(1<<GPT0|1<<40) + "\x05" + "\x28\xff\xff", definition{data: 1<<GPT0 | 1<<40, expire: 5 * time.Millisecond}},
	} {
		tt.want.id, tt.want.name, tt.want.keyType, tt.want.keyLen = 2, "/tab", 4, 4
		got, err := parseDefinition([]byte(tt.body))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(definition{})); diff != "" || err != nil {
			t.Errorf("%s: parseDefinition(), %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
	full := head + "\x0a\x05\x03\x07"
	for n := range len(full) - 2 { // without its parameters it is complete
		if d, err := parseDefinition([]byte(full[:n])); err == nil {
			t.Errorf("parseDefinition(%q) = %v, want an error", full[:n], d)
		}
	}
}

func appended(v uint64) string { return string(appendVarint(nil, v)) }

func FuzzDefinition(f *testing.F) {
	f.Add(appendDefinition(nil, throttle.definition(1))[3:])
	f.Add([]byte("\x02\x04/tab\x04\x04\x0a\x05\x03\x07"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := parseDefinition(body)
		if err != nil {
			return
		}
		if d.expire < 0 || len(d.name) > len(body) {
			t.Fatalf("parseDefinition(%x) = %+v", body, d)
		}
		if len(d.name) > 4096 {
			return // more than one message may hold
		}
		m, err := readMessage(reader(appendDefinition(nil, d)))
		if err != nil {
			t.Fatalf("readMessage(%+v) = %v", d, err)
		}
		again, err := parseDefinition(m.body)
		if diff := cmp.Diff(d, again, cmp.AllowUnexported(definition{})); diff != "" || err != nil {
			t.Fatalf("written and read again, %v (-want +got):\n%s", err, diff)
		}
	})
}

func FuzzUpdate(f *testing.F) {
	f.Add(keyString, uint64(0), tableTimed, active.data, []byte("\x00\x00\x00\x09\x00\x00\x01\x00\x03bob\x01\x02"))
	f.Add(keyBinary, uint64(6), tableUpdate, active.data, []byte("\x00\x00\x00\x09bob\x00\x00\x00\x01\x02"))
	f.Add(keyString, uint64(0), tableUpdate, ^uint64(0), []byte("\x00\x00\x00\x09"))
	f.Fuzz(func(t *testing.T, keyType, keyLen uint64, kind byte, data uint64, body []byte) {
		d := definition{name: "/t", keyType: keyType, keyLen: keyLen, data: data}
		id, u, err := d.parseUpdate(kind, body, 7)
		if err != nil {
			return
		}
		if !bytes.Contains(body, []byte(u.Key)) {
			t.Fatalf("parseUpdate(%x) has the key %q", body, u.Key)
		}
		if kind == tableTimed && id != binary.BigEndian.Uint32(body) {
			t.Fatalf("parseUpdate(%x) has the id %d", body, id)
		}
		if u.Expire < 0 {
			t.Fatalf("parseUpdate(%x) expires after %v", body, u.Expire)
		}
	})
}
