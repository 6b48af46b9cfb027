package redisbus

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// A decoded is a message and what it is read as.
type decoded[T any] struct {
	name, message string
	want          T
}

func checkDecoded[T any](t *testing.T, decode func(string) (T, error), tests []decoded[T]) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decode(tt.message)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%q is read with the error %v (-want +got):\n%s", tt.message, err, diff)
			}
		})
	}
}

// A refused is a message and the error that it is.
type refused struct{ name, message, err string }

func checkRefused[T any](t *testing.T, decode func(string) (T, error), tests []refused) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := decode(tt.message); err == nil || err.Error() != tt.err {
				t.Errorf("%q is read as %v, %v, want the error %s", tt.message, got, err, tt.err)
			}
		})
	}
}

// fuzzDecoded holds a decoder to this: what is read is what the message says, and written again it is read the same.
func fuzzDecoded[T any](f *testing.F, decode func(string) (T, error), encode func(T) string) {
	f.Fuzz(func(t *testing.T, message string) {
		got, err := decode(message)
		if err != nil {
			return
		}
		again, err := decode(encode(got))
		if diff := cmp.Diff(got, again, cmp.AllowUnexported(change{})); err != nil || diff != "" {
			t.Errorf("%q is read again as %v (-first +again):\n%s", message, err, diff)
		}
	})
}

func TestDecodeUsage(t *testing.T) {
	over := func(second int64, class, user string, w limits.Window, total int) UsageEntry {
		return UsageEntry{Second: second, Key: ratelimit.Key{Class: class, User: user, Window: w}, Total: total}
	}
	entry := func(second int64, class, user string, total int) UsageEntry {
		return over(second, class, user, limits.Second, total)
	}
	checkDecoded(t, decodeUsage, []decoded[Usage]{
		{"nothing changed", "1 4:host", Usage{Instance: "host"}},
		{"one pool", "1 4:host 17 1 9:GET|alice 5", Usage{Instance: "host", Entries: []UsageEntry{entry(17, "GET", "alice", 5)}}},
		{"two seconds", "1 4:host 17 2 5:GET|a 5:PUT|a 5 6 18 1 3:*|a 7", Usage{Instance: "host", Entries: []UsageEntry{
			entry(17, "GET", "a", 5), entry(17, "PUT", "a", 6), entry(18, "*", "a", 7)}}},
		{"names that look like the rest", "1 5:1 1:x 17 1 12:*|| 1 2:3\x00\xff\n 5", Usage{Instance: "1 1:x", Entries: []UsageEntry{
			entry(17, "*", "| 1 2:3\x00\xff\n", 5)}}},
		{"empty names", "1 0: 17 1 1:| 5", Usage{Entries: []UsageEntry{entry(17, "", "", 5)}}},
		{"windows of a minute and an hour", "1 4:host 60 2 12:GET/minute|a 10:*/minute|a 5 6 60 1 5:GET|a 7 3600 1 7:/hour|/ 8", Usage{
			Instance: "host", Entries: []UsageEntry{
				over(60, "GET", "a", limits.Minute, 5), over(60, "*", "a", limits.Minute, 6), entry(60, "GET", "a", 7), over(3600, "", "/", limits.Hour, 8)}}},
	})
}

