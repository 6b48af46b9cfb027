package haproxy

import (
	"fmt"
	"strings"
)

// maxShortRenewal is for how many classes the short way renews tickets itself. Its rules
// for that are not for nothing: requests without credit pass by them.
const maxShortRenewal = 6

// shortRenewal is what the part "credit" does where a second begins. While the agent is
// down that part does it, for credit grows then. Who has renewed draws a ticket with the rules of the short way,
// as far as these are of the methods that most requests have; others draw it below.
// sluice_begins is how many wanted to renew: the first one, 1, holds the entry, and is 0 from then on if there is
// something to renew. If not, and if another one has just renewed, the request goes on below.
// Each rule keeps what it needs besides in sluice_read, for another variable costs as much as three conditions.
func shortRenewal(classes int, short string) string {
	// What is read in front of the increment decides nothing, for this thread may stand still behind it while the
	// generation changes, another thread tells the agent that nobody renews, or writes credit for the next second.
	// The end must be over by this thread's clock: one further ahead than lasts is of others who have renewed while this
	// thread stood still for seconds. A clock that was set back is the rules' below.
	// To look at all of it there as well would spare some who are asked about the increment, and cost a renewal 4 %.
	var b strings.Builder
	b.WriteString("    acl sluice_begins       var(txn.sluice_begins) -m int 0:1\n" +
		"    acl sluice_renews       var(txn.sluice_begins) -m int 0\n" +
		"    http-request set-var(txn.sluice_begins) sc_inc_gpc(0,0) if sluice_end_now !sluice_lasting_now !{ stopping } { srv_is_up(sluice_agent/agent) -m int 1 }\n" +
		"    http-request set-var(txn.sluice_begins) int(0) if sluice_begins sluice_end_now { date(3),sub(txn.sluice_read) gt 2 } { sc_get_gpt(2,0),set-var(txn.sluice_read) -m found } { date(),sub(txn.sluice_read) gt 0 } { str(~),table_gpt0(sluice/credit),set-var(txn.sluice_read) -m int gt 0 } { sc_get_gpt(0,0),sub(txn.sluice_read) eq 0 }\n")
	// Of each class: the last ticket of the new second is the last one that was drawn, and as many more as it
	// has.
	for i := range classes {
		fmt.Fprintf(&b, "    http-request sc-set-gpt(%d,0) sc_get_gpc(%d,0),add(txn.sluice_read) if sluice_renews { sc_get_gpt(%d,0),set-var(txn.sluice_read) -m found }\n", 7+2*i, 1+i, 6+2*i)
	}
	b.WriteString("    http-request sc-set-gpt(5,0) int(1) if sluice_renews\n" +
		"    http-request sc-set-gpt(1,0) date(1) if sluice_renews\n" +
		"    http-request set-var(txn.sluice_read) sc_clr_gpc(0,0) if sluice_begins\n")
	// Verbs that have tickets of their own, and GET: each line costs every request that comes without credit.
	for line := range strings.Lines(short) {
		if ofClass := strings.Contains(line, "} sluice_ticket_"); ofClass || strings.Contains(line, "{ method GET }") {
			b.WriteString(strings.Replace(strings.Replace(line, "http-request allow if ", "http-request allow if sluice_renews ", 1), " sluice_end_now sluice_lasting_now", "", 1)) // it is lasting
		}
	}
	return b.String()
}
