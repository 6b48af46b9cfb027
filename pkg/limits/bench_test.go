package limits_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func BenchmarkAppendRates(b *testing.B) {
	set := mustParse(b, "version: 1\ndefault_tier: a\ntiers: {a: {requests: {GET: 1, PUT: 3, '*': 9}}}")
	room := make([]limits.Rate, 0, limits.MaxRates)
	for b.Loop() {
		set.User("alice").AppendRates(room, "PUT", "")
	}
}

// BenchmarkUser looks users up among a million: the same thousand again and again,
// as busy users are, and all, each of whom is somewhere else in memory.
func BenchmarkUser(b *testing.B) {
	set, err := limitfile.Parse("f", millionUsers(1_000_000))
	if err != nil {
		b.Fatal(err)
	}
	for _, of := range []int{1000, 1_000_000} {
		keys := make([]string, of)
		for i := range keys {
			keys[i] = fmt.Sprintf("user-%07d", uint32(i)*2654435761%1_000_000)
		}
		b.Run(fmt.Sprint("named/", of), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				set.User(keys[i%of])
			}
		})
		for i := range keys {
			keys[i] = "other" + keys[i]
		}
		b.Run(fmt.Sprint("unnamed/", of), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				set.User(keys[i%of])
			}
		})
	}
}

// millionUsers is a file of so many users, each of whom costs 22 bytes of it.
func millionUsers(n int) []byte {
	var file bytes.Buffer
	file.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 10}, pro: {requests: {GET: 100, \"*\": 200}}}\nusers:\n")
	for i := range n {
		fmt.Fprintf(&file, "  user-%07d: pro\n", i)
	}
	return file.Bytes()
}
