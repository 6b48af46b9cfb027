package agent

import (
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// creditTable is haproxy.cfg's. It has the row creditRow: the generation of the credit that
// HAProxy renews, and what each user may have here whom nobody could be asked about, in
// requests a second and in requests in progress. Each class of which the default tier has a limit
// of 0 is a row of the generation in which that is so.
var creditTable = peers.Table{
	Name: "/credit", KeyLen: 40, Expire: time.Hour,
	Data: []peers.DataType{peers.GPT0, peers.GPC0, peers.GPC1},
}

// creditRow is the key of the row.
const creditRow = "~"

// nextGeneration begins another generation of credit: what was given before is not renewed
// when the present second is over; l.mu is held.
func (a *Agent) nextGeneration() {
	c := &a.limiter.credits
	// The highest bit is HAProxy's, and 0 is no generation.
	if c.generation++; c.generation >= 1<<31 {
		c.generation = 1
	}
	a.teachCredit()
}

// teachCredit tells HAProxy the generation, and what to do for users of whom nobody could
// be asked: they have the limits of the default tier, of which each instance keeps its
// even part; l.mu is held.
func (a *Agent) teachCredit() {
	c, instances := &a.limiter.credits, int(a.limiter.inForce.instances.Load())
	c.rowAt = a.clock.Now()
	values := peers.Values{peers.GPT0: uint64(c.generation)}
	// Before any limits are known there is nothing to hold anybody to.
	if set := a.limiter.inForce.set.Load(); set != nil {
		if of, ok := set.TierLimits(set.DefaultTier()); ok {
			requests, places := credit.Unasked(of, instances)
			values[peers.GPC0], values[peers.GPC1] = uint64(requests), uint64(places)
			for r := range of.Rates() {
				if r.Max > 0 || r.Mode != limits.Enforce {
					continue
				}
				classes := []string{r.Class}
				if r.Class == limits.All {
					classes = limits.BuiltinClasses() // each request has one of them
				}
				for _, class := range classes {
					a.teach(creditTable.Name, class, peers.Values{peers.GPT0: uint64(c.generation)}, creditTable.Expire)
				}
			}
		}
	}
	a.teach(creditTable.Name, creditRow, values, creditTable.Expire)
}
