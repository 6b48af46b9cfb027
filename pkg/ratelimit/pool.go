package ratelimit

// A Key names one counted thing: the requests of one user that belong to one
// class. The class is a verb such as "GET", or "*" for all requests together.
type Key struct {
	Class string
	User  string
}

// An Ask is what one agent wants of, and reports to, the pool of one key's
// cluster second. The zero value of every number is "none".
type Ask struct {
	Key       Key
	Second    int64 // the cluster second, in seconds since the epoch
	Limit     int   // requests that all agents together may admit in the second; > 0
	Debt      int   // requests admitted without a token; they are counted whatever the limit
	Back      int   // tokens given back unused
	Need      int   // tokens that waiting requests need
	Ahead     int   // tokens wanted ahead of need
	Instances int   // agents that share the user's requests, this one included; 0 means 1
}

// A Grant is the pool's answer to an Ask.
type Grant struct {
	Tokens int // requests that the agent may admit in the Ask's second
	Total  int // tokens and debts handed out for the second so far, these included
}

// Take is the pool's arithmetic for one key and second. It returns the grant;
// grant.Total is the pool's new total. internal/bus runs the same arithmetic as
// a script inside Redis, and a test holds the two against each other.
//
// Needs are served while anything is left. What is wanted ahead of need gets at
// most half of an agent's even part of the rest, so that the last tokens of a
// second go to requests that exist rather than to those that may come. Debts
// may carry the total past the limit, for those requests have run; nothing is
// granted from there on.
func Take(total int, a Ask) Grant {
	total = max(0, total+a.Debt-a.Back)
	free := max(0, a.Limit-total)
	granted := min(a.Need, free)
	granted += min(a.Ahead, (free-granted)/(2*max(1, a.Instances)))
	return Grant{Tokens: granted, Total: total + granted}
}
