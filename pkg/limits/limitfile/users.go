package limitfile

import (
	"bytes"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// maxPatterns bounds the patterns of a file, those of exempt users included.
	maxPatterns = 10_000
	// maxOddPatterns bounds those of them that are neither prefix* nor *suffix, which are
	// tried one after the other for each user (see limits.Set).
	maxOddPatterns = 256
)

// users is what is known of the users while a file is read.
type users struct {
	odd   int // patterns that are neither prefix* nor *suffix
	twice map[string]bool
}

// readUsersFile reads a file of users_from.
func (f *file) readUsersFile(root *yaml.Node) {
	where := place{kind: "a file of users_from"}
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return
	}
	var users *yaml.Node
	for key, value := range f.eachEntry(root, where, "{users: {alice: free}}") {
		switch key.Value {
		case "version":
		case "users":
			users = value
		default:
			if slices.Contains(fileFields, key.Value) {
				f.errorf(key, "%s has users only; write %s in %s", where, key.Value, f.sources[0].name)
			} else {
				f.refuseUnknown(key, where, "field", usersFileFields)
			}
		}
	}
	switch {
	case users != nil:
		f.readUsers(users)
	case root.Kind == yaml.MappingNode:
		f.errorf(root, "users is missing; write users: {} for none")
	}
}

func (f *file) readUsers(n *yaml.Node) {
	if isNull(n) && f.isPlain(n) {
		return // every user commented out
	}
	where := place{field: "users"}
	// So that the map of a large file does not grow again and again.
	if len(f.content.Users) == 0 && len(n.Content) > 1000 {
		f.content.Users = make(map[string]*limits.Entry, len(n.Content)/2)
	}
	for key, value := range f.allEntries(n, where, "{alice: free}") {
		f.readUser(key, value)
	}
}

// readUser reads one entry of users.
func (f *file) readUser(key, value *yaml.Node) {
	name := key.Value
	pattern := limits.IsPattern(name)
	if pattern && !f.isUsablePattern(key, place{field: "users"}) {
		return
	}
	e := f.readUserEntry(name, value)
	if f.addUser(name, e) && pattern {
		f.content.Patterns = append(f.content.Patterns, name)
	}
}

// addUser reports whether nobody had named the user before.
func (f *file) addUser(name string, e *limits.Entry) bool {
	wire := limits.FileKey(name)
	if _, ok := f.content.Users[wire]; ok {
		f.noteDuplicate(name)
		return false
	}
	f.content.Users[wire] = e
	if wire != name {
		f.content.Names[wire] = name
	}
	return true
}

// noteDuplicate notes that a user is named twice. Where, finish finds out.
func (f *file) noteDuplicate(name string) {
	if f.users.twice == nil {
		f.users.twice = map[string]bool{}
	}
	// More would not be reported, and a file may name each of a million users twice.
	if len(f.users.twice) < maxCollected {
		f.users.twice[name] = true
	}
}

