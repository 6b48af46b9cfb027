package limitfile

import (
	"errors"
	"fmt"
	"regexp"
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

func (f *file) readUsers(at place, n *yaml.Node) {
	if isNull(n) && f.isPlain(n) {
		return // every user commented out
	}
	// So that the map of a large file does not grow again and again.
	if len(f.content.Users) == 0 && len(n.Content) > 1000 {
		f.content.Users = make(map[string]limits.Named, len(n.Content)/2)
	}
	for key, value := range f.allEntries(n, at, "{alice: free}") {
		f.readUser(key, value)
	}
}

// readUser reads one entry of users.
func (f *file) readUser(key, value *yaml.Node) {
	pattern := limits.IsPattern(key.Value)
	if pattern && !f.isUsablePattern(key, place{field: "users"}) {
		return
	}
	// Read before it is known whether the name is there twice, so that all errors are told.
	entry := f.readUserEntry(key, value)
	if f.addNamed(key, entry) && pattern {
		f.content.Patterns = append(f.content.Patterns, key.Value)
	}
}

// addNamed reports whether nobody had named the user before.
func (f *file) addNamed(key *yaml.Node, entry uint32) bool {
	wire := limits.Key(key.Value)
	if first, ok := f.content.Users[wire]; ok {
		f.refuseTwice(key, first)
		return false
	}
	before := f.origins.files[f.source].before
	f.content.Users[wire] = limits.Named{Entry: entry, Line: uint32(before + key.Line)}
	if wire != key.Value {
		f.content.Names[wire] = key.Value
	}
	return true
}

func (f *file) refuseTwice(key *yaml.Node, first limits.Named) {
	switch in, at := f.origins.find(first.Line); {
	case f.isFull(): // a file may name each of a million users twice
		f.more++
	// Within one file the line is enough.
	case in.name == f.sources[f.source].name:
		f.errorf(key, "users has %s twice, first on line %d", quote(key.Value), at)
	default:
		f.errorf(key, "users: %s is named in two files, first at %s:%d", quote(key.Value), in.name, at)
	}
}

// readUserEntry reads a tier's name, or a mapping that overrides some limits of a tier
// (the default tier if it names none). It returns the index in limits.Content.Entries.
func (f *file) readUserEntry(key, n *yaml.Node) uint32 {
	where := place{kind: "user", name: key.Value}
	// Nearly all users, for whom nothing needs to be noted but their tier.
	if n.Kind == yaml.ScalarNode {
		return f.scalars[f.readTierName(n, where.atField("tier"))]
	}
	f.beginEntry(key)
	// Not counted as an error of the entry: what it says can be judged over no tier as well.
	over := f.layerUnder(where, n, f.tiers[f.content.DefaultTier])
	found := f.count()
	e := f.readEntry(over, where, n, "{tier: free, concurrent: 10}", userFields)
	if f.count() > found {
		return 0 // no set will be made
	}
	entry := f.entryOf(e.layer)
	if e.until != nil || e.then != nil {
		f.readExpiry(&entry, &e, where)
	}
	// Before it is shared: an override needs the drafts, which nobody else keeps.
	f.keepBase(key.Value, e.layer, entry)
	return f.record(entry)
}

// isUsablePattern checks a pattern of names, and counts it.
func (f *file) isUsablePattern(n *yaml.Node, where place) bool {
	p := n.Value
	literal := strings.ReplaceAll(p, limits.All, "")
	odd := isOdd(p)
	if odd {
		f.odd++
	}
	switch {
	case strings.Contains(p, "**"):
		f.errorf(n, "%s: the pattern %s has ** in it; one * stands for any run of characters", where, quote(p))
	// Patterns are compared with keys. A key that is a hash tells nothing of its name.
	case p[0] == '~':
		f.errorf(n, "%s: the pattern %s matches nobody: a name that begins with ~ is known by its hash alone; write the whole name", where, quote(p))
	case len(literal) > limits.MaxOwnKey:
		f.errorf(n, "%s: the pattern %s matches nobody: a name of more than %d bytes is known by its hash alone; write the whole name", where, quote(p), limits.MaxOwnKey)
	case strings.ContainsFunc(literal, isControl):
		f.errorf(n, "%s: the pattern %s matches nobody: a name with control characters is known by its hash alone; write the whole name", where, quote(p))
	case odd && f.odd == maxOddPatterns+1: // one error says it all
		f.errorf(n, "%s: more than %d patterns have their * neither at the beginning nor at the end alone; write %s as prefix* or *suffix", where, maxOddPatterns, quote(p))
	default:
		return true
	}
	return false
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// isOdd reports whether a pattern is neither prefix* nor *suffix.
func isOdd(p string) bool {
	at := strings.Index(p, limits.All)
	return strings.Count(p, limits.All) != 1 || at > 0 && at < len(p)-1
}

// timePattern is a date or a time of RFC 3339 in the years from 2000 to 2199. It means
// the same in Go and in ECMAScript, which JSON Schema uses.
const timePattern = `^2[01][0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])` +
	`(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))?$`

var timeForm = regexp.MustCompile(timePattern)

const timeForms = "a date such as 2026-12-01, which begins at 00:00 UTC, or a time such as 2026-12-01T18:00:00Z"

var times = kind[time.Time]{forms: timeForms, silent: true, parse: parseTime}

// parseTime reads what timeForm describes, if there is such a day.
func parseTime(s string) (t time.Time, err error) {
	switch {
	case !timeForm.MatchString(s):
		err = errors.New("no date and no time")
	case strings.Contains(s, "T"):
		t, err = time.Parse(time.RFC3339, s)
	default:
		t, err = time.Parse(time.DateOnly, s)
	}
	if err != nil {
		return t, fmt.Errorf("must be %s, from the year 2000 to 2199, got %s", timeForms, quote(s))
	}
	return t, nil
}

// readExpiry reads until and then: from when on the entry is void, and which tier the
// user has from then on.
func (f *file) readExpiry(to *limits.Entry, e *entry, where place) {
	if e.until == nil {
		f.errorf(e.then, "%s needs until: say from when on", where.atField("then"))
		return
	}
	var at time.Time
	// The time is read before the tier, so that both are told of in one go.
	times.read(f, &at, where.atField("until"), e.until)
	after := e.tier
	if e.then != nil {
		after = f.readTierName(e.then, where.atField("then"))
		f.written.then = after
	} else if !e.sets {
		// The user would go on as before, and whoever wrote the end expects that something does end.
		f.errorf(e.until, "%s has no effect: nothing is overridden that could end; name the tier that follows with then, or leave it out", where.atField("until"))
		return
	}
	if at.IsZero() || f.content.Tiers[after] == nil {
		return
	}
	to.Until, to.Then = at.UnixNano(), f.content.Tiers[after]
}
