package riverqos

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// knowFor is for how long the room that a count has found counts: for as long as a sweep may
	// take to close the gate behind what other processes insert meanwhile.
	knowFor = time.Second
	// holdFor is for how long a flow is taken to hold jobs back that this process has seen do so,
	// though they could not be read: the transaction of an insert may be open for as long.
	holdFor = 5 * time.Second
	// maxKnown bounds the flows whose room is remembered, and those that are known to hold jobs back.
	// With more of the latter every insert counts.
	maxKnown = 50_000
	// heldRest is how many times as long as the reading of the flows that hold jobs back has taken
	// nobody reads them again; and never sooner than after knowFor.
	heldRest = 20
)

// knownFlows are what a process knows of flows, so that not every insert has to ask the database.
// A flow that holds no job back, as all of them were looked through a moment ago, may have
// one job more without a count, and what a count has found is room for as many as it found.
// Several processes may each know of the same room: what they let through together is more
// than there is room for, and is refused a slot, parked, and put behind the gate by the sweep.
type knownFlows struct {
	mu      sync.Mutex
	rooms   map[flow]knownRoom
	held    map[flow]time.Time // hold jobs back; since when this process knows it of its own
	expires time.Time          // until when held has all flows that do
	next    time.Time          // when it may be read again
	reading bool
}

type knownRoom struct {
	jobs int
	at   time.Time
}

// take reports whether all new jobs may be let through without a count. If so, there is so
// much less room.
func (k *knownFlows) take(all []*newJobs, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.After(k.expires) {
		return false
	}
	left := make([]int, len(all))
	for i, inserted := range all {
		// Whoever waits there already comes first.
		if _, ok := k.held[inserted.flow]; ok {
			return false
		}
		room, ok := k.rooms[inserted.flow]
		if !ok || now.Sub(room.at) > knowFor {
			room.jobs = 1
		}
		if left[i] = room.jobs - len(inserted.params); left[i] < 0 {
			return false
		}
	}
	for i, inserted := range all {
		room, ok := k.rooms[inserted.flow]
		if !ok || now.Sub(room.at) > knowFor {
			room.at = now
		}
		// What is left is as old as the count.
		k.note(inserted.flow, knownRoom{left[i], room.at})
	}
	return true
}

// holds reports whether a flow is known to hold jobs back.
func (k *knownFlows) holds(key flow) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.held[key]
	return ok
}

// hold notes flows that hold jobs back.
func (k *knownFlows) hold(flows []flow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[flow]time.Time{}
	}
	for _, key := range flows {
		// Nobody who does not know waits longer than until the next look.
		if len(k.held) < maxKnown {
			k.held[key] = time.Now()
		}
	}
}

// noteCount notes the room that a count has left of a flow, and whether the flow holds jobs back.
func (k *knownFlows) noteCount(counted flow, left int, holds bool, now time.Time) {
	if holds {
		k.hold([]flow{counted})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(counted, knownRoom{left, now})
}

func (k *knownFlows) note(key flow, room knownRoom) {
	// All at once, and rarely. What is forgotten may have one job more.
	if k.rooms == nil || len(k.rooms) >= maxKnown {
		k.rooms = map[flow]knownRoom{}
	}
	k.rooms[key] = room
}

// readHeld reads the flows that hold jobs back, in the background, if it is time to.
func (k *knownFlows) readHeld(now time.Time, read func(context.Context, int) ([]flow, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reading || now.Before(k.next) {
		return
	}
	k.reading = true
	// Not by the loops of Run, which a program that only inserts does not call.
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
		defer cancel()
		began := time.Now()
		flows, err := read(ctx, maxKnown)
		took := time.Since(began)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.reading = false
		rest := max(knowFor, heldRest*took)
		k.next = began.Add(rest)
		// All inserts count then.
		if err != nil || len(flows) >= maxKnown {
			k.expires = time.Time{}
			return
		}
		// What is being inserted could not be read yet.
		if k.held == nil {
			k.held = map[flow]time.Time{}
		}
		maps.DeleteFunc(k.held, func(_ flow, since time.Time) bool { return began.Sub(since) > holdFor })
		for _, key := range flows {
			if _, ok := k.held[key]; !ok {
				k.held[key] = time.Time{}
			}
		}
		// Until the next reading, which an insert begins that comes after k.next.
		k.expires = began.Add(2 * rest)
	}()
}
