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
var sharesOfCredit = []string{"shares of credit", "held by credit", "unheard shares", "new shares", "default shares"}

// lendsShares is whether credit brings shares: where somebody's bandwidth is limited, and a
// sticky counter is free for a request of theirs.
func (c Config) lendsShares() bool {
	return c.Addresses == (limits.AddressLimits{}) && (!c.Fitted || c.Bandwidth)
}

// shareElements are behind those of the classes: the first is the share down, the second up.
func shareElements(classes int) (down, up int) { return 6 + 2*classes, 7 + 2*classes }

// withShares is haproxy.cfg with the numbers of the elements that shares have for so many
// classes, or without shares.
func (c Config) withShares(cfg string, classes int) (string, error) {
	const begin, end = "# limited by credit: begin\n", "# limited by credit: end\n"
	before, rest, begun := strings.Cut(cfg, begin)
	held, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("haproxy.cfg has no marks for %s", "limited by credit")
	}
	down, up := shareElements(classes)
	shippedDown, shippedUp := shareElements(len(creditClasses()))
	numbers := strings.NewReplacer(
		fmt.Sprintf("gpt(%d,0)", shippedDown), fmt.Sprintf("gpt(%d,0)", down),
		fmt.Sprintf("gpt(%d,0)", shippedUp), fmt.Sprintf("gpt(%d,0)", up))
	if !c.lendsShares() {
		held = ""
	}
	cfg = before + begin + numbers.Replace(held) + end + after
	for _, name := range sharesOfCredit {
		rules, err := partOf(cfg, name)
		if err != nil {
			return "", err
		}
		if rules = numbers.Replace(rules); !c.lendsShares() {
			rules = ""
		}
		if cfg, err = between(cfg, name, rules); err != nil {
			return "", err
		}
	}
	if c.Addresses == (limits.AddressLimits{}) {
		return cfg, nil
	}
	return between(cfg, "requests in progress", bandwidthWithoutCredit)
}
