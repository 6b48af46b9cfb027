package ratelimit

import "time"

// early is how long before Redis' own second ends an Account goes on to the next,
// for agents whose clocks are a little ahead. It costs nobody anything: what is
// asked for the second before is still granted.
const early = 10 * time.Millisecond

// An Account is the pool of one bursting key: what is left unused of a second's
// limit is saved, up to the burst, for the seconds after it. With L the limit, b
// the burst, and t(s) what is handed out in second s, the credit of the next is
//
//	c(s+1) = min(b, c(s) + L - t(s)), never below 0
//
// and no token is granted that would make t(s) more than L + c(s), in s or in any
// second after it. So any n seconds together get n*L + b at most, and debts.
//
// The zero Account is of a user who was not seen for long: they have saved all of b.
// Whoever keeps Accounts may forget one whose credit is b again.
type Account struct {
	Second int64 // the current one
	Credit int   // of the second before it
	Before int   // handed out in the second before it
	Total  int   // handed out in the current second
	Next   int   // handed out in the second after it
}

// Take is the pool's arithmetic for a bursting key at a time of the pool's clock.
// It returns the new Account and the grant. Asks for the second before the current
// one get what the seconds since have left of it, and those for the next only what
// needs no credit. Of other seconds nothing is granted, and tokens that come back
// are lost; their debts lower the credit. internal/redisbus runs the same arithmetic as
// a script inside Redis.
func (c Account) Take(at time.Time, a Ask) (Account, Grant) {
	// The pool's clock decides which second it is; the Ask's says which second it wants.
	c.advanceTo(at.Add(early).Unix(), a)
	var total *int
	var room int // what the total may come to
	switch a.WindowStart {
	case c.Second - 1:
		// What the current second took beyond its limit came from the credit that this one left.
		total, room = &c.Before, c.Credit+a.Limit-max(0, c.Total-a.Limit)
	case c.Second:
		total, room = &c.Total, c.credit(a)+a.Limit
	case c.Second + 1:
		// Its credit is not known before the current second is over.
		total, room = &c.Next, a.Limit
	default:
		// Those requests ran, whenever that was: they are paid for by what was saved.
		c.Credit = max(0, c.Credit-a.Debt)
		return c, Grant{}
	}
	*total = max(0, *total+a.Debt-a.Back)
	granted := a.grantFrom(max(0, room-*total))
	*total += granted
	return c, Grant{Tokens: granted, Total: *total, Limit: max(0, room)}
}

func (c *Account) credit(a Ask) int {
	return max(0, min(a.Burst, c.Credit+a.Limit-c.Before))
}

// advanceTo goes on to a second. A clock that was set back by more than a moment begins
// anew, with nothing saved.
func (c *Account) advanceTo(now int64, a Ask) {
	if now < c.Second-2 {
		// Before is the limit, as if all of it was used: so the first second has no credit, and a clock
		// that jumps back and forth gives nothing away.
		*c = Account{Second: now, Before: a.Limit}
	}
	gap := max(0, now-c.Second)
	c.Second += gap
	// After three steps Before, Total and Next are 0, and each further second only adds the limit.
	for range min(gap, 3) {
		c.Credit = c.credit(a)
		c.Before, c.Total, c.Next = c.Total, c.Next, 0
	}
	// Nothing was handed out in the seconds between.
	if idle := gap - 3; idle > 0 {
		if a.Limit > 0 && idle <= int64((a.Burst-c.Credit)/a.Limit) {
			// Compared before it is multiplied: idle may be so long that the product overflows.
			c.Credit += int(idle) * a.Limit
		} else {
			c.Credit = a.Burst
		}
	}
}
