package concurrency

import "time"

const (
	second    = int64(time.Second)
	blockSpan = 2 * time.Second // a block holds for this long after its last repetition
	refuseAt  = 5               // refusals between two repetitions of a block make HAProxy refuse by itself
)

// TableEntry is an instruction for HAProxy's own table.
type TableEntry struct {
	User  string
	Until int64 // the epoch second until which HAProxy refuses the user by itself; 0: it does not
	Limit int   // over the cluster; 0: the user is not limited any more
	Cap   int   // requests in progress that HAProxy may have while nobody answers it; 0: any number
}

// refusal is whether HAProxy refuses a user by itself, as it does only while polygen blocks
// the user and requests are refused again and again. It is lowered as soon as there is room.
type refusal struct {
	until     int64 // HAProxy refuses until then unless the block is repeated; 0: it asks
	release   int   // requests in progress at which an agent that counts alone lowers it
	refusals  int   // since the block was last repeated; of requests that may wait in line none count
	patientTo int64 // until when requests are taken for such, because one was
	taughtAt  int64 // when HAProxy's table was last told
}

func (s *refusal) inForce() bool { return s.until != 0 }

// Block takes polygen's word that a user's requests in progress have reached the
// limit. HAProxy refuses the user by itself if requests are refused again and again;
// a few are better asked about, for each may find a slot that has just become
// free.
func (a *Agent) Block(at time.Time, name string, limit Limit) {
	u := a.known(name)
	if u == nil {
		return
	}
	now, s := a.coreTime(at), &u.refusal
	s.release = limit.Release
	// While it is in force nobody is asked about, so no refusal is counted: the repetition alone extends it.
	if s.inForce() || a.freeHere(u) <= 0 && s.refusals >= refuseAt {
		s.until = now + int64(blockSpan)
	}
	// Refusals are counted from one repetition to the next.
	s.refusals = 0
	// A user who is not refused is taught now and then: the entry has what HAProxy may
	// have in progress while nobody answers it.
	if s.inForce() || now-s.taughtAt >= int64(refreshSpan) {
		a.updateTable(u, now)
	}
	if !a.alone() {
		// Others need what is not in use.
		a.recall(u, now)
	}
	a.review(u, now)
}

// Unblock takes polygen's word that a user's requests in progress have fallen
// below the limit.
func (a *Agent) Unblock(at time.Time, name string) {
	u := a.known(name)
	if u == nil {
		return
	}
	now := a.coreTime(at)
	// It is over now, as review finds.
	u.refusal.until = min(u.refusal.until, now)
	// There are slots again, so the wait for a retry is over.
	u.lease.retryNow()
	a.review(u, now)
}

// Patient says that a user's requests may wait in line when they are refused: for a
// while HAProxy does not refuse them by itself unless the line is full.
func (a *Agent) Patient(at time.Time, name string) {
	if u := a.known(name); u != nil {
		u.refusal.patientTo = a.coreTime(at) + int64(refreshSpan)
	}
}

// reviewRefusal has requests asked about again when there is room, or when nobody says any more that
// there is none.
func (a *Agent) reviewRefusal(u *user, now int64) {
	if !u.refusal.inForce() {
		return
	}
	room := a.freeHere(u) > 0
	if a.countsAlone() && !u.quota.unlimited {
		// One slot is free after each request: without a margin HAProxy's table would
		// change with every one.
		room = u.upperBound() <= min(u.refusal.release, a.capacity(u)-1)
	}
	if room || now >= u.refusal.until {
		// There were requests, which HAProxy refused.
		u.waits.unmetAt = now
		a.endRefusal(u, now)
	}
}

func (a *Agent) endRefusal(u *user, now int64) {
	if u.refusal.inForce() {
		u.refusal.until = 0
		a.updateTable(u, now)
	}
}

func (a *Agent) updateTable(u *user, now int64) {
	u.refusal.taughtAt = now
	// The zero Until lets everybody through, which is also what a forgotten entry says.
	n := TableEntry{User: u.name}
	if u.refusal.inForce() {
		// HAProxy goes by its machine's clock, and not by the cluster's.
		n.Until = (u.refusal.until - a.setBack) / second
	}
	if !u.quota.unlimited {
		n.Limit, n.Cap = u.quota.limit, a.evenPart(u.quota)
	}
	a.out.TableEntries = append(a.out.TableEntries, n)
}
