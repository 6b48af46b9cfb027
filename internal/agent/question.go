package agent

import (
	"strconv"

	"github.com/sluice-qos/sluice/internal/agent/costfeed"
	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// lineMessage is spoe.cfg's message about a request that was told to wait.
const lineMessage = "wait-message"

// A request whose body says what it costs is asked about before the body is there, without the cost, and behind that.
const (
	costBehind = 1
	costOnly   = 2
)

type question struct {
	user     string            // their key
	verb, op string            // the method's class, and the operation class, "" if there is none
	seen     concurrency.Count // what HAProxy's table says of the user
	inLine   bool              // it has been told to wait for a slot
	log      bool              // the access log wants to know what is left
	later    int64             // costBehind or costOnly; 0: all is asked at once
	asked    costfeed.Question // what HAProxy calls this one; without a user: the request can cost nothing

	credit haproxyCredit
	costs  askedCosts
}

// haproxyCredit is what HAProxy has of the user's credit at that instant. The zero one is
// none, and no wish for any: so it is for a question that counts for another key than
// HAProxy's.
type haproxyCredit struct {
	classes string             // that HAProxy's configuration can keep limits of by itself; "" if it has no credit
	spent   bool               // HAProxy's own credit of this second did not suffice
	drawn   bool               // it did, and only a place is missing: the request has its tokens
	lapsed  uint32             // it has credit of another generation than this one, and has not opened its second; 0: not so
	second  int64              // HAProxy's, if it says so
	shares  bool               // its configuration keeps shares of bandwidth with credit
	places  concurrency.Places // what it may have in progress by itself
}

func readQuestion(r *spop.Request) question {
	q := question{inLine: r.Message() == lineMessage}
	q.user, _ = r.Arg("user")
	q.verb, _ = r.Arg("class")
	q.op, _ = r.Arg("op")
	_, q.log = r.Arg("log")
	q.later = numberArg(r, "later", 2)
	// What is not charged has nothing to come back.
	if _, named := r.Arg("id"); named && q.later != costBehind {
		q.asked = costfeed.Question{ID: numberArg(r, "id", 33), User: q.user}
	}
	q.seen = concurrency.Count{Tracked: numberArg(r, "tracked", 32), Active: numberArg(r, "active", 32), Process: numberArg(r, "process", 63)}
	q.costs = readCosts(r)
	c := &q.credit
	c.classes, _ = r.Arg("classes")
	_, c.shares = r.Arg("shares")
	c.spent, c.drawn = numberArg(r, "spent", 1) == 1, numberArg(r, "drawn", 1) == 1
	c.lapsed, c.second = uint32(numberArg(r, "lapsed", 31)), numberArg(r, "second", 32)
	// Without this argument HAProxy admits nothing of the user by itself. That is not 0: one that has
	// places of which none is free admits again when a request ends.
	if places, lent := r.Arg("places"); lent {
		n, _ := strconv.Atoi(places)
		c.places = concurrency.Places{Lent: true, Here: int(numberArg(r, "here", 31)), Places: n}
	}
	return q
}

// numberArg reads a number of so many bits; none, and one that is not valid, is 0.
func numberArg(r *spop.Request, name string, bits int) int64 {
	text, _ := r.Arg(name)
	// HAProxy's numbers have so many bits: what does not fit is none of them.
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0
	}
	return int64(n)
}

// maxUser is the longest key that haproxy.cfg sends, in bytes.
const maxUser = limits.MaxOwnKey

// validUser reports whether the key is one that haproxy.cfg can have sent: not too
// long, no control bytes.
func validUser(name string) bool {
	if name == "" || len(name) > maxUser {
		return false
	}
	for i := range len(name) {
		// haproxy.cfg sends the digest of such a name, so this one is not from it.
		if c := name[i]; c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}
