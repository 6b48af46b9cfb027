package peers

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLive(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	l := newLive(2)

	put := func(key, value string, until int, want bool) {
		t.Helper()
		if got := l.setEntry(0, key, []byte(value), at(until)); got != want {
			t.Errorf("put(%s, %s, %d) = %v, want %v", key, value, until, got, want)
		}
	}
	taken := func(want ...string) {
		t.Helper()
		var got []string
		for e := l.nextUnsent(); e != nil; e = l.nextUnsent() {
			got = append(got, e.key+"="+string(e.values))
		}
		if !slices.Equal(got, want) {
			t.Errorf("take() = %q, want %q", got, want)
		}
	}
	expired := func(now, late int) {
		t.Helper()
		got := 0
		if l.expire(at(now), func(int) { got++ }); got != late {
			t.Errorf("expire(%d) = %d late, want %d", now, got, late)
		}
	}

	put("a", "1", 10, true)
	put("b", "1", 5, true)
	put("a", "2", 10, true) // replaces the unsent value and goes to the end
	put("c", "1", 10, false)
	taken("b=1", "a=2")
	taken()
	put("b", "2", 6, true)
	taken("b=2")
	l.rewind()
	taken("a=2", "b=2")
	expired(5, 0)
	expired(6, 0) // it was sent
	put("c", "1", 7, true)
	expired(7, 1)
	taken()
	l.rewind()
	taken("a=2")
	put("a", "3", 8, true)
	expired(8, 1) // its last value was not sent
}

// Whatever happens, a session that takes all it can has been told all entries
// that have not ended, with their last values, and each of them once.
func TestLiveTellsEachSessionEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type fact struct {
			value string
			until time.Time
		}
		l := newLive(8)
		now := time.Unix(1000, 0)
		model, told := map[string]fact{}, map[string]fact{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				key := strconv.Itoa(rapid.IntRange(0, 12).Draw(t, "key"))
				f := fact{rapid.StringN(1, 1, 4).Draw(t, "value"), now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "ttl")))}
				_, known := model[key]
				if got, want := l.setEntry(0, key, []byte(f.value), f.until), known || len(model) < 8; got != want {
					t.Fatalf("put(%s) = %v with %d entries, want %v", key, got, len(model), want)
				} else if got {
					model[key] = f
					delete(told, key)
				}
			},
			"pass time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "time")))
				l.expire(now, func(int) {})
				for key, f := range model {
					if !f.until.After(now) {
						delete(model, key)
						delete(told, key)
					}
				}
			},
			"take one": func(t *rapid.T) {
				e := l.nextUnsent()
				if e == nil {
					return
				}
				f := fact{string(e.values), e.until}
				if model[e.key] != f || told[e.key] == f {
					t.Fatalf("take() = %s %v, which is %v, and was told as %v", e.key, f, model[e.key], told[e.key])
				}
				told[e.key] = f
			},
			"begin a session": func(*rapid.T) {
				l.rewind()
				clear(told)
			},
			"": func(t *rapid.T) {
				if got, want := len(l.byKey), len(model); got != want || len(l.ends) != want || l.size[0] != want {
					t.Fatalf("%d entries, %d ends, %d of the table, want %d", got, len(l.ends), l.size[0], want)
				}
			},
		})
		for e := l.nextUnsent(); e != nil; e = l.nextUnsent() {
			told[e.key] = fact{string(e.values), e.until}
		}
		if len(told) != len(model) {
			t.Fatalf("told %v, want %v", told, model)
		}
		for key, want := range model {
			if told[key] != want {
				t.Fatalf("told %s is %v, want %v", key, told[key], want)
			}
		}
	})
}
