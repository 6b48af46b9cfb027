package ratelimit

import "github.com/sluice-qos/sluice/pkg/limits"

// A Key names one counted thing: the requests of one user that belong to one
// class, in windows of one length. The class is a verb such as "GET", an operation
// class such as "LIST", or "*" for all requests together.
type Key struct {
	Class  string
	User   string
	Window limits.Window // the zero Window is a second
}

// An Ask is what one agent wants of, and reports to, the pool of one key's
// window. The zero value of every number is "none".
type Ask struct {
	Key         Key
	Seq         uint64 // of the batch it was collected in, which grows; see Repeated. 0: of none
	WindowStart int64  // at which the window begins, in seconds since the epoch
	Limit       int    // requests that all agents together may admit in the window; > 0
	Burst       int    // requests beyond it that a user may save up (limits.Rate.Burst); then the pool is an Account
	Debt        int    // requests admitted without a token; they are counted whatever the limit
	Back        int    // tokens given back unused
	Need        int    // tokens that waiting requests need
	Ahead       int    // tokens wanted ahead of need
	Reserve     int    // tokens that a pool begins with as handed out; see credit.Portion. 0 with a Burst
	Untold      bool   // nobody has said here that the window is spent: should it be, polygen is to hear of the agent
	Instances   int    // agents that share the user's requests, this one included; 0 means 1
}

// Repeated is what the pool makes of an Ask of a batch that it has heard before, from the
// same agent: nothing is counted twice, and the Total is told. A batch that got no
// answer is sent again under its number, and may run in any order with what was sent
// before; so whatever was lost on the way, its reports count once.
func (a Ask) Repeated() Ask {
	return Ask{Key: a.Key, WindowStart: a.WindowStart, Limit: a.Limit, Burst: a.Burst, Reserve: a.Reserve, Instances: a.Instances}
}

// A Grant is the pool's answer to an Ask.
type Grant struct {
	Tokens int // requests that the agent may admit in the Ask's window
	Total  int // tokens and debts handed out for the window so far, these included
	Limit  int // of an Account: what Total may come to in the Ask's second, Limit and credit; else 0
}

// Take is the pool's arithmetic for one key and window, if the Ask has no Burst. The
// total is what it was after the last Ask; a pool that was not asked before begins at the
// Ask's Reserve. Take returns the grant; grant.Total is the pool's new total. internal/redisbus
// runs the same arithmetic as a script inside Redis, and a test holds the two against each
// other.
//
// Needs are served while anything is left. What is wanted ahead of need gets at
// most half of an agent's even part of the rest, so that the last tokens of a
// window go to requests that exist rather than to those that may come. Debts
// may carry the total past the limit, for those requests have run; nothing is
// granted from there on.
func Take(total int, a Ask) Grant {
	total = max(0, total+a.Debt-a.Back)
	granted := a.grantFrom(max(0, a.Limit-total))
	return Grant{Tokens: granted, Total: total + granted}
}

func (a Ask) grantFrom(free int) int {
	granted := min(a.Need, free)
	return granted + min(a.Ahead, (free-granted)/(2*max(1, a.Instances)))
}
