//go:build !race

package spoa

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

const (
	simStep    = time.Millisecond // in which an instance's requests arrive together
	simEndRing = 4096             // steps for which a request is in progress at most
	simClasses = "* GET"          // that HAProxy has tickets of
)

// simEdge is one instance: the real agent, and a model of its HAProxy.
type simEdge struct {
	*Agent
	fleet  *simFleet
	number int
	name   string

	received struct { // from polygen
		sync.Mutex
		policies []policy.Message
	}
	taught struct { // HAProxy's tables; under the limiter's lock as well
		sync.Mutex
		rows map[string]simRefusal
	}
	mu   sync.Mutex // orders what the agent is told
	rows map[string]*simRow
	ends [simEndRing][]simEnd
	step int
}

// simRefusal is what HAProxy's tables throttle, block and sluice_share say of a user.
type simRefusal struct {
	throttledGET, throttledAll, blocked int64 // until these seconds
	share                               int64 // down, in bytes per second; 0: none is known
}

// simRow is what HAProxy's tables active and sluice_credit have of a user.
type simRow struct {
	tracked, active int32
	moved           int64
	busy            int64 // until when the user's share is taken, ns
	credit          *simCredit
}

// simCredit is the credit of a user.
type simCredit struct {
	each      [2]uint32 // tickets of "*" and GET; 0: there is no credit
	drawn     [2]uint32 // in a second
	second    int64
	from      int64 // the first second in which it holds
	places    int
	inside    int    // requests in progress of the user since they have credit
	withdrawn uint32 // the agent's second of the last withdrawal
}

// simEnd is a request that ends.
type simEnd struct {
	user   int
	name   string
	asked  bool // it is in table active
	credit bool // it is in the table of credit
	bytes  int64
}

// teach is peers.Teach: HAProxy has the entry at once.
func (e *simEdge) teach(table, key string, values peers.Values, _ time.Duration) {
	t := &e.taught
	t.Lock()
	defer t.Unlock()
	class, user, throttle := strings.Cut(key, "|")
	if !throttle {
		user = key
	}
	row := t.rows[user]
	switch table {
	case throttleTable.Name:
		if class == "GET" {
			row.throttledGET = int64(values[peers.GPT0])
		} else {
			row.throttledAll = int64(values[peers.GPT0])
		}
	case blockTable.Name:
		row.blocked = int64(values[peers.GPT0])
	case shareTable.Name:
		row.share = int64(values[peers.GPT0]) * shareUnit
	default:
		return
	}
	t.rows[user] = row
}

// refuses reports whether HAProxy refuses a request by itself.
func (e *simEdge) refuses(user string, second int64) bool {
	e.taught.Lock()
	defer e.taught.Unlock()
	row := e.taught.rows[user]
	return second < row.throttledGET || second < row.throttledAll || second < row.blocked
}

// row is what HAProxy has of a user; e.mu is held.
func (e *simEdge) row(user string) *simRow {
	row := e.rows[user]
	if row == nil {
		row = &simRow{}
		e.rows[user] = row
	}
	return row
}

// spend takes tickets and a place of a user's credit, or says what HAProxy's question says of it; e.mu is held.
func (c *simCredit) spend(second int64) (admitted bool, q haproxyCredit) {
	q.classes = simClasses
	if c == nil || c.each[0] == 0 || second < c.from {
		return false, q
	}
	if c.second != second {
		c.second, c.drawn = second, [2]uint32{}
	}
	c.inside++
	q.drawn = true
	for i := range c.drawn {
		c.drawn[i]++
		q.drawn = q.drawn && c.drawn[i] <= c.each[i]
	}
	q.spent = !q.drawn
	q.places = concurrency.Places{Lent: true, Here: c.inside, Places: c.places}
	return q.drawn && c.inside <= c.places, q
}

// take takes the credit that an answer brings, unless it was withdrawn since; e.mu is held.
func (r *simRow) take(g *grant) {
	if r.credit == nil {
		r.credit = &simCredit{}
	}
	if c := r.credit; g.second > c.withdrawn {
		c.each, c.places, c.from = [2]uint32{g.Each[0], g.Each[1]}, int(g.Places), int64(g.second)+1
	}
}

// Variable plays the runtime API, as the following two.
func (e *simEdge) Variable(context.Context, string) (string, uint64, error) { return "", 1, nil }

