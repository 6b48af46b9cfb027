package redisbus

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

var update = flag.Bool("update", false, "write the golden files")

// everyKind has each kind of message, with names that try to break out.
var everyKind = []Message{
	Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 1760000000, Limit: 100},
	Throttle{Key: ratelimit.Key{Class: "*", User: "a\nb\x00c\"d\\e|f g"}, Second: 0, Limit: 0},
	Throttle{Key: ratelimit.Key{Class: "LIST multi", User: "\xff\xfe\xed\xa0\x80"}, Second: 1, Limit: 1 << 30},
	Throttle{Key: ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}, Second: 1760000040, Limit: 1000},
	Throttle{Key: ratelimit.Key{Class: "", User: "/minute", Window: limits.Hour}, Second: 3600, Limit: 1},
	Hot{Key: ratelimit.Key{Class: "*", User: "alice/hour", Window: limits.Hour}, Until: time.UnixMilli(1760000003250).UTC(), Instances: 2},
	Hot{Key: ratelimit.Key{Class: "PUT", User: "größe 数 � \u2028"}, Until: time.UnixMilli(1760000003250).UTC(), Instances: 12},
	Hot{Key: ratelimit.Key{}, Until: time.UnixMilli(0).UTC()},
	Block{User: "alice", Limit: 10, Release: 9},
	Block{User: "a\nb\x00c\"d\\e|f g", Limit: 0, Release: 0},
	Unblock{User: "alice"},
	Unblock{User: "\xff 1 2"},
	Slots{User: "alice", Until: time.UnixMilli(1760000000000).UTC(), Shares: []SlotShare{
		{Instance: "instance-a", Slots: 6}, {Instance: "instance-b", Slots: 4}}},
	Slots{User: "", Until: time.UnixMilli(0).UTC(), Shares: []SlotShare{{Instance: "a\" 7 \"b\n\xff", Slots: 1 << 30}, {}}},
	Slots{User: "nobody has any", Until: time.UnixMilli(1).UTC()},
	Share{User: "alice", Direction: bandwidth.Down, Shares: []bandwidth.Share{{Instance: "instance-a", Bytes: 7864320}, {Instance: "instance-b", Bytes: 2621440}}},
	Share{User: "a\nb\" 1", Direction: bandwidth.Up, Shares: []bandwidth.Share{{Instance: "", Bytes: 0}, {Instance: "\" 7 \xff", Bytes: 1<<63 - 1}}},
	Share{User: "nobody has any"},
	Limits{Version: "sha256:3f2a"},
	Limits{},
}

