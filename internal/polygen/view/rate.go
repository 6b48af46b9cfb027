package view

import "time"

// Rate is the requests per second of a wire key, as Summary has it. It is 0 for an
// unknown user.
func (v *View) Rate(at time.Time, key string) float64 {
	u := v.users.get(key)
	if u == nil {
		return 0
	}
	return u.rate(at.UnixNano())
}

// Heard reports whether there was a report of a wire key that is still remembered.
func (v *View) Heard(key string) bool { return v.users.get(key) != nil }
