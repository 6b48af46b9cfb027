package main

import (
	"sync"
	"time"
)

// tally is what the jobs themselves saw.
type tally struct {
	mu    sync.Mutex
	since time.Time // of the insert
	of    map[string]user
}

// user is what a user's jobs did.
type user struct {
	running, most int           // at a time
	first         time.Duration // from the insert until one began
}

func (t *tally) inserted(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.of = now, map[string]user{}
}

func (t *tally) jobBegan(name string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u, began := t.of[name]
	if !began {
		u.first = now.Sub(t.since)
	}
	u.running++
	u.most = max(u.most, u.running)
	t.of[name] = u
}

func (t *tally) jobEnded(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.of[name]
	u.running--
	t.of[name] = u
}

func (t *tally) userTally(name string) user {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[name]
}