func TestGolden(t *testing.T) {
	var got []byte
	for _, m := range everyKind {
		got = Append(got, m)
	}
	const file = "testdata/messages.golden"
	if *update {
		testkit.Must(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	testkit.Must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("Append (-golden +got):\n%s", diff)
	}
	messages, err := Decode(want)
	if err != nil {
		t.Errorf("Decode(%s) = %v", file, err)
	}
	if diff := cmp.Diff(everyKind, messages); diff != "" {
		t.Errorf("Decode(%s) (-want +got):\n%s", file, diff)
	}
}

func TestKindIsTheLinesSecondWord(t *testing.T) {
	for _, m := range everyKind {
		want := strings.Fields(string(Append(nil, m)))[1]
		if got := Kind(m); got != want {
			t.Errorf("Kind(%#v) = %q, want %q", m, got, want)
		}
	}
}

func TestDecodeSkipsWhatItDoesNotUnderstand(t *testing.T) {
	good := Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 7, Limit: 5}
	before, after := string(Append(nil, good)), string(Append(nil, Limits{Version: "2"}))
	tests := []struct{ name, line, err string }{
		{"a kind of a newer polygen", `1 defer "GET" "alice" 5`, `line 2: unknown kind "defer"`},
		{"a newer version", `2 throttle "GET" "alice" 7 5`, `line 2: unknown version "2"`},
		{"nothing", ``, `line 2: unknown version ""`},
		{"a version alone", `1`, `line 2: unknown kind ""`},
		{"a field too few", `1 throttle "GET" "alice" 7`, `line 2: number "": invalid syntax`},
		{"a field too many", `1 throttle "GET" "alice" 7 5 9`, `line 2: more than its fields`},
		{"a user without quotes", `1 throttle "GET" alice 7 5`, `line 2: quoted string: invalid syntax`},
		{"a user in backquotes", "1 throttle \"GET\" `alice` 7 5", `line 2: quoted string: invalid syntax`},
		{"a quote that does not end", `1 limits "3`, `line 2: quoted string: invalid syntax`},
		{"a negative limit", `1 throttle "GET" "alice" 7 -5`, `line 2: number "-5": invalid syntax`},
		{"a number that overflows", `1 throttle "GET" "alice" 9223372036854775808 5`,
			`line 2: number "9223372036854775808": value out of range`},
		{"a class with the separator", `1 throttle "G|T" "alice" 7 5`, `line 2: class "G|T" holds '|', '/' or a control byte`},
		{"a class with a control byte", `1 throttle "G\x00" "alice" 7 5`, `line 2: class "G\x00" holds '|', '/' or a control byte`},
		{"a window of a newer polygen", `1 throttle "GET/week" "alice" 7 5`, `line 2: class "GET/week" holds '|', '/' or a control byte`},
		{"a second that is spelled out", `1 hot "GET/second" "alice" 7 5`, `line 2: class "GET/second" holds '|', '/' or a control byte`},
		{"two windows", `1 hot "GET/minute/hour" "alice" 7 5`, `line 2: class "GET/minute/hour" holds '|', '/' or a control byte`},
		{"a block without its release", `1 block "alice" 10`, `line 2: number "": invalid syntax`},
		{"a negative release", `1 block "alice" 10 -1`, `line 2: number "-1": invalid syntax`},
		{"an unblock with more than its user", `1 unblock "alice" 9`, `line 2: more than its fields`},
		{"an unblock of nobody", `1 unblock`, `line 2: quoted string: invalid syntax`},
		{"slots without their end", `1 slots "alice" "a" 6`, `line 2: number "\"a\"": invalid syntax`},
		{"an instance without its slots", `1 slots "alice" 7 "a" 6 "b"`, `line 2: number "": invalid syntax`},
		{"slots without their instance", `1 slots "alice" 7 "a" 6 4`, `line 2: quoted string: invalid syntax`},
		{"a negative share", `1 slots "alice" 7 "a" -6`, `line 2: number "-6": invalid syntax`},
		{"a share without its direction", `1 share "alice"`, `line 2: direction "" is neither down nor up`},
		{"a share in another direction", `1 share "alice" sideways "a" 6`, `line 2: direction "sideways" is neither down nor up`},
		{"an instance without its bytes", `1 share "alice" up "a" 6 "b"`, `line 2: number "": invalid syntax`},
		{"bytes without their instance", `1 share "alice" up "a" 6 4`, `line 2: quoted string: invalid syntax`},
		{"negative bytes", `1 share "alice" up "a" -6`, `line 2: number "-6": invalid syntax`},
		{"a line that is too long", `1 limits "` + strings.Repeat("x", MaxLine) + `"`, `line 2: 73739 bytes are more than 73728`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode([]byte(before + tt.line + "\n" + after))
			if diff := cmp.Diff([]Message{good, Limits{Version: "2"}}, got); diff != "" {
				t.Errorf("Decode lost its neighbours (-want +got):\n%s", diff)
			}
			var skipped *SkippedError
			if !errors.As(err, &skipped) || skipped.Lines != 1 || skipped.First.Error() != tt.err {
				t.Errorf("Decode(%.60q) = %v, want one line skipped: %s", tt.line, err, tt.err)
			}
		})
	}
}

func TestDecodeCountsEverySkippedLine(t *testing.T) {
	_, err := Decode([]byte("x\n1 limits \"1\"\ny\nz"))
	if want := `skipped 3 policies, the first: line 1: unknown version "x"`; err == nil || err.Error() != want {
		t.Errorf("Decode = %v, want %s", err, want)
	}
}

func TestDecodeRefusesABatchThatIsTooLong(t *testing.T) {
	line := string(Append(nil, Limits{Version: "1"}))
	batch := strings.Repeat(line, MaxBatch/len(line)+1)
	if got, err := Decode([]byte(batch)); got != nil || err == nil {
		t.Errorf("Decode(%d bytes) = %d messages, %v, want an error", len(batch), len(got), err)
	}
	if got, err := Decode([]byte(batch[:MaxBatch/len(line)*len(line)])); len(got) != MaxBatch/len(line) || err != nil {
		t.Errorf("Decode(a full batch) = %d messages, %v, want %d", len(got), err, MaxBatch/len(line))
	}
}

