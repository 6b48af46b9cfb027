package concurrency

// An Ask is what one instance tells the pool of one user, and what it wants of
// it. Every number is absolute, so that an Ask which is lost, repeated or late
// does no lasting harm: a later one sets everything right.
type Ask struct {
	User    string
	Seq     uint64 // grows with every Ask of the instance for the user; > 0
	Want    int    // slots that the instance wants to hold altogether
	Active  int    // requests in progress there, held slots or not; they have run and count whatever the limit
	Refused int    // requests refused there since its last Ask
	Limit   int    // slots that all instances together may hold; > 0
	Portion int    // slots that each live instance holds which has no Holding, in case its HAProxy has credit
}

// A Grant is the pool's answer to an Ask.
type Grant struct {
	Held int // slots that the instance holds now
	Free int // slots that nobody holds; below 0: so many more are held than there are
}

// A Holding is what the pool keeps of one instance and user. The zero Holding
// is that of an instance that never asked.
type Holding struct {
	Held   int
	Active int
	Seq    uint64
}

// Take is the pool's arithmetic for one user, whose pool is a Holding for each
// instance that has asked. It stores the instance's new Holding and returns the grant.
// internal/redisbus runs the same arithmetic as a script inside Redis, and a test
// holds the two against each other.
//
// An Ask that is not newer than the last one changes nothing and is told what
// is. Slots are given back at once; more are granted as far as the limit allows.
// What runs is held, even above the limit: an instance that comes back after
// the pool has forgotten it registers what it has.
//
// So many instances are live, the asking one included, and all that have a Holding are
// among them. A live instance without a Holding counts as one that holds the Portion, for its
// HAProxy may have lent places that nobody asked the pool for. Of itself an instance
// says in its Ask what it has lent: without a Holding it begins with none, so that one
// that has just joined is not granted what the others already hold.
func Take(pool map[string]Holding, instances int, instance string, a Ask) Grant {
	others, unheard := 0, instances-1
	for name, h := range pool {
		if name != instance {
			others += h.Held
			unheard--
		}
	}
	others += a.Portion * max(0, unheard)
	// What has been handed out is never taken back here: an instance gives up slots by its own Ask.
	h := pool[instance]
	// An ask that is late must not undo a later one that was here first.
	if a.Seq > h.Seq {
		held := h.Held + max(0, min(a.Want-h.Held, a.Limit-others-h.Held))
		h = Holding{Held: max(min(held, a.Want), a.Active), Active: a.Active, Seq: a.Seq}
		pool[instance] = h
	}
	return Grant{Held: h.Held, Free: a.Limit - others - h.Held}
}
