package view

import "time"

// RequestRate is the requests per second of a wire key, as Summary has it. It is 0 for an
// unknown user.
func (v *View) RequestRate(at time.Time, key string) float64 {
	u := v.users.lookUp(key)
	if u == nil {
		return 0
	}
	return u.requestRate(at.UnixNano())
}

// HasReport reports whether there was a report of a wire key that is still remembered.
func (v *View) HasReport(key string) bool { return v.users.lookUp(key) != nil }
