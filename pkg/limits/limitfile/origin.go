package limitfile

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Origin tells where a limit file says what a user may do. All lines are from 1.
type Origin struct {
	// File is the file that names the user, the limit file or one of its users_from, and
	// User the line there. They are "" and 0 when no file does.
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

	// Overrides are those that count for the user, sorted by endpoint: those for
	// everywhere, and those for the endpoint that was asked about. All other fields
	// are what the file says, except that Tier is that of the tier which they name.
	Overrides []limits.Override

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
	// "requests.GET.burst" and "requests.GET.mode" beside it.
	Name     string
	Line     int    // 0 in OverrideLayer
	File     string // the limit file, or the one of users_from that has the entry; "" in OverrideLayer
	Layer    Layer
	Endpoint bool // for the endpoint that was asked about, not for everywhere
}

// Layer is who sets a field. A higher layer counts over a lower one.
type Layer uint8

// The layers.
const (
	TierLayer     Layer = iota
	EntryLayer          // the user's own entry
	OverrideLayer       // an override, which is in no file
)

// OriginAt returns where the file sets the limits of a user at an endpoint ("" for everywhere), or at
// All for those over all endpoints together (see Together). The user is named as in the file, or by
// their hidden key, or UnreadableKey. By a hidden key it looks at all users, otherwise at no more than
// was noted of this one when the file was read.
func OriginAt(s *limits.Set, endpoint, user string) Origin {
	file, key, who := s, s.Key(user), append(s.Keys(user), user)
	if s.NamedSet() != nil { // what the file says is said of names
		file, user = s.NamedSet(), s.NameOf(user)
	}
	noted, ok := file.Origins().(*origins)
	if !ok {
		return Origin{} // the set was made of no file
	}
	o := Origin{FileMode: noted.mode}
	tier := s.User(key).Tier
	if tier == limits.ExemptTier {
		o.TierFrom, o.File, o.User = FromExempt, s.Name(), noted.exempt[user]
		if o.User == 0 {
			o.Pattern = file.ExemptPatternOf(limits.Key(user))
			o.User = noted.exempt[o.Pattern]
		}
		return o
	}
	own := o.findUser(file, noted, user)
	if own != nil {
		o.setUserEntry(own, file.FromFile(file.Key(user)), s.Time())
	}
	if s.NamedSet() != nil {
		o.Comment = "" // free text, which may well have their name
	}
	o.Overrides = overridesOf(s, endpoint, who...)
	named := o.setFields(noted, s.Origins().(*origins), own, tier, endpoint)
	switch {
	case s.UnreadableTier() != "" && key == limits.UnreadableKey:
		o.TierFrom = FromUnreadable
	case own == nil && s.AnonymousTier() != "" && limits.Anonymous(key) && !named:
		o.TierFrom = FromAnonymous
	}
	return o
}

// findUser sets where a user, or a pattern that matches the name, is among the users, and returns
// how the entry is written, or nil.
func (o *Origin) findUser(file *limits.Set, noted *origins, user string) *written {
	key := file.Key(user)
	at, ok := file.Named(key)
	if !ok {
		user = file.PatternOf(key)
		if at, ok = file.Named(user); !ok {
			return nil
		}
	}
	if limits.IsPattern(user) {
		o.Pattern = user
	}
	var in fileOrigin
	in, o.User = noted.find(at.Line)
	o.File = in.name
	return noted.entries[at.Entry]
}

// find returns a line of all files together as one of its file.
func (o *origins) find(line uint32) (file fileOrigin, inFile int) {
	after := sort.Search(len(o.files), func(i int) bool { return o.files[i].before >= int(line) })
	file = o.files[after-1]
	return file, int(line) - file.before
}

// setUserEntry adds what a user's own entry says besides limits.
func (o *Origin) setUserEntry(w *written, e *limits.Entry, now time.Time) {
	o.Comment, o.Then = w.comment, w.then
	if e.More != nil && e.More.Until != 0 {
		o.Until = time.Unix(0, e.More.Until).UTC()
		o.Expired = !o.Until.After(now)
	}
	if w.tier || o.Expired && o.Then != "" {
		o.TierFrom = FromEntry
	}
}

// overridesOf are those in force that count for a user at an endpoint.
func overridesOf(s *limits.Set, endpoint string, users ...string) []limits.Override {
	return slices.DeleteFunc(s.Overrides(), func(o limits.Override) bool {
		return !o.AppliesTo(users...) || o.Endpoint != "" && o.Endpoint != endpoint
	})
}

// setFields sets the fields of all layers, and reports whether an override names a tier.
func (o *Origin) setFields(noted, ofOverrides *origins, own *written, tier, endpoint string) (named bool) {
	for _, override := range o.Overrides {
		w := ofOverrides.overrides[overrideID(override)]
		named = named || w.tier
	}
	all := collector{}
	of := noted.tiers[tier]
	o.Tier = of.line
	all.addLayer(of.written, FieldOrigin{File: noted.files[0].name, Line: of.line}, endpoint)
	// A tier that an override names takes the place of all that the entry says.
	if own != nil && !o.Expired && !named {
		all.addLayer(own, FieldOrigin{File: o.File, Line: o.User, Layer: EntryLayer}, endpoint)
	}
	for _, override := range o.Overrides {
		all.addLayer(ofOverrides.overrides[overrideID(override)], FieldOrigin{Layer: OverrideLayer}, endpoint)
	}
	o.Fields = slices.SortedFunc(maps.Values(all), func(a, b FieldOrigin) int { return cmp.Compare(a.Name, b.Name) })
	return named
}

// FieldOrigin returns who sets a field: the field itself, or the mapping around it that
// was set as a whole (requests: unlimited). It is false when nothing does.
func (o Origin) FieldOrigin(name string) (FieldOrigin, bool) {
	for ; name != ""; name = parent(name) {
		for _, f := range o.Fields {
			if f.Name == name {
				return f, true
			}
		}
	}
	return FieldOrigin{}, false
}

// parent is the path of the mapping around a field, or "".
func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' {
			return path[:i]
		}
	}
	return ""
}

// collector are fields by name, as one layer after the other sets them.
type collector map[string]FieldOrigin

// addLayer adds what is written of everywhere and of an endpoint, and drops what that replaces. The
// origin is that of the layer.
func (c collector) addLayer(w *written, origin FieldOrigin, endpoint string) {
	for _, m := range w.marks {
		switch {
		// Of what is said of everywhere, only the mode is said of all endpoints together, too.
		case m.endpoint == "" && endpoint == limits.All && m.path != "mode":
		case m.endpoint != "" && m.endpoint != endpoint:
		case m.line == dropped:
			c.removeField(fieldName(m.path))
		default:
			of := origin
			of.Name, of.Line, of.Endpoint = fieldName(m.path), origin.Line+m.line, m.endpoint != ""
			c[of.Name] = of
		}
	}
}

// fieldName is the name of a field by its path in the file, where a limit may be a mapping.
func fieldName(path string) string {
	switch path {
	case "concurrent.limit":
		return "concurrent"
	case "jobs": // a number, in place of a mapping with the total
		return "jobs.total"
	}
	parts := strings.Split(path, ".")
	if len(parts) < 3 || parts[0] != "requests" {
		return path
	}
	for _, w := range limits.Windows {
		if parts[2] == w.String() {
			return "requests." + limits.RateName(parts[1], w)
		}
	}
	return path
}

func (c collector) removeField(name string) {
	for other := range c {
		if below, ok := strings.CutPrefix(other, name); ok && (below == "" || below[0] == '.' || below[0] == '/') {
			delete(c, other)
		}
	}
}
