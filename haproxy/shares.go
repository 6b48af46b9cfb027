package haproxy

import (
	"fmt"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// bandwidthWithoutCredit counts the requests of users whose bandwidth is limited where sticky
// counter 2 is not free for them: such users have no credit there, and counter 0 takes them.
const bandwidthWithoutCredit = `    # Whose limits have just changed may still have credit. It ends, and the bodies of this request are not held.
    http-request set-var(txn.sluice.credit) int(0) if bandwidth credited
    http-request unset-var(txn.sluice.down) if credited
    http-request unset-var(txn.sluice.up) if credited
    http-request track-sc0 var(txn.sluice_user) table sluice/active if bandwidth !refused
    http-request track-sc1 var(txn.sluice_user) table sluice/active if !bandwidth !refused
    http-request sc-set-gpt0(0) sc_get_gpt0(0),add(txn.sluice_early) if !refused !agent_down bandwidth early { sc_get_gpt0(0) lt 4294900000 }
    http-request sc-set-gpt0(1) sc_get_gpt0(1),add(txn.sluice_early) if !refused !agent_down !bandwidth early { sc_get_gpt0(1) lt 4294900000 }
`

// sharesOfCredit are the parts of haproxy.cfg by which credit brings shares of bandwidth.
var sharesOfCredit = []string{"shares of credit", "held by credit", "unheard shares", "new shares"}

// lendsShares is whether credit brings shares: where somebody's bandwidth is limited, a
// sticky counter is free for a request of theirs.
func (c Config) lendsShares() bool {
	return c.Addresses == (limits.AddressLimits{}) && (!c.Fitted || c.Bandwidth)
}

// shareElements are behind those of the classes: the first is the share down, the second up.
func shareElements(classes int) (down, up int) { return 6 + 2*classes, 7 + 2*classes }

// putShares puts the numbers of the elements that shares have for so many classes, or leaves shares out.
func (c Config) putShares(cfg *edition, classes int) {
	// Behind the classes, of which a limit file may need fewer than haproxy.cfg has as shipped.
	down, up := shareElements(classes)
	shippedDown, shippedUp := shareElements(len(creditClasses()))
	numbers := strings.NewReplacer(
		fmt.Sprintf("gpt(%d,0)", shippedDown), fmt.Sprintf("gpt(%d,0)", down),
		fmt.Sprintf("gpt(%d,0)", shippedUp), fmt.Sprintf("gpt(%d,0)", up))
	// Without anybody to hold, each rule that looks for a share would cost every request.
	lent := func(rules string) string {
		if !c.lendsShares() {
			return ""
		}
		return numbers.Replace(rules)
	}
	// A section, so that its marks are not indented.
	if before, held, after := cfg.cut("limited by credit", ""); cfg.err == nil {
		cfg.text = before + lent(held) + after
	}
	for _, name := range sharesOfCredit {
		cfg.put(name, lent(cfg.part(name)))
	}
	// The sticky counter that these requests have elsewhere is the addresses'.
	if c.Addresses != (limits.AddressLimits{}) {
		cfg.put("requests in progress", bandwidthWithoutCredit)
	}
}