// isUsablePattern checks a pattern of names, and counts it.
func (f *file) isUsablePattern(n *yaml.Node, where place) bool {
	p := n.Value
	literal := strings.ReplaceAll(p, limits.All, "")
	f.users.odd += oddness(p)
	switch {
	case strings.Contains(p, "**"):
		f.errorf(n, "%s: the pattern %s has ** in it; one * stands for any run of characters", where, quote(p))
	case p[0] == '~' || p[0] == '@':
		f.errorf(n, "%s: the pattern %s matches nobody: a name that begins with %c is known by its hash alone; write the whole name", where, quote(p), p[0])
	case len(literal) > limits.MaxOwnKey:
		f.errorf(n, "%s: the pattern %s matches nobody: a name of more than %d bytes is known by its hash alone; write the whole name", where, quote(p), limits.MaxOwnKey)
	case strings.ContainsFunc(literal, isControl):
		f.errorf(n, "%s: the pattern %s matches nobody: a name with control characters is known by its hash alone; write the whole name", where, quote(p))
	case f.users.odd == maxOddPatterns+1 && oddness(p) == 1:
		f.errorf(n, "%s: more than %d patterns have their * neither at the beginning nor at the end alone; write %s as prefix* or *suffix", where, maxOddPatterns, quote(p))
	default:
		return true
	}
	return false
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// oddness is 1 for a pattern that is neither prefix* nor *suffix, else 0.
func oddness(p string) int {
	if at := strings.Index(p, limits.All); strings.Count(p, limits.All) == 1 && (at == 0 || at == len(p)-1) {
		return 0
	}
	return 1
}

// readUserEntry reads a tier's name, or a mapping that overrides some limits of a tier
// (the default tier if it names none).
func (f *file) readUserEntry(name string, n *yaml.Node) *limits.Entry {
	where := place{kind: "user", name: name}
	if n.Kind == yaml.ScalarNode {
		return f.content.Tiers[f.readTierName(n, where.atField("tier"))]
	}
	tier := f.content.DefaultTier
	// First of all fields, wherever it is written: the others are over its limits.
	if t := lookup(n, "tier"); t != nil {
		tier = f.readTierName(t, where.atField("tier"))
	}
	base := f.tierDrafts[tier]
	found := len(f.found) + f.more
	d := base.draft
	var endpoints *yaml.Node
	overrides := false
	var until, then *yaml.Node
	for key, value := range f.eachEntry(n, where, "{tier: free, concurrent: 10}") {
		switch key.Value {
		case "tier":
		case "comment":
			f.readComment(where, value)
		case "until":
			until = value
		case "then":
			then = value
		case "endpoints":
			endpoints, overrides = value, true
		default:
			overrides = true
			if !f.readLimit(&d, where, key, value) {
				f.refuseUnknown(key, where, "field", userFields)
			}
		}
	}
	if len(f.found)+f.more > found {
		return nil // what follows would repeat the errors
	}
	at := f.userEndpoints(where, n, base, endpoints)
	e := f.entryOf(tier, d, at)
	if until != nil || then != nil {
		f.readExpiry(&e, where, tier, overrides, until, then)
	}
	f.keepBase(name, tierDraft{d, at}, tier, e)
	return f.sharedEntry(e)
}

// userEndpoints returns a user's limits at the endpoints where they differ: those of
// the tier there, then the user's own everywhere, then the user's own there.
func (f *file) userEndpoints(where place, n *yaml.Node, base tierDraft, endpoints *yaml.Node) map[string]draft {
	if len(base.at) == 0 && endpoints == nil {
		return nil
	}
	over := func(endpoint string) draft {
		if endpoint == limits.All {
			// A dry run of a user's limits, or of their tier's, is one of these too. Nothing
			// else that is said of everywhere is said of all endpoints together.
			d, ok := base.at[limits.All]
			if mode := lookup(n, "mode"); mode != nil {
				f.readMode(&d.mode, where.atField("mode"), mode)
			} else if !ok {
				d.mode = base.mode
			}
			return d
		}
		d, ok := base.at[endpoint]
		if !ok {
			d = base.draft
		}
		f.quiet = true // whether the share fits is said of the result
		for i := 0; i+1 < len(n.Content); i += 2 {
			f.readLimit(&d, where, n.Content[i], n.Content[i+1])
		}
		f.quiet = false
		return d
	}
	at := map[string]draft{}
	for _, endpoint := range slices.Sorted(maps.Keys(base.at)) {
		if endpoints == nil || lookup(endpoints, endpoint) == nil {
			d := over(endpoint)
			at[endpoint] = d
			if endpoint == limits.All {
				continue
			}
			here := where
			here.endpoint = endpoint
			if b := lookup(n, "bandwidth"); b != nil {
				f.checkDefaultShare(b, here, d.bandwidth)
			}
		}
	}
	if endpoints != nil {
		maps.Copy(at, f.endpointDrafts(where, endpoints, over))
	}
	return at
}

// timePattern is a date or a time of RFC 3339 in the years from 2000 to 2199. It means
// the same in Go and in ECMAScript, which JSON Schema uses.
const timePattern = `^2[01][0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])` +
	`(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))?$`

var timeForm = regexp.MustCompile(timePattern)

const timeForms = "a date such as 2026-12-01, which begins at 00:00 UTC, or a time such as 2026-12-01T18:00:00Z"

// readExpiry reads until and then: from when on the entry is void, and which tier the
// user has from then on.
func (f *file) readExpiry(e *limits.Entry, where place, tier string, overrides bool, until, then *yaml.Node) {
	if until == nil {
		f.errorf(then, "%s needs until: say from when on", where.atField("then"))
		return
	}
	at, ok := f.readTime(until, where.atField("until"))
	after := tier
	if then != nil {
		after = f.readTierName(then, where.atField("then"))
	} else if !overrides {
		f.errorf(until, "%s has no effect: nothing is overridden that could end; name the tier that follows with then, or leave it out", where.atField("until"))
		return
	}
	if !ok || f.content.Tiers[after] == nil {
		return
	}
	ends := &limits.More{Until: at.UnixNano(), Then: f.content.Tiers[after]}
	if e.More != nil {
		ends.Endpoints = e.More.Endpoints
	}
	e.More = ends
}

// readTime reads a date or a time.
func (f *file) readTime(n *yaml.Node, where place) (time.Time, bool) {
	if !f.isScalar(n, where, timeForms) {
		return time.Time{}, false
	}
	t, err := parseTime(n.Value)
	if err != nil {
		f.errorf(n, "%s must be %s, from the year 2000 to 2199, got %s", where, timeForms, quote(n.Value))
		return time.Time{}, false
	}
	return t, true
}

// parseTime reads what timeForm describes, if there is such a day.
func parseTime(s string) (time.Time, error) {
	switch {
	case !timeForm.MatchString(s):
		return time.Time{}, errors.New("no date and no time")
	case strings.Contains(s, "T"):
		return time.Parse(time.RFC3339, s)
	}
	return time.Parse(time.DateOnly, s)
}

// makeSet makes the set when all sources are read.
func (f *file) makeSet(data []byte) {
	if len(f.users.twice) > 0 {
		f.reportTwice()
	}
	if most := len(f.content.Patterns) + f.countExemptPatterns(); most > maxPatterns {
		f.openSource(0, f.sources[0].name)
		f.addError(1, 1, "the file has %d patterns of users; at most %d are possible", most, maxPatterns)
	}
	if f.hasErrors() {
		return
	}
	f.content.Source = bytes.Clone(data)
	f.set = limits.NewSet(f.content)
	if len(f.overrides) > 0 {
		f.applyOverrides()
	}
}

// reportTwice reads the sources again and reports every place but the first of each
// user who is named twice.
func (f *file) reportTwice() {
	type where struct {
		source int
		spot
	}
	first := map[string]where{}
	for i, s := range f.sources {
		f.openSource(i, s.name)
		for key := range s.eachUser() {
			name, at := key.Value, spot{key.Line, key.Column}
			if !f.users.twice[name] {
				continue
			}
			was, ok := first[name]
			switch {
			case !ok:
				first[name] = where{i, at}
			case was.source == i:
				f.addError(at.line, at.column, "users has %s twice, first on line %d", quote(name), was.line)
			default:
				f.addError(at.line, at.column, "users: %s is named in two files, first at %s:%d:%d", quote(name), f.sources[was.source].name, was.line, was.column)
			}
		}
	}
}
