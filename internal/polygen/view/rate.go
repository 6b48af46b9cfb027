package view

import "time"

// Rate is the requests per second of a wire key, as Summary has it. It is 0 for a user
// who was never heard of.
func (v *View) Rate(at time.Time, key string) float64 {
	u := v.users.get(key)
	if u == nil {
		return 0
	}
	return u.rate(at.UnixNano())
}

// Heard reports whether a wire key is known of.
func (v *View) Heard(key string) bool { return v.users.get(key) != nil }
