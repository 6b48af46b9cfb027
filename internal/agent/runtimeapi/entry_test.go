package runtimeapi

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseEntry(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       Entry
	}{
		{"2.6", "0x56115cdeb620: key=bob use=0 exp=600000 conn_cur=2 gpt0=5 gpt1=0 gpt2=77 gpc0=0 gpc1=1",
			Entry{Found: true, Key: "bob", Expires: 10 * time.Minute, ConnCur: 2, GPT: []uint32{5, 0, 77}, GPC: []uint32{0, 1}}},
		{"3.2", "0x7f9a342714f0: key=bob use=0 exp=599999 shard=0 conn_cur=0 http_req_cnt=9 http_req_rate(10000)=3 gpt0=4294967295 gpc0=1 gpc0_rate(1000)=2",
			Entry{Found: true, Key: "bob", Expires: 599_999 * time.Millisecond, HTTPReqCnt: 9, GPT: []uint32{1<<32 - 1}, GPC: []uint32{1}}},
		{"bytes", "0x1: key=bob use=0 exp=0 conn_cur=0 bytes_in_cnt=77 bytes_out_cnt=9223372036854775807 gpc0=1",
			Entry{Found: true, Key: "bob", BytesIn: 77, BytesOut: 1<<63 - 1, GPC: []uint32{1}}},
		{"escaped", `0x1: key=na\xC3\xAFve\ \=\\\t use=0 exp=1 server_key=a\ b gpc0=1`,
			Entry{Found: true, Key: "naïve =\\\t", Expires: time.Millisecond, GPC: []uint32{1}}},
		{"key that looks like fields", `0x1: key=a\ gpc0\=9 use=1 exp=0 gpc0=1`, Entry{Found: true, Key: "a gpc0=9", GPC: []uint32{1}}},
		{"key alone", "0x1: key=bob", Entry{Found: true, Key: "bob"}},
		{"escaped key alone", `0x1: key=b\ b`, Entry{Found: true, Key: "b b"}},
	} {
		var got Entry
		if err := parseEntry([]byte(tt.line), &got); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: parseEntry() = %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestParseEntryRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"0x1: use=0":                 `entry "0x1: use=0": no key`,
		`0x1: key=a\`:                `entry "0x1: key=a\\": the key ends with a backslash`,
		`0x1: key=a\x4`:              `entry "0x1: key=a\\x4": the key ends within an escaped byte`,
		`0x1: key=a\xzz`:             `entry "0x1: key=a\\xzz": strconv.ParseUint: parsing "zz": invalid syntax`,
		"0x1: key=a gpt0=":           `entry "0x1: key=a gpt0=": gpt0: strconv.ParseUint: parsing "": invalid syntax`,
		"0x1: key=a gpt0=4294967296": `entry "0x1: key=a gpt0=4294967296": gpt0: strconv.ParseUint: parsing "4294967296": value out of range`,
		"0x1: key=a gpc100=1":        `entry "0x1: key=a gpc100=1": gpc100: want at most 100 elements`,
		"0x1: key=a conn_cur=x":      `entry "0x1: key=a conn_cur=x": conn_cur: strconv.ParseUint: parsing "x": invalid syntax`,
		"0x1: key=a bytes_in_cnt=-":  `entry "0x1: key=a bytes_in_cnt=-": bytes_in_cnt: strconv.ParseUint: parsing "-": invalid syntax`,
		"0x1: key=a bytes_out_cnt=-": `entry "0x1: key=a bytes_out_cnt=-": bytes_out_cnt: strconv.ParseUint: parsing "-": invalid syntax`,
		"0x1: key=a exp=99999999999": `entry "0x1: key=a exp=99999999999": exp: strconv.ParseUint: parsing "99999999999": value out of range`,
	} {
		var e Entry
		if err := parseEntry([]byte(line), &e); err == nil || err.Error() != want {
			t.Errorf("parseEntry(%q) = %v, want %s", line, err, want)
		}
	}
}

// haproxyReads splits a line into commands and their words, as HAProxy does.
func haproxyReads(line string) [][]string {
	commands := [][]string{nil}
	word, inWord := "", false
	end := func() {
		if inWord {
			commands[len(commands)-1] = append(commands[len(commands)-1], word)
		}
		word, inWord = "", false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			i++
			word, inWord = word+string(line[i]), true
		case c == ' ' || c == '\t':
			end()
		case c == ';':
			end()
			commands = append(commands, nil)
		default:
			word, inWord = word+string([]byte{c}), true
		}
	}
	end()
	return commands
}

// haproxyPrints escapes a key as HAProxy does in its answers.
func haproxyPrints(key string) string {
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case c == ' ' || c == '\\' || c == '=':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c > 0x20 && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02X`, c)
		}
	}
	return b.String()
}

func FuzzKeyIsOneWord(f *testing.F) {
	for _, key := range hostile() {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if expressible(key) != nil {
			return
		}
		line := string(appendKeyed(appendWithdrawal(nil, "t", key, 1795363607), "show", "t", key))
		if strings.ContainsAny(line, "\n\r\x00") || strings.Contains(line, "<<") {
			t.Fatalf("commands %q: would end, or begin a payload", line)
		}
		want := [][]string{nil, {"set", "table", "t", "key", key, "data.gpt", "0", "data.server_id", "1795363607"}, {"show", "table", "t", "key", key}}
		if got := haproxyReads(line); !reflect.DeepEqual(got, want) {
			t.Fatalf("HAProxy reads %q in %q, want %q", got, line, want)
		}
		var e Entry
		if err := parseEntry([]byte("0x1: key="+haproxyPrints(key)+" use=0 exp=1 gpt0=3"), &e); err != nil || e.Key != key || e.GPT[0] != 3 {
			t.Fatalf("parseEntry() of the key %q = %+v, %v", key, e, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(process7+"\n"+aliceEntry+process7, byte(0))
	f.Add(process7+aliceEntry+aliceEntry+process7, byte(1))
	f.Add(process7+"proc.v: type=str value=<a b>\n"+process7, byte(2))
	f.Add("Permission denied\n\n", byte(3))
	f.Add(`0x1: key=na\xC3\xAFve\ \=\\\t use=0 exp=1 server_key=a\ b gpc0=1`, byte(1))
	f.Fuzz(func(t *testing.T, text string, kind byte) {
		a := answer{question: question{table: "t"}}
		switch kind % 4 {
		case 0:
			a.lookups, a.withdraw = []lookup{{creditTable, "bob"}, {creditTable, "alice"}}, true
		case 1:
			a.rate, a.each = fast, func(e Entry) {
				if !e.Found || len(e.GPT) > maxArray || len(e.GPC) > maxArray {
					t.Errorf("entry %+v", e)
				}
			}
		case 2:
			a.variable = "proc.v"
		case 3:
			a.lookups = []lookup{{creditTable, "alice"}}
		}
		for line := range strings.SplitSeq(text, "\n") {
			if err := a.takeLine([]byte(line)); err != nil {
				return
			}
		}
		if a.checkWhole() != nil {
			return
		}
		if len(a.entries) != len(a.lookups) {
			t.Fatalf("%d entries of %d keys", len(a.entries), len(a.lookups))
		}
		for i, e := range a.entries {
			if e.Key != a.lookups[i].key {
				t.Fatalf("entry %d is of %q, want %q", i, e.Key, a.lookups[i].key)
			}
		}
	})
}
