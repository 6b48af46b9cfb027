package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// ForLimits is what a limit file says about HAProxy's files, which are fitted to it.
func ForLimits(set *limits.Set) Config {
	return Config{
		Classes: set.Classes(), CreditClasses: CreditClasses(set), Exempt: set.Exempt(), Addresses: set.AddressLimits(),
		Fitted: true, Bandwidth: set.LimitsBandwidth(),
	}
}

// HAProxy's own buffers, and those that make a limited transfer cheap. Before 2.7 large ones
// leave a thread no memory at hand for anything else, which each request pays for.
const smallBuffers, largeBuffers = `"${SLUICE_BUFSIZE-16384}"`, `"${SLUICE_BUFSIZE-65536}"`

// readsCredentials is whether the identifier can find that credentials are unreadable.
func (i Identifier) readsCredentials() bool { return i.Kind != "header" && i.Kind != "ip" }

// shortName is the condition of the short way that the name is a key. The one before it is
// that there is an entry of that key, and that it is not an endpoint's.
const shortName = ` { var(txn.sluice_user) -m reg '^[^~@\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}\z' }`

// withoutNeedless is haproxy.cfg without what c and its chain of identifiers cannot need: each
// condition that never holds costs every request.
func (c Config) withoutNeedless(cfg string, chain []Identifier) (_ string, err error) {
	if !c.Fitted {
		return cfg, nil
	}
	var needless []string // expressions, of lines or parts of lines
	if !c.Bandwidth {
		if strings.Count(cfg, largeBuffers) != 1 {
			return "", fmt.Errorf("haproxy.cfg has no size of buffers %s", largeBuffers)
		}
		cfg = strings.Replace(cfg, largeBuffers, smallBuffers, 1)
		for name, lines := range map[string]string{"bandwidth": "", "unheld": "    set-var proc.sluice_unheld int(1)\n"} {
			if cfg, err = between(cfg, name, lines); err != nil {
				return "", err
			}
		}
	}
	if !slices.ContainsFunc(chain, Identifier.readsS3) {
		needless = append(needless, `(?m)^    # Beside a presigned URL .*\n`, `(?m)^    http-request set-var\(txn\.sluice_unreadable\) int\(2\) if \{ var\(txn\.sluice_s3_id\) .*\n`)
	}
	if !slices.ContainsFunc(chain, Identifier.readsCredentials) {
		needless = append(needless, ` !\{ var\(txn\.sluice_unreadable\) -m found \}`)
		// A field's value has no NUL, at which tables cut keys: HAProxy refuses it, and README.md says that rules of one's own
		// must not write it. Of all names that are not keys, only an endpoint's have an entry.
		cfg = strings.Replace(cfg, shortName, "", 1)
	}
	if len(chain) == 1 && !chain[0].readsCredentials() {
		needless = append(needless, `(?m) if !\{ var\(txn\.sluice_user\) -m len gt 0 \}$`) // nobody has found a name before
	}
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
	for _, expression := range needless {
		cfg = regexp.MustCompile(expression).ReplaceAllString(cfg, "")
	}
	if c.Addresses != (limits.AddressLimits{}) {
		return cfg, nil // there is no short way
	}
	return c.shortWayFirst(cfg, chain)
}

// trackUser is how the rule of the short way begins that looks for the user's entry, and foundUser how the
// line of a fragment begins that finds the user's name.
const (
	trackUser = "    http-request track-sc0 var(txn.sluice_user) table sluice_credit if { var(txn.sluice_user),"
	foundUser = "http-request set-var(txn.sluice_user) "
)

// shortWayFirst is haproxy.cfg with the rules of health checks behind the short way, which lets none through. A name
// that stands in a field of its own is read there by the short way, twice, which costs less than to keep it in a variable; it is
// kept behind the short way, for requests that did not pass. Whose bandwidth is limited needs it in any case.
func (c Config) shortWayFirst(cfg string, chain []Identifier) (string, error) {
	const end = "    # short way: end\n"
	health, err := partOf(cfg, "health checks")
	if err != nil {
		return "", err
	}
	identify, err := partOf(cfg, "identify")
	if err != nil {
		return "", err
	}
	before, rest, found := strings.Cut(cfg, trackUser)
	conditions, after, ended := strings.Cut(rest, "\n")
	if !found || !ended || !strings.Contains(after, end) {
		return "", errors.New("haproxy.cfg has no short way with a rule that looks for the user's entry")
	}
	conditions += " !health"
	track, behind := trackUser+conditions+"\n", "    # health checks: begin\n"+health+"    # health checks: end\n"
	if len(chain) == 1 && chain[0].Kind == "header" && !c.Bandwidth {
		name := regexp.MustCompile(`(?m)` + regexp.QuoteMeta(foundUser) + `(.*)$`)
		track = name.ReplaceAllString(withoutComments(identify), "http-request track-sc0 $1 table sluice_credit if { $1,"+strings.ReplaceAll(conditions, "$", "$$"))
		behind += identify
		if before, err = between(before, "identify", ""); err != nil {
			return "", err
		}
	}
	if before, err = between(before, "health checks", ""); err != nil {
		return "", err
	}
	return before + track + strings.Replace(after, end, end+behind, 1), nil
}
