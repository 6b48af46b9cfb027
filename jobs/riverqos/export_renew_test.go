package riverqos

import "context"

// RenewAll is what a worker does three times in a lease.
func (f *Fairness) RenewAll(ctx context.Context) bool { return f.runner.RenewLeases(ctx) }
