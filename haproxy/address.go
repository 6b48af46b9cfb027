package haproxy

import (
	"fmt"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// addressAnswer is a backend that refuses for one reason, so that HAProxy's own metrics count these
// refusals apart. A limit of requests in progress has no window.
type addressAnswer struct {
	Backend, Reason string
	Limit           int
	Window          int64
}

// addressLimits fills in what the limits of each address need. Without limits there is not even a table: each
// tracked entry costs every request.
func (v *view) addressLimits() {
	a := v.Limits
	v.AddressesLimited, v.AddressTickets = a != (limits.AddressLimits{}), a.Requests+a.Concurrent > 0
	var store []string
	counters := 0
	v.AddressExpire = 10
	if a.FailedAuth > 0 {
		// A rate of HAProxy's own: it needs no rules that begin and end a window.
		window := a.FailedAuthWindow.Seconds()
		v.Answers = append(v.Answers, addressAnswer{"sluice_refused_failed_auth", "failed-authentication", a.FailedAuth, window})
		store = append(store, fmt.Sprintf("gpc_rate(1,%ds)", window))
		// HAProxy's rate looks back at the period before this one.
		counters, v.AddressExpire = 1, max(v.AddressExpire, 2*window)
	}
	if a.Concurrent > 0 {
		v.Answers = append(v.Answers, addressAnswer{"sluice_refused_address_concurrent", "address-concurrent-requests", a.Concurrent, 0})
		store = append(store, "conn_cur")
	}
	if a.Requests > 0 {
		v.Answers = append(v.Answers, addressAnswer{"sluice_refused_address_requests", "address-request-rate", a.Requests, 1})
		// One that failures may have, and one for each slot of tickets.
		counters = 5
		store = append(store, "gpt(6)")
	}
	if counters > 0 {
		store = append(store, fmt.Sprintf("gpc(%d)", counters))
	}
	v.AddressStore = strings.Join(store, ",")
}
