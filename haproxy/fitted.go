package haproxy

import (
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

// Conditions of the short way: that there is an entry of that name, and that the name is its key.
const (
	shortEntry = `{ var(txn.sluice_user),table_gpt(0,sluice_credit) -m int gt 0 } `
	shortName  = `{ var(txn.sluice_user) -m reg '^[^~@\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}\z' }`
)

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
		// A field's value has no NUL, at which tables cut keys. Of all names that are not keys, only some with @ in front have an entry: an endpoint's.
		cfg = strings.Replace(cfg, shortEntry+shortName, shortEntry+"!{ var(txn.sluice_user) -m beg @ }", 1)
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
	return cfg, nil
}