func TestTheLongestHeaderFitsALine(t *testing.T) {
	m := Hot{Key: ratelimit.Key{Class: "DELETE", User: strings.Repeat("\x00", 16<<10)}, Until: time.UnixMilli(1 << 62).UTC(), Instances: 1 << 30}
	got, err := Decode(Append(nil, m))
	if err != nil || len(got) != 1 || got[0] != m {
		t.Errorf("Decode(Append(a user of 16 KiB)) = %d messages, %v, want the message", len(got), err)
	}
}

// Any bytes survive: two users never become one.
func TestRoundTrip(t *testing.T) {
	name := rapid.OneOf(rapid.String(), anyBytes)
	key := rapid.Custom(func(t *rapid.T) ratelimit.Key {
		return ratelimit.Key{
			Class:  name.Filter(ValidClass).Draw(t, "class"),
			User:   name.Draw(t, "user"),
			Window: rapid.SampledFrom(limits.Windows[:]).Draw(t, "window"),
		}
	})
	message := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Message {
			return Throttle{Key: key.Draw(t, "key"), Second: rapid.Int64Min(0).Draw(t, "second"), Limit: rapid.IntMin(0).Draw(t, "limit")}
		}),
		rapid.Custom(func(t *rapid.T) Message {
			until := time.UnixMilli(rapid.Int64Range(0, 1<<52).Draw(t, "until")).UTC()
			return Hot{Key: key.Draw(t, "key"), Until: until, Instances: rapid.IntMin(0).Draw(t, "instances")}
		}),
		rapid.Custom(func(t *rapid.T) Message {
			return Block{User: name.Draw(t, "user"), Limit: rapid.IntMin(0).Draw(t, "limit"), Release: rapid.IntMin(0).Draw(t, "release")}
		}),
		rapid.Custom(func(t *rapid.T) Message { return Unblock{User: name.Draw(t, "user")} }),
		rapid.Custom(func(t *rapid.T) Message {
			m := Slots{User: name.Draw(t, "user"), Until: time.UnixMilli(rapid.Int64Range(0, 1<<52).Draw(t, "until")).UTC()}
			for range rapid.IntRange(0, 4).Draw(t, "shares") {
				m.Shares = append(m.Shares, SlotShare{Instance: name.Draw(t, "instance"), Slots: rapid.IntMin(0).Draw(t, "slots")})
			}
			return m
		}),
		rapid.Custom(func(t *rapid.T) Message {
			m := Share{User: name.Draw(t, "user"), Direction: rapid.SampledFrom(bandwidth.Directions[:]).Draw(t, "direction")}
			for range rapid.IntRange(0, 4).Draw(t, "shares") {
				m.Shares = append(m.Shares, bandwidth.Share{Instance: name.Draw(t, "instance"), Bytes: rapid.Int64Min(0).Draw(t, "bytes")})
			}
			return m
		}),
		rapid.Custom(func(t *rapid.T) Message { return Limits{Version: anyBytes.Draw(t, "version")} }),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(message, 1, 10).Draw(t, "messages")
		var b []byte
		for _, m := range want {
			b = Append(b, m)
		}
		got, err := Decode(b)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("Decode(%q) = %v (-want +got):\n%s", b, err, diff)
		}
	})
}

var anyBytes = rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })

func FuzzDecode(f *testing.F) {
	var all []byte
	for _, m := range everyKind {
		f.Add(Append(nil, m))
		all = Append(all, m)
	}
	f.Add(all)
	f.Add([]byte("1 slots \"a\" 5 \"b\" 6 7\n1 block \"a\" 5"))
	f.Add([]byte("1 share \"a\" down \"b\" 6 7\n1 share \"a\" left"))
	f.Add([]byte("1 throttle \"GET\" \"\\ud800\" 7 5\n\n1 limits 'x'"))
	f.Add([]byte("1 throttle \"GET/hour\" \"a\" 7 5\n1 hot \"/minute\" \"a\" 7 5\n1 hot \"a/b/minute\" \"a\" 7 5"))
	f.Fuzz(func(t *testing.T, batch []byte) {
		messages, err := Decode(batch)
		var b []byte
		for _, m := range messages {
			b = Append(b, m)
		}
		again, err2 := Decode(b)
		if len(b) <= MaxBatch && (err2 != nil || cmp.Diff(messages, again) != "") {
			t.Errorf("Decode(%q) = %#v, %v, but again %#v, %v", batch, messages, err, again, err2)
		}
	})
}