func TestDecodeUsageRefuses(t *testing.T) {
	checkRefused(t, decodeUsage, []refused{
		{"nothing", "", `unknown version ""`},
		{"a newer version", "3 4:host", `unknown version "3"`},
		{"no instance", "1", `string "" is not as long as it says`},
		{"an instance that is longer than it says", "1 3:host", `string "3:host" is not as long as it says`},
		{"an instance that is shorter than it says", "1 5:host", `string "5:host" is not as long as it says`},
		{"a length that overflows", "1 99999999999:host", `string "99999999999:host" is not as long as it says`},
		{"a second alone", "1 4:host 17", `number "": invalid syntax`},
		{"fewer pools than it says", "1 4:host 17 9 5:GET|a", `1 pools where it says 9`},
		{"no pools where it says some", "1 4:host 17 9", `0 pools where it says 9`},
		{"a total for a pool", "1 4:host 17 2 5:GET|a 5", `string "5" is not as long as it says`},
		{"fewer totals than pools", "1 4:host 17 1 5:GET|a", `number "": invalid syntax`},
		{"a negative total", "1 4:host 17 1 5:GET|a -5", `number "-5": invalid syntax`},
		{"a pool without a class", "1 4:host 17 1 4:GETa 5", `"GETa" is not limit|user`},
		{"a class with a control byte", "1 4:host 17 1 5:G\nT|a 5", `"G\nT|a" is not limit|user`},
		{"a window that does not exist", "1 4:host 17 1 10:GET/week|a 5", `"GET/week|a" is not limit|user`},
		{"a window alone", "1 4:host 17 1 4:hour 5", `"hour" is not limit|user`},
	})
}

func TestDecodeProgress(t *testing.T) {
	alice := ProgressEntry{User: "alice", Held: 6, Active: 5, Refused: 2, Limit: 10}
	checkDecoded(t, decodeProgress, []decoded[Progress]{
		{"nobody", "1 4:host", Progress{Instance: "host"}},
		{"one user", "1 4:host 5:alice 6 5 2 10", Progress{Instance: "host", Entries: []ProgressEntry{alice}}},
		{"two users", "1 4:host 5:alice 6 5 2 10 1:b 0 0 0 0", Progress{Instance: "host", Entries: []ProgressEntry{alice, {User: "b"}}}},
		{"names that look like the rest", "1 5:1 1:x 10:1 2:3\x00\xff\n 5 0 0 0 1", Progress{Instance: "1 1:x", Entries: []ProgressEntry{
			{User: "1 2:3\x00\xff\n 5", Limit: 1}}}},
	})
}

func TestDecodeProgressRefuses(t *testing.T) {
	checkRefused(t, decodeProgress, []refused{
		{"nothing", "", `unknown version ""`},
		{"a newer version", "2 4:host", `unknown version "2"`},
		{"no instance", "1", `string "" is not as long as it says`},
		{"a user alone", "1 4:host 1:a", `number "": invalid syntax`},
		{"no limit", "1 4:host 1:a 1 2 3", `number "": invalid syntax`},
		{"a negative count", "1 4:host 1:a 1 -2 3 4", `number "-2": invalid syntax`},
		{"a number too many", "1 4:host 1:a 1 2 3 4 5", `string "5" is not as long as it says`},
	})
}

func TestDecodeDemand(t *testing.T) {
	alice := bandwidth.Report{Instance: "host", User: "alice", Active: 2, Moved: [2]int64{3, 4}, Most: [2]int64{5, 6}, Share: [2]int64{7, 8}}
	checkDecoded(t, decodeDemand, []decoded[Demand]{
		{"nobody", "1 4:host", nil},
		{"one user", "1 4:host 5:alice 2 3 4 5 6 7 8", Demand{alice}},
		{"two users", "1 4:host 5:alice 2 3 4 5 6 7 8 1:b 0 0 0 0 0 0 0", Demand{alice, {Instance: "host", User: "b"}}},
		{"names that look like the rest", "1 5:1 1:x 10:1 2:3\x00\xff\n 5 0 0 0 0 0 0 1", Demand{
			{Instance: "1 1:x", User: "1 2:3\x00\xff\n 5", Share: [2]int64{0, 1}}}},
	})
}

func TestDecodeDemandRefuses(t *testing.T) {
	checkRefused(t, decodeDemand, []refused{
		{"nothing", "", `unknown version ""`},
		{"a newer version", "2 4:host", `unknown version "2"`},
		{"no instance", "1", `string "" is not as long as it says`},
		{"a user alone", "1 4:host 1:a", `number "": invalid syntax`},
		{"a share too few", "1 4:host 1:a 1 2 3 4 5 6", `number "": invalid syntax`},
		{"a negative number", "1 4:host 1:a 1 2 -3 4 5 6 7", `number "-3": invalid syntax`},
		{"a number too many", "1 4:host 1:a 1 2 3 4 5 6 7 8", `string "8" is not as long as it says`},
	})
}

