// Package limitfile reads limit files.
//
// Parse turns a file into a limits.Set, or reports all errors, each with its line, its column
// and what would be valid. It works in three steps. Decode: yaml.v3 makes nodes of the text
// (yaml.go), and the nodes fill structs that remember where the file says what (file.go has the
// structs, decode.go fills them, numbers.go has their values). Check: names are compared with those
// that the file declares, and numbers with each other (check.go, classes.go). Resolve: an entry is
// laid over that of its tier, and becomes limits.Limits (resolve.go).
//
// WithOverrides lays overrides by hand over a Set, and OriginOf tells which lines set a user's
// limits; both decode the text of the user's entry once more, and no other. Only Load and a Loader
// open files.
package limitfile

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxFileSize is the largest limit file that is read, in bytes: room for more than a million users.
const MaxFileSize = 64 << 20

const (
	all             = limits.All
	workersForUsers = "users" // among the names of tiers under workers
)

// Load reads and parses a limit file. The error is about a file that cannot be read, or of type
// Errors.
func Load(path string) (*limits.Set, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// readFile reads a limit file, and stops one byte after MaxFileSize, which Parse then refuses.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read limit file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read limit file: %w", err)
	}
	return data, nil
}

// Parse makes a Set of a limit file. The name stands for the file in errors, which are of type
// Errors. Parse keeps a copy of data.
//
// The Set is that of all times: nothing in it has expired (see Set.At).
func Parse(name string, data []byte) (*limits.Set, error) {
	f := &file{resolver: newResolver(&model{tiers: map[string]*tier{}, exempt: map[string]int{}})}
	f.file = name
	f.content = limits.Content{Name: name, Tiers: map[string]*limits.Entry{}, Users: map[string]limits.Named{}, Names: map[string]string{}}
	if root := f.topNode(data); root != nil {
		f.read(root)
	}
	if len(f.found) > 0 {
		return nil, f.errors()
	}
	f.text, f.ends, f.content.Entries = slices.Clone(f.text), slices.Clone(f.ends), slices.Clone(f.content.Entries) // without room for more
	f.content.Source, f.content.Origins = bytes.Clone(data), f.model
	return limits.NewSet(f.content), nil
}

// model is what a file says, as far as overrides and OriginOf need it. A Set keeps it.
type model struct {
	mode      scalar
	calendar  *limits.Calendar // nil if days and months are those of UTC
	classes   []string         // what limits of requests may name
	services  []string         // of queues; nil if the file has none
	units     map[string]limits.CostUnit
	tiers     map[string]*tier
	tierNames []string // sorted
	groups    []string
	exempt    map[string]int    // lines, by name
	text      []byte            // of all entries, as textOf writes them
	ends      []uint32          // of each in it, by the index in limits.Content.Entries
	overrides map[string]*entry // by user
}

type tier struct {
	layer
	line  int
	index uint32 // of all users with the name of the tier and nothing else
}

type file struct {
	decoder
	resolver // with the model
	doc      document
	content  limits.Content
	written  map[string]uint32 // indexes of entries, by their texts
}

func (f *file) read(root *yaml.Node) {
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return // only a reader of that version knows the other fields
	}
	f.decode(root, &f.doc, place{of: theFile}, "")
	if root.Kind != yaml.MappingNode {
		return
	}
	if f.doc.Version.node == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	f.mode, f.content.Mode = f.doc.Mode, limits.Mode(f.doc.Mode.n)
	f.checkCalendar()
	f.checkClasses()
	f.checkUnits()
	f.checkQueues()
	f.checkAddressLimits()
	f.readGroups()
	f.readTiers(root)
	f.content.DefaultTier = f.checkTier(f.doc.DefaultTier, place{field: "default_tier"})
	f.content.AnonymousTier = f.checkTier(f.doc.AnonymousTier, place{field: "anonymous_tier"})
	f.content.UnreadableTier = f.checkTier(f.doc.Unreadable, place{field: "unreadable"})
	f.checkDedicated()
	f.checkExempt()
	if n := f.doc.Users.node; n != nil {
		f.readUsers(n, place{field: "users"})
	}
	if most := len(f.content.Patterns) + f.patternsOfExempt(); most > limits.MaxPatterns {
		f.report(at{line: 1, column: 1}, "the file has %d patterns of users; at most %d are possible", most, limits.MaxPatterns)
	}
}

