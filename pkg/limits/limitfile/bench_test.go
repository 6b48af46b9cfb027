package limitfile

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// BenchmarkParse reads files of 100 000 users and reports what a user costs:
// the time to read the entry, and the memory that it keeps (the source included).
func BenchmarkParse(b *testing.B) {
	const users = 100_000
	for name, value := range map[string]string{
		"tier":       "pro",
		"concurrent": "{tier: pro, concurrent: 250}",
		"requests":   `{tier: pro, requests: {GET: 7, "*": 9}}`,
	} {
		var file bytes.Buffer
		file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {requests: {GET: 100, \"*\": 200}}}\nusers:\n")
		for i := range users {
			fmt.Fprintf(&file, "  user-%07d: %s\n", i, value)
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

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
