package limitfile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Origin tells where a limit file says what a user may do. All lines are from 1.
type Origin struct {
	// File is the limit file, and User the line that names the user there. They are "" and 0 when none does.
	File    string
	User    int
	Pattern string // the pattern that matches the name; "" when an entry has the name itself, or there is none
	Comment string // of the user's entry

	Tier     int // the line of the user's tier in the limit file; 0 for exempt users
	TierFrom TierSource

	// Until is when what the file says of the user ends, zero when never, and Then the
	// user's tier from then on. Expired is whether that was before the Set's time: the
	// tier is then the one of Then, and no field is of the user's own entry.
	Until   time.Time
	Then    string
	Expired bool

	// Override is what counts for the user, or nil. All other fields are what the file
	// says, except that Tier is that of the tier which the override names.
	Override *limits.Override

	FileMode int // the line of the mode of the whole file; 0 when it has none

	// Fields are what the tier, the user's entry and the overrides set, sorted by name. Each
	// replaces the field of the same name in the layer below it.
	Fields []FieldOrigin
}

// TierSource tells why a user has their tier.
type TierSource uint8

// The sources of a tier.
const (
	FromDefault    TierSource = iota // no file names a tier for the user: the default one, with or without limits of their own
	FromEntry                        // the user's entry names it, or names it as the one that follows
	FromAnonymous                    // the requests have no name
	FromUnreadable                   // the user is UnreadableKey, which has a tier of its own
	FromExempt                       // the user is not limited; File and User are where exempt says so
)

// FieldOrigin is one field that a file sets, to a value or to unlimited.
type FieldOrigin struct {
	// Name is the field's path, such as "concurrent" or "bandwidth". A request limit
	// is "requests." and its name ("requests.GET", "requests.GET/minute"), with
	// "requests.GET.burst" and "requests.GET.mode" with it; one of costs is "costs.tokens/day".
	Name  string
	Line  int    // 0 in OverrideLayer
	File  string // the limit file; "" in OverrideLayer
	Layer Layer
}

// Layer is who sets a field. A higher layer counts over a lower one.
type Layer uint8

// The layers.
const (
	TierLayer     Layer = iota
	EntryLayer          // the user's own entry
	OverrideLayer       // an override, which is in no file
)

// FieldOrigin returns who sets a field: the field itself, or the mapping around it that
// was set as a whole (requests: unlimited). It is false when nothing does.
func (o Origin) FieldOrigin(name string) (FieldOrigin, bool) {
	for _, f := range o.Fields {
		if f.Name == name {
			return f, true
		}
	}
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return o.FieldOrigin(name[:i])
	}
	return FieldOrigin{}, false
}

// OriginOf returns where the file sets the limits of a user, who is named as in the file, or is
// UnreadableKey.
func OriginOf(s *limits.Set, user string) Origin {
	key := limits.KeyOf(user)
	m, ok := s.Origins().(*model)
	if !ok {
		return Origin{} // the set was made of no file
	}
	o := Origin{FileMode: int(m.mode.line)}
	// The set knows the tier, with patterns, ends and overrides. Only the lines are looked up here.
	tier := s.User(key).Tier
	if tier == limits.ExemptTier {
		o.TierFrom, o.File, o.User = FromExempt, s.Name(), m.exempt[user]
		if o.User == 0 {
			o.Pattern = s.ExemptPatternOf(limits.Key(user))
			o.User = m.exempt[o.Pattern]
		}
		return o
	}
	own := o.setUser(s, m, user, key)
	override := &entry{}
	if found, ok := s.OverrideOf(key); ok {
		o.Override, override = &found, m.overrides[found.User]
	}
	// The tier is the one that counts now: after an entry's end, the tier that follows.
	o.Tier = m.tiers[tier].line
	all := m.tiers[tier].entry
	// A tier that an override names takes the place of all that the entry says.
	if !o.Expired && !override.Tier.said() {
		all = own.over(all)
	}
	all = override.over(all)
	all.eachField(func(name string, from scalar) {
		field := FieldOrigin{Name: name, Layer: from.layer}
		if from.layer != OverrideLayer {
			field.Line, field.File = int(from.line), s.Name()
		}
		o.Fields = append(o.Fields, field)
	})
	slices.SortFunc(o.Fields, func(a, b FieldOrigin) int { return cmp.Compare(a.Name, b.Name) })
	switch {
	// No file can name these requests, so that they have no entry.
	case s.UnreadableTier() != "" && key == limits.UnreadableKey:
		o.TierFrom = FromUnreadable
	case o.User == 0 && s.AnonymousTier() != "" && limits.Anonymous(key) && !override.Tier.said():
		o.TierFrom = FromAnonymous
	}
	return o
}

