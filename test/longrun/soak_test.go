package main

import "testing"

// Users come and go: each is away for as long as they are there, and all were there after ten turns.
func TestUsersComeAndGo(t *testing.T) {
	seen := map[string]bool{}
	for turn := range turns {
		present := map[string]bool{}
		for i := range 50_000 {
			present[userAt(turn, uint64(i)*0x9e3779b97f4a7c15)] = true
		}
		if len(present) != presentUsers {
			t.Fatalf("turn %d: %d users, want %d", turn, len(present), presentUsers)
		}
		for u := range present {
			seen[u] = true
		}
	}
	if len(seen) != allUsers {
		t.Errorf("%d users, want %d", len(seen), allUsers)
	}
}
