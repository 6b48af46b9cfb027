package riverqos

import "time"

// SetPatience is before Run: how long a statement may take, and, twice as long, the server
// hear nothing.
func (f *Fairness) SetPatience(d time.Duration) { f.db.patience, f.silence = d, 2*d }

// SetCounting is before the first insert: how long one may wait for the gate.
func (f *Fairness) SetCounting(d time.Duration) { f.counting = d }

// SetAsking is before Run: how long the Tiers may take that do not answer.
func (f *Fairness) SetAsking(d time.Duration) { f.asking = d }
