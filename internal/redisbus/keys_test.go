package redisbus_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// A keyRow is a row of the table of keys in docs/keys.md.
type keyRow struct {
	names []*regexp.Regexp // a key matches one of them
	kind  string
	ttl   time.Duration // the longest; 0: longer ones are possible
	found bool
}

// documented are the rows of docs/keys.md about the keys of this package, and the channels.
func documented(t *testing.T) (rows []*keyRow, channels []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/keys.md")
	testkit.Must(t, err)
	code, span := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`^(\d+) (s|min|h)\b`)
	placeholder := regexp.MustCompile(`<[^>]+>`)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "/"), "|")
		if !strings.HasPrefix(line, "| `sluice:") || strings.HasPrefix(line, "| `sluice:jobs:") {
			continue
		}
		names := code.FindAllStringSubmatch(cells[1], -1)
		if len(cells) < 8 { // the table of channels
			channels = append(channels, names[0][1])
			continue
		}
		row := &keyRow{kind: strings.TrimSpace(cells[2])}
		for _, name := range names {
			parts := placeholder.Split(strings.ReplaceAll(name[1], "<n>", "0"), -1) // with any number of a shard
			for i := range parts {
				parts[i] = strings.ReplaceAll(regexp.QuoteMeta(parts[i]), `\{0\}`, `\{\d+\}`)
			}
			row.names = append(row.names, regexp.MustCompile("^"+strings.Join(parts, "[^:{}]+")+"$"))
		}
		if m := span.FindStringSubmatch(strings.TrimSpace(cells[3])); m != nil {
			unit := map[string]string{"s": "s", "min": "m", "h": "h"}[m[2]]
			if row.ttl, err = time.ParseDuration(m[1] + unit); err != nil {
				t.Fatal(err)
			}
		}
		rows = append(rows, row)
	}
	return rows, channels
}

// Redis holds what docs/keys.md says, of the type and for the time it says, and nothing else.
func TestKeysAreThoseOfTheTable(t *testing.T) {
	_, addr := testkit.RedisWithUsers(t)
	s := newServer(t, addr)
	agent := s.open(t, redisbus.Options{Username: "sluice-agent", Password: "sluice-agent", Shards: 2})
	polygen := s.open(t, redisbus.Options{Username: "sluice-polygen", Password: "sluice-polygen", Shards: 2})
	ctx := context.Background()
	rows, _ := documented(t)
	round := func() {
		for what, do := range theirPart(ctx, agent, polygen) {
			if err := do(); err != nil {
				t.Fatalf("%s = %v", what, err)
			}
		}
		for _, key := range s.raw.Keys(ctx, "*").Val() {
			i := slices.IndexFunc(rows, func(r *keyRow) bool {
				return slices.ContainsFunc(r.names, func(n *regexp.Regexp) bool { return n.MatchString(key) })
			})
			if i < 0 {
				t.Fatalf("docs/keys.md has no row for the key %s", key)
			}
			kind, ttl := s.raw.Type(ctx, key).Val(), s.raw.PTTL(ctx, key).Val()
			if kind == "none" { // it expired meanwhile
				continue
			}
			rows[i].found = true
			if kind != rows[i].kind {
				t.Fatalf("%s is a %s, want a %s as docs/keys.md says", key, kind, rows[i].kind)
			}
			if ttl == -1 || rows[i].ttl > 0 && ttl > rows[i].ttl {
				t.Fatalf("%s lives for %v, want %v at most as docs/keys.md says", key, ttl, rows[i].ttl)
			}
		}
	}
	// Keys that live for seconds may be gone when they are looked for on a machine that stands still.
	testkit.Eventually(t, "a key of each row", func() error {
		round()
		for _, row := range rows {
			if !row.found {
				return fmt.Errorf("no key is of the row %v", row.names)
			}
		}
		return nil
	})
}

// docs/keys.md has the channels that there are, and no others.
func TestChannelsAreThoseOfTheTable(t *testing.T) {
	_, channels := documented(t)
	code, err := os.ReadFile("keys.go")
	testkit.Must(t, err)
	var all []string
	for _, m := range regexp.MustCompile(`Channel += "([^"]+)"`).FindAllStringSubmatch(string(code), -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	slices.Sort(channels)
	if !slices.Equal(channels, all) {
		t.Errorf("docs/keys.md has the channels %q, want %q", channels, all)
	}
}