// setUser sets where a user, or a pattern that matches the name, is among the users, and returns
// the content of the entry.
func (o *Origin) setUser(s *limits.Set, m *model, user, key string) entry {
	text, at, name := m.named(s, key, user)
	if at == 0 {
		return entry{}
	}
	if limits.IsPattern(name) {
		o.Pattern = name
	}
	own := m.readText(text, at)
	o.File, o.User, o.Comment, o.Then = s.Name(), at, own.Comment.text, own.Then.text
	if own.Until.said() {
		o.Until = time.Unix(0, own.Until.n).UTC()
		o.Expired = !o.Until.After(s.Time())
	}
	// After an entry's end the tier that follows is one that it names.
	if own.Tier.said() || o.Expired && o.Then != "" {
		o.TierFrom = FromEntry
	}
	return own
}

// named returns the text of the entry of a user or of the user's pattern, its line, 0 if there is
// none, and the name that it has there.
func (m *model) named(s *limits.Set, key, user string) (text []byte, line int, name string) {
	// By the exact name first, as the set looks it up.
	at, ok := s.Named(key)
	if !ok {
		user = s.PatternOf(key)
		if at, ok = s.Named(limits.Key(user)); !ok {
			return nil, 0, ""
		}
	}
	return m.textAt(at.Entry), int(at.Line), user
}

// eachField calls of with each field that is set, named as FieldOrigin has it.
func (e *entry) eachField(of func(name string, from scalar)) {
	add := func(name string, from scalar) {
		if from.said() {
			of(name, from)
		}
	}
	add("group", e.Group)
	add("requests", e.Requests.unlimited)
	for _, class := range e.Requests.entries {
		name := "requests." + class.name
		for i, limit := range class.value.limits() {
			add(limits.RateName(name, limits.Windows[i]), limit)
		}
		add(name+".burst", class.value.Burst)
		add(name+".mode", class.value.Mode)
	}
	add("costs", e.Costs.unlimited)
	for _, unit := range e.Costs.entries {
		name := "costs." + unit.name
		add(name, unit.value.Unlimited)
		for i, limit := range unit.value.limits() {
			add(name+"/"+limits.Windows[i].String(), limit)
		}
		add(name+".mode", unit.value.Mode)
	}
	add("concurrent", e.Concurrent.Limit)
	add("concurrent.mode", e.Concurrent.Mode)
	add("bandwidth", e.Bandwidth.Unlimited)
	add("bandwidth.down", e.Bandwidth.Down)
	add("bandwidth.up", e.Bandwidth.Up)
	add("bandwidth.default_share", e.Bandwidth.DefaultShare)
	add("over_limit.concurrent", e.OverLimit.Concurrent)
	add("priority", e.Priority)
	add("mode", e.Mode)
	add("jobs.total", e.Jobs.Total)
	add("jobs.queues", e.Jobs.Queues.unlimited)
	for _, q := range e.Jobs.Queues.entries {
		add("jobs.queues."+q.name, q.value)
	}
	add("jobs.class", e.Jobs.Class)
}