func TestDecodeChange(t *testing.T) {
	now := time.Unix(1760000000, 250e6).UTC()
	for message, want := range map[string]change{
		"2 1760000000 250000 3:1-x 3:2-y 1 1:d 1:b 3:a c":      {now: now, from: "1-x", epoch: "2-y", left: []string{"d"}, joined: []string{"a c", "b"}},
		"2 1760000000 250000 0: 3:1-x 0":                       {now: now, epoch: "1-x"},
		"2 1760000000 250000 3:1-x 3:2-y 2 1:a 1:b 2:\x00\xff": {now: now, from: "1-x", epoch: "2-y", left: []string{"a", "b"}, joined: []string{"\x00\xff"}},
	} {
		got, err := decodeChange(message)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(change{})); err != nil || diff != "" {
			t.Errorf("decodeChange(%q) = %v (-want +got):\n%s", message, err, diff)
		}
	}
	for _, bad := range []string{
		"", "2", "2 5", "2 5 x", "1 1760000000 250000 3:1-x 3:2-y 0 1:b", "2 5 6 b", "2 5 6 1:b",
		"2 5 6", "2 5 6 1:a", "2 5 6 1:a 1:b", "2 5 6 1:a 0: 0", "2 5 6 1:a 1:b 1", "2 5 6 1:a 1:b 9999999999", "2 5 6 1:a 1:b 0 2:c", "2 5 1000000 1:a 1:b 0",
	} {
		if got, err := decodeChange(bad); err == nil {
			t.Errorf("decodeChange(%q) = %v, want an error", bad, got)
		}
	}
}

func FuzzDecodeUsage(f *testing.F) {
	f.Add("1 4:host")
	f.Add("1 4:host 17 2 9:GET|alice 5:PUT|a 5 6 18 1 3:*|a 7")
	f.Add("1 5:1 1:x 17 1 12:*|| 1 2:3\x00\xff\n 5")
	f.Add("1 4:host 17 9223372036854775807 5:GET|a 5")
	f.Add("1 4:host 60 2 12:GET/minute|a 7:*/hour| 5 6 60 1 7:/hour|/ 8 60 1 14:GET/minute/h|a 8")
	fuzzDecoded(f, decodeUsage, encodeUsage)
}

func FuzzDecodeCharged(f *testing.F) {
	f.Add("12 100")
	f.Add("0 9223372036854775807")
	f.Add("12 100 1")
	f.Fuzz(func(t *testing.T, text string) {
		total, ok := decodeCharged(text)
		if !ok {
			return
		}
		if again, ok := decodeCharged(fmt.Sprint(total.Charged, " ", total.Due)); !ok || again != total || total.Charged < 0 || total.Due < 0 {
			t.Errorf("decodeCharged(%q) = %+v, read again as %+v, %v", text, total, again, ok)
		}
	})
}

func FuzzDecodeProgress(f *testing.F) {
	f.Add("1 4:host")
	f.Add("1 4:host 5:alice 6 5 2 10 1:b 0 0 0 0")
	f.Add("1 5:1 1:x 10:1 2:3\x00\xff\n 5 0 0 0 9223372036854775807")
	fuzzDecoded(f, decodeProgress, func(p Progress) string {
		b := appendText([]byte("1 "), p.Instance)
		for _, e := range p.Entries {
			b = appendText(append(b, ' '), e.User)
			b = fmt.Appendf(b, " %d %d %d %d", e.Held, e.Active, e.Refused, e.Limit)
		}
		return string(b)
	})
}

