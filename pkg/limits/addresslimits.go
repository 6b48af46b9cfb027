package limits

import "strconv"

// AddressLimits bound what comes from one address of clients, whatever users the
// requests name. Each HAProxy enforces them by itself, from its configuration: they hold
// at each HAProxy, not over the cluster. The zero AddressLimits limit nothing.
type AddressLimits struct {
	Requests   int // in each second; 0 means unlimited
	Concurrent int // requests in progress; 0 means unlimited

	// FailedAuth is how many answers 401 or 403 of the origin an address may cause in
	// a FailedAuthWindow before it is refused; 0 means unlimited.
	FailedAuth       int
	FailedAuthWindow Window
}

// FailedAuthString is the limit of failed authentication as the limit file has it,
// such as "30/min", or "" without one.
func (a AddressLimits) FailedAuthString() string {
	if a.FailedAuth == 0 {
		return ""
	}
	return strconv.Itoa(a.FailedAuth) + "/" + a.FailedAuthWindow.Unit()
}

// AddressLimits returns the limits of each address that HAProxy has to enforce: none
// unless the mode of the file is Enforce, for HAProxy cannot try a limit without
// refusing anybody.
func (s *Set) AddressLimits() AddressLimits {
	// Nothing tells HAProxy to count and not to refuse, so that a dry run of them is none of them.
	if s.content.Mode != Enforce {
		return AddressLimits{}
	}
	return s.content.AddressLimits
}
