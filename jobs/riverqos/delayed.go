package riverqos

import "github.com/riverqueue/river/rivertype"

// countDelayed counts the jobs that an insert has put behind the gate. A job of a transaction that is rolled
// back later is counted, too, for nobody hears of that.
func (g *gate) countDelayed(flows []*newJobs, params []*rivertype.JobInsertParams, results []*rivertype.JobInsertResult) {
	tiers := map[*rivertype.JobInsertParams]string{}
	for _, inserted := range flows {
		for _, param := range inserted.held {
			tiers[param] = inserted.tier
		}
	}
	for i, param := range params {
		// Not one that was there already, or whose insert failed.
		tier, held := tiers[param]
		if _, inserted := insertedID(results, i); held && inserted {
			g.runner.CountDelayed(tier, param.Queue, 1)
		}
	}
}