// Withdraw withdraws credit.
func (e *simEdge) Withdraw(_ context.Context, second uint32, keys []string) (entries []runtimeapi.Entry, _ error) {
	now := time.Now().Unix()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range keys {
		row := e.row(key)
		if row.credit == nil {
			row.credit = &simCredit{}
		}
		c := row.credit
		entry := runtimeapi.Entry{Key: key, Found: true, ConnCur: c.inside, GPT: []uint32{0}}
		if c.each[0] > 0 && c.second == now {
			entry.GPT = []uint32{0, uint32(now + 1), 0, 0, 4, 1, c.each[0], c.each[0], c.each[1], c.each[1]}
			entry.GPC = []uint32{0, c.drawn[0], c.drawn[1]}
		}
		c.each, c.withdrawn = [2]uint32{}, second
		entries = append(entries, entry)
	}
	return entries, nil
}

// Read plays the runtime API.
func (e *simEdge) Read(_ context.Context, _ string, keys []string) (entries []runtimeapi.Entry, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range keys {
		entry := runtimeapi.Entry{Key: key, GPT: []uint32{0}}
		if row := e.rows[key]; row != nil && row.credit != nil {
			entry.Found, entry.ConnCur = true, row.credit.inside
			if row.credit.each[0] > 0 {
				entry.GPT[0] = 1
			}
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// request is one request of a user as it comes to HAProxy.
func (e *simEdge) request(user int, name string) {
	f := e.fleet
	second := time.Now().Unix()
	f.requests.Add(1)
	if e.refuses(name, second) {
		f.refusedByHAProxy.Add(1)
		return
	}
	e.mu.Lock()
	row := e.row(name)
	admitted, has := row.credit.spend(second)
	q := question{user: name, verb: "GET", credit: has, seen: concurrency.Count{Tracked: int64(row.tracked), Active: int64(row.active)}}
	if admitted {
		e.endAfter(simEnd{user: user, name: name, credit: true}, requestTakes)
	}
	e.mu.Unlock()
	if admitted {
		f.byCredit.Add(1)
		f.admit(user, second, second)
		e.starts.countStart(name, "GET", "")
		return
	}
	f.questions.Add(1)
	go e.ask(user, q)
}

// ask asks the agent.
func (e *simEdge) ask(user int, q question) {
	asked := time.Now().Unix()
	v := e.verdict(q)
	e.mu.Lock()
	defer e.mu.Unlock()
	name := q.user
	row := e.row(name)
	if !v.allowed {
		e.fleet.refusedByAgents.Add(1)
		if q.credit.places.Lent {
			row.credit.inside--
		}
		return
	}
	// A token is of the second in which it was asked for, or of the one in which the answer came.
	e.fleet.admit(user, asked, time.Now().Unix())
	if v.credit != nil {
		row.take(v.credit)
	}
	// HAProxy counts them there from the next request on: nobody compares the two.
	end := simEnd{user: user, name: name, asked: true, credit: q.credit.places.Lent, bytes: requestBytes}
	row.tracked++
	row.active++
	e.tell(name, row)
	e.endAfter(end, e.takes(row, name, v.share[bandwidth.Down]))
}

// takes is how long an answer takes: longer if the user's share here is taken; e.mu is held.
func (e *simEdge) takes(row *simRow, name string, share int64) time.Duration {
	e.taught.Lock()
	if taught := e.taught.rows[name].share; taught > 0 && share > 0 {
		share = taught
	}
	e.taught.Unlock()
	if share <= 0 {
		return requestTakes
	}
	now := time.Now().UnixNano()
	row.busy = max(row.busy, now) + requestBytes*int64(time.Second)/share
	return max(requestTakes, time.Duration(row.busy-now))
}

// tell tells the agent what table active has; e.mu is held.
func (e *simEdge) tell(name string, row *simRow) {
	e.learnProgress(peers.Update{Table: activeTable, Key: name, Values: peers.Values{
		peers.HTTPReqCnt: uint64(row.tracked), peers.ConnCur: uint64(row.active), peers.BytesOutCnt: uint64(row.moved),
	}})
}

// endAfter has a request end; e.mu is held.
func (e *simEdge) endAfter(end simEnd, d time.Duration) {
	at := (e.step + min(int(d/simStep), simEndRing-1)) % simEndRing
	e.ends[at] = append(e.ends[at], end)
}
