package bandwidth

import "time"

// TableEntry is what HAProxy's table of shares is to say of a user: bytes per second
// by Direction, 0 where the user is not limited.
type TableEntry struct {
	User  string
	Share [2]int64
}

// Lend returns the shares, by Direction, that requests admitted by credit begin with: the
// same ones for every instance, whatever polygen divides meanwhile, for HAProxy keeps
// them for as long as the credit. Who has transfers in flight is held to what TableEntries say.
func (a *Agent) Lend(limit Limit) [2]int64 { return a.standard(limit) }

// Share takes polygen's division of a user's limit. An instance that is not named
// has no share any more.
func (a *Agent) Share(at time.Time, s Sharing) {
	u := a.known(s.User)
	if u == nil || s.Direction < Down || s.Direction > Up {
		return
	}
	now := at.UnixNano()
	// Who is not named wants nothing, as polygen knows, and begins with the default share again.
	u.share[s.Direction] = 0
	for _, share := range s.Shares {
		if share.Instance == a.config.Instance {
			u.share[s.Direction], u.shareAt[s.Direction] = share.Bytes, now
		}
	}
	a.updateTable(u, now)
	a.schedule(u, now)
}

// polygenShare is polygen's share of one direction; 0 if there is none.
func (u *user) polygenShare(d Direction, now int64) int64 {
	// Without a word for a minute polygen is gone, and an old division may be anybody's.
	if u.limit.Bytes[d] == 0 || passed(now, u.shareAt[d], ShareFor) {
		return 0
	}
	// The limit may have been lowered since.
	return min(u.share[d], u.limit.Bytes[d])
}

func (a *Agent) inForce(u *user, now int64) [2]int64 {
	share := a.standard(u.limit)
	if a.instances > 1 {
		for _, d := range Directions {
			if given := u.polygenShare(d, now); given > 0 {
				share[d] = given
			}
		}
	}
	return share
}

// standard is the share of an instance that polygen has given none: the limit, if
// there is only one.
func (a *Agent) standard(l Limit) (share [2]int64) {
	for _, d := range Directions {
		switch {
		case l.Bytes[d] == 0:
		// Nobody else moves anything, and nobody divides.
		case a.instances == 1:
			share[d] = l.Bytes[d]
		case l.Default[d] > 0:
			// The limit may be the user's own, and below the default share of their tier.
			share[d] = min(l.Default[d], l.Bytes[d])
		default:
			share[d] = max(1, l.Bytes[d]/int64(a.instances))
		}
	}
	return share
}

// updateTable writes the user's share into HAProxy's table if it is not there.
func (a *Agent) updateTable(u *user, now int64) {
	share := a.inForce(u, now)
	// Each entry is a message to HAProxy, which holds it for ShareFor.
	if share == u.taught && !passed(now, u.taughtAt, teachAgain) {
		return
	}
	u.taught, u.taughtAt = share, now
	for d := range u.meters {
		// From here on the meters judge by this share, though HAProxy may take a moment to follow.
		u.meters[d].enforce(now, share[d])
	}
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{User: u.name, Share: share})
}