func FuzzDecodeDemand(f *testing.F) {
	f.Add("1 4:host")
	f.Add("1 4:host 5:alice 2 3 4 5 6 7 8 1:b 0 0 0 0 0 0 0")
	f.Add("1 5:1 1:x 10:1 2:3\x00\xff\n 5 0 0 0 0 0 0 9223372036854775807")
	f.Fuzz(func(t *testing.T, message string) {
		got, err := decodeDemand(message)
		if err != nil || len(got) == 0 {
			return
		}
		written, rest := demandMessage(got[0].Instance, got)
		again, err := decodeDemand(string(written))
		if diff := cmp.Diff(got[:len(got)-len(rest)], again); err != nil || diff != "" {
			t.Errorf("decodeDemand(%q) is read again as %v (-first +again):\n%s", message, err, diff)
		}
	})
}

func TestDecodeStarts(t *testing.T) {
	for _, bad := range []string{
		"", "2 1:a 1000", "1 1:a", "1 1:a 0", "1 1:a 3600001", "1 1:a 1000 1:u", "1 1:a 1000 1:u 1 2", "1 1:a 1000 1:u 1 2 1",
		"1 1:a 1000 1:u 1 2 2 3:GET 1", "1 1:a 1000 1:u 1 2 9223372036854775807 3:GET 1", "1 1:a 1000 1:u 1 2 1 3:G|T 1", "1 1:a 1000 1:u -1 2 0",
	} {
		if got, err := decodeStarts(bad); err == nil {
			t.Errorf("decodeStarts(%q) = %+v, want an error", bad, got)
		}
	}
}

func FuzzDecodeStarts(f *testing.F) {
	f.Add("1 4:host 1000")
	f.Add("1 4:host 1000 5:alice 2 3 2 3:GET 2 4:LIST 1 1:b 0 0 0")
	f.Add("1 5:1 1:x 1 10:1 2:3\x00\xff\n 5 9223372036854775807 1 0: 0")
	f.Fuzz(func(t *testing.T, message string) {
		got, err := decodeStarts(message)
		if err != nil {
			return
		}
		written, rest := appendStarts(nil, got.Instance, got.Span, got.Users)
		if len(rest) > 0 {
			return // one message does not hold what a larger one said
		}
		again, err := decodeStarts(string(written))
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Errorf("decodeStarts(%q) is read again as %v (-first +again):\n%s", message, err, diff)
		}
	})
}

func FuzzDecodeEvents(f *testing.F) {
	f.Add("1 5:alice 2 1 3:GET 3 3:b b 0 0")
	f.Add("1 5:alice 2 2 3:GET 3")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := decodeEvents(text)
		if err != nil {
			return
		}
		for _, of := range all {
			if err := of.validate(); err != nil {
				t.Errorf("decodeEvents(%q) = %v: %v", text, all, err)
			}
		}
	})
}

func FuzzDecodeChange(f *testing.F) {
	f.Add("2 1760000000 250000 3:1-x 3:2-y 1 1:d 1:b 3:a c")
	f.Add("2 1760000000 250000 0: 3:1-x 0")
	fuzzDecoded(f, decodeChange, encodeChange)
}

func encodeChange(c change) string {
	b := fmt.Appendf(nil, "2 %d %d ", c.now.Unix(), c.now.Nanosecond()/1000)
	b = appendText(append(appendText(b, c.from), ' '), c.epoch)
	b = fmt.Appendf(b, " %d", len(c.left))
	for _, name := range slices.Concat(c.left, c.joined) {
		b = appendText(append(b, ' '), name)
	}
	return string(b)
}

func encodeUsage(u Usage) string {
	b := appendText([]byte(wireVersion+" "), u.Instance)
	for _, e := range u.Entries {
		b = fmt.Appendf(b, " %d 1 ", e.Second)
		b = appendText(b, fieldOf(e.Key))
		b = fmt.Appendf(b, " %d", e.Total)
	}
	return string(b)
}