func (f *file) readVersion(n *yaml.Node) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int":
		f.errorf(n, "version must be the number 1, got %s", describe(n))
	case n.Value != "1":
		f.errorf(n, "version %s is not supported (valid: 1)", shorten(n.Value))
	default:
		return true
	}
	return false
}

func (f *file) checkCalendar() {
	w := f.doc.Windows
	zone, err := time.LoadLocation(w.TimeZone.text) // "" is UTC
	if err == nil {
		f.calendar = limits.NewCalendar(zone, time.Duration(w.DayStarts.n), int(max(1, w.MonthStarts.n)))
	}
}

// readTiers reads all tiers. A tier with errors is known too, so that naming it is no error.
func (f *file) readTiers(root *yaml.Node) {
	tiers := f.doc.Tiers
	for _, t := range tiers.entries {
		switch {
		case !limits.IsOwnKey(t.name):
			f.report(t.at, "the tier name %s is not usable; write 1 to %d bytes without control characters, and no ~ in front", quote(t.name), limits.MaxOwnKey)
		case t.name == limits.ExemptTier:
			f.report(t.at, "the tier name exempt is taken: it is the tier of those who are under exempt")
		default:
			where := place{of: "tier " + quote(t.name)}
			f.checkEntry(&t.value, layer{}, where)
			f.tiers[t.name] = &tier{layer: layer{tier: t.name}.with(&t.value, limits.OfTier), line: int(t.line)}
		}
	}
	f.tierNames = slices.Sorted(maps.Keys(f.tiers))
	f.completeJobs(f.doc.DefaultTier.text)
	for name, t := range f.tiers {
		f.content.Tiers[name] = f.entryOf(f.limitsOf(t.layer), 0, nil)
		t.index = f.addEntry(f.content.Tiers[name], strconv.Quote(name))
	}
	switch {
	case !tiers.said():
		f.errorf(root, "tiers is missing; write one at least, such as tiers: {free: {concurrent: 10}}")
	case tiers.isMapping && len(tiers.entries) == 0:
		f.report(tiers.at, "tiers is empty; write one at least, such as {free: {concurrent: 10}}")
	}
	switch {
	case f.doc.DefaultTier.said():
	case len(f.tiers) > 0:
		f.errorf(root, "default_tier is missing; name one of the tiers: %s", joinChoices(f.tierNames))
	default:
		f.errorf(root, "default_tier is missing; name one of the tiers")
	}
}

// readGroups reads what the members of each group may do together.
func (f *file) readGroups() {
	f.content.Groups = map[string]*limits.Entry{}
	for _, g := range f.doc.Groups.entries {
		where := place{of: "group " + quote(g.name)}
		if !limits.IsOwnKey(g.name) {
			f.report(g.at, "the group name %s is not usable; write 1 to %d bytes without control characters, and no ~ in front", quote(g.name), limits.MaxOwnKey)
		}
		for name, at := range map[string]at{"bandwidth": g.value.Bandwidth.at, "over_limit": g.value.OverLimit.at, "priority": g.value.Priority.at, "jobs": g.value.Jobs.at} {
			if at.said() {
				f.report(at, "%s: a group is no user and has no %s; limit its requests, concurrent and costs, or write %[2]s at the tier of its members", where, name)
			}
		}
		f.checkEntry(&g.value, layer{}, where)
		f.groups = append(f.groups, g.name)
		f.content.Groups[g.name] = f.entryOf(f.limitsOf(layer{}.with(&g.value, limits.OfTier)), 0, nil)
	}
}

func (f *file) readUsers(n *yaml.Node, at place) {
	if isNull(n) && f.isPlain(n) {
		return // every user commented out
	}
	if !f.is(n, at, yaml.MappingNode, "a mapping such as {alice: free}") {
		return
	}
	f.layer, f.written = EntryLayer, map[string]uint32{}
	f.content.Users = make(map[string]limits.Named, len(n.Content)/2)
	for key, value := range f.pairs(n, at) {
		pattern := limits.IsPattern(key.Value)
		if pattern && !f.isUsablePattern(f.at(key), key.Value, at) {
			continue
		}
		wire := limits.Key(key.Value)
		f.content.Users[wire] = limits.Named{Entry: f.readUser(key, value), Line: uint32(key.Line)}
		if wire != key.Value {
			f.content.Names[wire] = key.Value
		}
		if pattern {
			f.content.Patterns = append(f.content.Patterns, key.Value)
		}
	}
}

