package haproxy

import (
	"fmt"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// addressRules are what the limits of each address add to haproxy.cfg. All are empty
// without limits, so that nobody pays for what nobody uses.
type addressRules struct {
	Requests string          // before the agent is asked
	Refusals string          // which backend answers
	Table    string          // of the entries of addresses
	Answers  []addressAnswer // the backends that refuse
}

// The backends that answer for an address, so that HAProxy's own metrics count their
// refusals apart, and the reasons for which they do.
var addressRefusals = []struct{ backend, reason string }{
	{"sluice_refused_failed_auth", "failed-authentication"},
	{"sluice_refused_address_requests", "address-request-rate"},
	{"sluice_refused_address_concurrent", "address-concurrent-requests"},
}

// The elements of an entry of table sluice_address. Counter 0 counts failures, the
// others are the slots of requestRules.
const addressTable = `
# One entry for each address of clients, IPv6 by its /64. In gpc: answers 401 and 403,
# and four slots of tickets; in gpt: the lease, where each slot began, and the last
# second in which the address had used up its requests.
backend sluice_address
    stick-table type ipv6 size 200k expire %ds store %s
`

const countedACL = `    acl address_refused var(txn.sluice.reason) -m found
`

const trackRule = `    http-request track-sc2 var(txn.sluice_address) table sluice_address if !exempt !address_refused
`

// A request that the first rule refuses is not tracked: only those that begin at the
// same instant as the last one with room can be in each other's way.
const concurrentRules = `    # per_address: at most %[1]d requests of the address are in progress.
    http-request set-var(txn.sluice.reason) str(address-concurrent-requests) if !exempt !address_refused { var(txn.sluice_address),table_conn_cur(sluice_address) ge %[1]d }
` + trackRule + `    http-request set-var(txn.sluice.reason) str(address-concurrent-requests) if !exempt !address_refused { sc_conn_cur(2) gt %[1]d }
`

// spentRule refuses without a ticket, and without an entry in the count of what is in
// progress.
const spentRule = `    # per_address: at most %[1]d requests of the address in each second. It is known here
    # that this one's are used up.
    http-request set-var(txn.sluice_second) date(-1700000000) if !exempt !address_refused
    http-request set-var(txn.sluice.reason) str(address-request-rate) if !exempt !address_refused { var(txn.sluice_address),table_gpt(5,sluice_address),sub(txn.sluice_second) eq 0 }
`

// Several threads may each believe to be the first of a second, or of two seconds where
// a thread's clock is behind. So nothing that they write depends on who is first. A
// slot's counter only grows and is never cleared. Where a slot begins was written a lease
// earlier, when nobody drew from it, nor from the slot before it, in which a late thread
// may still be. All who begin a lease write the same one, and never
// one that is older than what stands there; then each reads which one it is, and draws
// from that.
//
// HAProxy looks at the lease and writes it under two locks. Should a thread whose clock
// is behind be between them at the very moment in which another one begins the next
// second, of an address that had no request since the second before, that second has its
// requests twice.
const ticketRules = `    # Each request draws a ticket; the counter is atomic, so that no two threads draw the
    # same one. A lease is a second and one of four slots: the first request of a second
    # goes on to the next slot, and notes where the one after that begins while nobody
    # draws from it.
    http-request set-var(txn.sluice_lease) sc_get_gpt(0,2) if !exempt !address_refused
    http-request set-var(txn.sluice_slot) var(txn.sluice_lease),mod(4) if !exempt !address_refused
    http-request set-var(txn.sluice_renew) int(1) if !exempt !address_refused { var(txn.sluice_lease),div(4),sub(txn.sluice_second) lt 0 }
    acl address_renew var(txn.sluice_renew) -m found
    acl address_slot0 var(txn.sluice_slot) -m int 0
    acl address_slot1 var(txn.sluice_slot) -m int 1
    acl address_slot2 var(txn.sluice_slot) -m int 2
    acl address_slot3 var(txn.sluice_slot) -m int 3
    http-request set-var(txn.sluice_slot) var(txn.sluice_slot),add(1),mod(4) if address_renew
    http-request set-var(txn.sluice_renewed) var(txn.sluice_second),mul(4),add(txn.sluice_slot) if address_renew
    http-request sc-set-gpt(0,2) var(txn.sluice_renewed) if address_renew { sc_get_gpt(0,2),div(4),sub(txn.sluice_second) lt 0 }
    http-request set-var(txn.sluice_lease) sc_get_gpt(0,2) if address_renew
    http-request set-var(txn.sluice_slot) var(txn.sluice_lease),mod(4) if address_renew
    acl address_began var(txn.sluice_lease),sub(txn.sluice_renewed) eq 0
    http-request sc-set-gpt(3,2) sc_get_gpc(3,2) if address_renew address_began address_slot0
    http-request sc-set-gpt(4,2) sc_get_gpc(4,2) if address_renew address_began address_slot1
    http-request sc-set-gpt(1,2) sc_get_gpc(1,2) if address_renew address_began address_slot2
    http-request sc-set-gpt(2,2) sc_get_gpc(2,2) if address_renew address_began address_slot3
    http-request set-var(txn.sluice_began) sc_get_gpt(1,2) if address_slot0
    http-request set-var(txn.sluice_began) sc_get_gpt(2,2) if address_slot1
    http-request set-var(txn.sluice_began) sc_get_gpt(3,2) if address_slot2
    http-request set-var(txn.sluice_began) sc_get_gpt(4,2) if address_slot3
    http-request set-var(txn.sluice_ticket) sc_inc_gpc(1,2),sub(txn.sluice_began),and(4294967295) if address_slot0
    http-request set-var(txn.sluice_ticket) sc_inc_gpc(2,2),sub(txn.sluice_began),and(4294967295) if address_slot1
    http-request set-var(txn.sluice_ticket) sc_inc_gpc(3,2),sub(txn.sluice_began),and(4294967295) if address_slot2
    http-request set-var(txn.sluice_ticket) sc_inc_gpc(4,2),sub(txn.sluice_began),and(4294967295) if address_slot3
    acl address_spent var(txn.sluice_ticket) -m int gt %[1]d
    http-request set-var(txn.sluice.reason) str(address-request-rate) if address_spent
    http-request sc-set-gpt(5,2) var(txn.sluice_lease),div(4) if address_spent
`

// addressLimits compiles the limits of each address.
func addressLimits(a limits.AddressLimits) (r addressRules) {
	// Not even a table: each tracked entry costs every request.
	if a == (limits.AddressLimits{}) {
		return r
	}
	var store []string
	counters, expire := 0, int64(10)
	if a.FailedAuth > 0 {
		// A rate of HAProxy's own: it needs no rules that begin and end a window.
		window := a.FailedAuthWindow.Seconds()
		r.answer(addressRefusals[0].backend, addressRefusals[0].reason, a.FailedAuth, window)
		store = append(store, fmt.Sprintf("gpc_rate(1,%ds)", window))
		// HAProxy's rate looks back at the period before this one.
		counters, expire = 1, max(expire, 2*window)
	}
	if a.Requests+a.Concurrent > 0 {
		r.Requests = countedACL
	}
	if a.Requests > 0 {
		r.Requests += fmt.Sprintf(spentRule, a.Requests)
	}
	// Before the tickets: who is refused for too much in progress has drawn none.
	if a.Concurrent > 0 {
		r.Requests += fmt.Sprintf(concurrentRules, a.Concurrent)
		r.answer(addressRefusals[2].backend, addressRefusals[2].reason, a.Concurrent, 0)
		store = append(store, "conn_cur")
	} else if a.Requests > 0 {
		r.Requests += trackRule
	}
	if a.Requests > 0 {
		r.Requests += fmt.Sprintf(ticketRules, a.Requests)
		r.answer(addressRefusals[1].backend, addressRefusals[1].reason, a.Requests, 1)
		// One that failures may have, and one for each slot of tickets.
		counters = 5
		store = append(store, "gpt(6)")
	}
	if counters > 0 {
		store = append(store, fmt.Sprintf("gpc(%d)", counters))
	}
	r.Table = fmt.Sprintf(addressTable, expire, strings.Join(store, ","))
	return r
}

// addressAnswer is a backend that refuses for one reason. A limit of requests in progress has no window.
type addressAnswer struct {
	Backend, Reason string
	Limit           int
	Window          int64
}

func (r *addressRules) answer(backend, reason string, limit int, window int64) {
	r.Refusals += fmt.Sprintf("    use_backend %s if { var(txn.sluice.reason) -m str %s }\n", backend, reason)
	r.Answers = append(r.Answers, addressAnswer{backend, reason, limit, window})
}

// withoutComments is the text without comments and empty lines.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			b.WriteString(line)
		}
	}
	return b.String()
}
