package haproxy

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// ForLimits is what a limit file says about HAProxy's files, which are fitted to it.
func ForLimits(set *limits.Set) Config {
	return Config{
		Classes: set.Classes(), CreditClasses: CreditClasses(set), Exempt: set.Exempt(), Addresses: set.AddressLimits(),
		Costs: set.CostUnits(), Fitted: true, Bandwidth: set.LimitsBandwidth(),
	}
}

// HAProxy's own buffers, and those that make a limited transfer cheap. Before 2.7 large ones
// leave a thread no memory at hand for anything else, which each request pays for.
const smallBuffers, largeBuffers = `"${SLUICE_BUFSIZE-16384}"`, `"${SLUICE_BUFSIZE-65536}"`

// readsCredentials is whether the identifier can find that credentials are unreadable.
func (i Identifier) readsCredentials() bool { return i.Kind != "header" && i.Kind != "ip" }

// shortName is the condition of the short way that the name is a key. The one before it is
// that there is an entry of that key.
const shortName = ` { var(txn.sluice_user) -m reg '^[^~\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}\z' }`

// leaveOutNeedless leaves out what c and its chain of identifiers cannot need: each condition that never
// holds costs every request.
func (c Config) leaveOutNeedless(cfg *edition, chain []Identifier) {
	if !c.Fitted {
		return
	}
	var needless []string // expressions, of lines or parts of lines
	if !c.Bandwidth {
		cfg.replace(largeBuffers, smallBuffers)
		cfg.put("bandwidth", "")
		cfg.put("unheld", "    set-var proc.sluice_unheld int(1)\n")
	}
	// Nobody sets what these rules look at.
	if !slices.ContainsFunc(chain, Identifier.readsS3) {
		needless = append(needless, `(?m)^    # Beside a presigned URL .*\n`, `(?m)^    http-request set-var\(txn\.sluice_unreadable\) int\(2\) if \{ var\(txn\.sluice_s3_id\) .*\n`)
	}
	if !slices.ContainsFunc(chain, Identifier.readsCredentials) {
		needless = append(needless, ` !\{ var\(txn\.sluice_unreadable\) -m found \}`)
		// A field's value has no NUL, at which tables cut keys: HAProxy refuses it, and README.md says that rules of one's own
		// must not write it. No other name that is not a key has an entry.
		// Where address limits leave the short way out, the rule of names that are keys stands first, and keeps it.
		if strings.Contains(cfg.text, trackUser) {
			cfg.text = strings.Replace(cfg.text, shortName, "", 1)
		}
	}
	if len(chain) == 1 && !chain[0].readsCredentials() {
		needless = append(needless, `(?m) if !\{ var\(txn\.sluice_user\) -m len gt 0 \}$`) // nobody has found a name before
	}
	// A list that is empty now stays empty: to fill it, the files are written anew.
	folder := func(path string) bool { return strings.HasSuffix(path, "*") }
	folders := slices.ContainsFunc(c.Exempt.Paths, folder)
	paths := slices.ContainsFunc(c.Exempt.Paths, func(path string) bool { return !folder(path) })
	if len(c.Exempt.Addresses) == 0 {
		needless = append(needless, `(?m)^    acl exempt_here src .*\n`)
	}
	if !paths {
		needless = append(needless, `(?m)^    acl exempt_here path .*\n`)
	}
	if len(c.Exempt.Addresses) == 0 && !paths {
		needless = append(needless, `(?m)^    http-request .* if exempt_here\n`, ` !exempt_here\b`)
	}
	if !folders {
		needless = append(needless, `(?m)^    acl (?:exempt_below|path_odd) .*\n`, `(?m)^    http-request .* exempt_below !?path_odd\n`, ` !exempt_below\b`)
	}
	// By expressions, because one condition stands in many rules.
	for _, expression := range needless {
		cfg.text = regexp.MustCompile(expression).ReplaceAllString(cfg.text, "")
	}
	if c.Addresses == (limits.AddressLimits{}) { // else there is no short way
		c.putShortWayFirst(cfg, chain)
	}
}

// trackUser is how the rule of the short way begins that looks for the user's entry, and foundUser how the
// line of a fragment begins that finds the user's name.
const (
	trackUser = "    http-request track-sc0 var(txn.sluice_user) table sluice_credit if { var(txn.sluice_user),"
	foundUser = "http-request set-var(txn.sluice_user) "
)

// putShortWayFirst puts the rules of health checks behind the short way, which lets none through. A name
// that stands in a field of its own is read there by the short way, twice, which costs less than to keep it in a variable; it is
// kept behind the short way, for requests that did not pass. Whose bandwidth is limited needs it in any case.
func (c Config) putShortWayFirst(cfg *edition, chain []Identifier) {
	const end = "    # short way: end\n"
	_, rest, found := strings.Cut(cfg.text, trackUser)
	conditions, _, ended := strings.Cut(rest, "\n")
	if (!found || !ended) && cfg.err == nil {
		cfg.err = errors.New("haproxy.cfg has no short way with a rule that looks for the user's entry")
	}
	track := trackUser + conditions + " !health\n"
	behind := "    # health checks: begin\n" + cfg.part("health checks") + "    # health checks: end\n"
	if len(chain) == 1 && chain[0].Kind == "header" && !c.Bandwidth {
		identify := cfg.part("identify")
		name := regexp.MustCompile(`(?m)` + regexp.QuoteMeta(foundUser) + `(.*)$`)
		track = name.ReplaceAllString(withoutComments(identify), "http-request track-sc0 $1 table sluice_credit if { $1,"+strings.ReplaceAll(conditions+" !health", "$", "$$"))
		behind += identify
		cfg.put("identify", "")
	}
	cfg.put("health checks", "")
	cfg.replace(trackUser+conditions+"\n", track)
	cfg.replace(end, end+behind)
}
