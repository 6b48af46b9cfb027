package limitfile

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// BenchmarkParse reads files of 100 000 users and reports what a user costs:
// the time to read the entry, and the memory that it keeps (the source included).
func BenchmarkParse(b *testing.B) {
	const users = 100_000
	for name, value := range map[string]string{
		"tier":       "pro",
		"concurrent": "{tier: pro, concurrent: 250}",
		"distinct":   `{tier: pro, concurrent: 1%07d}`,
		"requests":   `{tier: pro, requests: {GET: 7, "*": 9}}`,
	} {
		var file bytes.Buffer
		file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {requests: {GET: 100, \"*\": 200}}}\nusers:\n")
		for i := range users {
			text := value
			if strings.Contains(value, "%") {
				text = fmt.Sprintf(value, i)
			}
			fmt.Fprintf(&file, "  user-%07d: %s\n", i, text)
		}
		b.Run(name, func(b *testing.B) {
			var set *limits.Set
			before := heap()
			for b.Loop() {
				var err error
				if set, err = Parse("bench.yaml", file.Bytes()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/users, "ns/user")
			b.ReportMetric(float64(heap()-before)/users, "B/user")
			runtime.KeepAlive(set)
		})
	}
}

// BenchmarkUser looks up a user who is named, one whom a pattern matches, and one whom no pattern of 1000 matches.
func BenchmarkUser(b *testing.B) {
	var file bytes.Buffer
	file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {concurrent: 20}}\nusers:\n")
	for i := range 100_000 {
		fmt.Fprintf(&file, "  user-%07d: pro\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&file, "  \"team-%d-*\": pro\n", i)
	}
	set := mustParse(b, file.String())
	for name, key := range map[string]string{"named": "user-0050000", "pattern": "team-500-alice", "unknown": "somebody-else"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				set.User(key)
			}
		})
	}
}

// BenchmarkWithOverrides lays one override and the most that may be over a file of many users.
func BenchmarkWithOverrides(b *testing.B) {
	var file bytes.Buffer
	file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {concurrent: 20}}\nusers:\n")
	for i := range 100_000 {
		fmt.Fprintf(&file, "  user-%07d: pro\n", i)
	}
	set := mustParse(b, file.String())
	for _, n := range []int{1, MaxOverrides} {
		var all []limits.Override
		for i := range n {
			all = append(all, newOverride(fmt.Sprintf("user-%07d", i), `{"concurrent":5}`, time.Hour))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, refused := WithOverrides(set, all); len(refused) > 0 {
					b.Fatal(refused)
				}
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
