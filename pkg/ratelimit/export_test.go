package ratelimit

import "fmt"

// Broken names an invariant of a bucket that does not hold, or is empty.
func (a *Agent) Broken() string {
	for _, u := range a.users {
		for _, b := range u.buckets {
			switch {
			case min(b.balance, b.next, b.back, b.debt, b.owed, b.waiting, b.admitted) < 0:
				return fmt.Sprintf("%v: a count is below 0: %+v %+v", b.key, b.lease, b.ledger)
			case b.owed > b.unleased:
				return fmt.Sprintf("%v: more is owed than was admitted without a token: %+v", b.key, b.ledger)
			}
		}
	}
	return ""
}
