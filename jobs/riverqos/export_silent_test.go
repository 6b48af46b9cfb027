package riverqos

import "time"

// SetAnswerTimeout is before Run: how long a statement may take, and, twice as long, the server
// hear nothing.
func (f *Fairness) SetAnswerTimeout(d time.Duration) {
	f.store.answerTimeout, f.sweeper.lockTimeout = d, 2*d
}

// SetCountTimeout is before the first insert: how long one may wait for the gate.
func (f *Fairness) SetCountTimeout(d time.Duration) { f.gate.countTimeout = d }

// SetTierTimeout is before Run: how long the Tiers may take that do not answer.
func (f *Fairness) SetTierTimeout(d time.Duration) { f.tiers.timeout = d }