// readUser reads a tier's name, or a mapping over a tier. It returns the index in
// limits.Content.Entries, or 0 after an error.
func (f *file) readUser(key, n *yaml.Node) uint32 {
	if t := f.tiers[n.Value]; t != nil && n.Kind == yaml.ScalarNode && n.Anchor == "" && (n.Style == 0 && n.ShortTag() == "!!str" || n.Style&^(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && n.Style != 0) {
		return t.index
	}
	// Users whose entries are written alike share all of it.
	text := textOf(n, key.Line)
	if i, ok := f.written[text]; ok {
		return i
	}
	where, before := place{of: "user " + quote(key.Value)}, len(f.found)+f.more
	var u userEntry
	f.decode(n, &u, where, userTag)
	u.at = f.at(key)
	tierAt := where.below("tier")
	f.checkTier(u.Tier, tierAt)
	switch {
	case u.Group.text == "" || slices.Contains(f.groups, u.Group.text):
	case len(f.groups) == 0:
		f.report(u.Group.at, "%s: unknown group %s; declare it at the top of the limit file, such as groups: {%s: {concurrent: 200}}", where.below("group"), quote(u.Group.text), shorten(u.Group.text))
	default:
		f.refuseUnknown(u.Group.at, where.below("group"), "group", u.Group.text, f.groups)
	}
	under := f.tierOf(u.Tier.text)
	f.checkEntry(&u.entry, under, where)
	f.checkExpiry(&u.entry, where)
	if len(f.found)+f.more > before {
		return 0
	}
	l := f.limitsOf(under.with(&u.entry, limits.OfUser))
	var then *limits.Entry
	if u.Until.said() {
		then = f.content.Tiers[cmp.Or(u.Then.text, l.Tier)]
	}
	i := f.addEntry(f.entryOf(l, u.Until.n, then), text)
	f.written[text] = i
	return i
}

func (f *file) addEntry(e *limits.Entry, text string) uint32 {
	f.content.Entries = append(f.content.Entries, e)
	f.text = append(f.text, text...)
	f.ends = append(f.ends, uint32(len(f.text)))
	return uint32(len(f.ends) - 1)
}

// textAt is the text of the entry with an index.
func (m *model) textAt(i uint32) []byte {
	begin := uint32(0)
	if i > 0 {
		begin = m.ends[i-1]
	}
	return m.text[begin:m.ends[i]]
}

// tierOf is the layer of a tier, or of the default one. A tier that is not known has no settings.
func (f *file) tierOf(name string) layer {
	if t := f.tiers[cmp.Or(name, f.content.DefaultTier)]; t != nil {
		return t.layer
	}
	return layer{}
}

// textOf writes an entry whose name is on a line as flow YAML, with the same line breaks, so that
// what is decoded from it is on the same lines. Entries that are written alike have the same text.
func textOf(n *yaml.Node, line int) string {
	var b bytes.Buffer
	writeText(&b, n, &line)
	return b.String()
}

func writeText(b *bytes.Buffer, n *yaml.Node, line *int) {
	for ; *line < n.Line; *line++ {
		b.WriteByte('\n')
	}
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		b.WriteString("!" + n.Anchor + n.Tag + " ") // an error, and no other text is equal
	}
	switch {
	case n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode:
		begin, end := byte('{'), byte('}')
		if n.Kind == yaml.SequenceNode {
			begin, end = '[', ']'
		}
		b.WriteByte(begin)
		for i, item := range n.Content {
			writeText(b, item, line)
			if begin == '{' && i%2 == 0 {
				b.WriteString(": ")
			} else {
				b.WriteByte(',')
			}
		}
		b.WriteByte(end)
	case n.Style == 0 && (n.ShortTag() != "!!str" || isWord(n.Value)):
		b.WriteString(n.Value)
	default:
		b.WriteString(strconv.Quote(n.Value))
	}
}
