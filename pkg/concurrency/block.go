package concurrency

import "time"

const (
	// repeatEvery is how often a block is repeated.
	repeatEvery = 200 * time.Millisecond
	// blockGap is the least time between two blocks of a user, so that the user's state does
	// not change more than twice in it. The exception is a flood: as many refused requests
	// since the user was let in as flood and twice the limit together.
	blockGap = 1100 * time.Millisecond
	flood    = 100
)

// A Block says that a user's requests in progress have reached the limit.
type Block struct {
	User string
	Limit
}

// decide blocks or unblocks the user if that is due.
func (w *Watch) decide(u *watched, now int64) {
	blocked := u.limit.blocks(u.blocked, u.active())
	// A block costs HAProxy a table entry on each instance; a user at the limit would flip with each request.
	flips := now-u.blockedAt < int64(blockGap) && u.refused < flood+2*u.limit.Max
	if blocked == u.blocked || blocked && flips {
		// Agents keep the limit without a block.
		return
	}
	u.blocked = blocked
	if blocked {
		u.blockedAt = now
		w.queueBlock(u, now)
		return
	}
	u.refused = 0
	// The last word is what is said: an unblock takes the place of a block.
	delete(w.blocks, u.name)
	w.unblocks[u.name] = struct{}{}
}

func (w *Watch) queueBlock(u *watched, now int64) {
	u.saidAt = now
	// An unblock by hand reaches everybody, whatever is decided after it.
	if _, byHand := w.byHand[u.name]; !byHand {
		delete(w.unblocks, u.name)
	}
	w.blocks[u.name] = u.limit
}

// Unblock lets a user in by hand. The block, and all reports about the user, are forgotten,
// and the reports that follow decide anew. All instances are told, whether the user is known
// to be blocked or not, and before a new block.
func (w *Watch) Unblock(at time.Time, user string) {
	w.coreTime(at)
	if u := w.users[user]; u != nil {
		for instance := range u.Reports {
			w.dropReport(u, instance)
		}
		delete(w.users, user)
	}
	delete(w.blocks, user)
	// Also of a user who is not known: the polygen that led before may have blocked them.
	w.unblocks[user], w.byHand[user] = struct{}{}, struct{}{}
}
