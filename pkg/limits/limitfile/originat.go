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

// OriginOf returns where the file sets the limits of a user, who is named as in the file, or is
// UnreadableKey.
func OriginOf(s *limits.Set, user string) Origin {
	key := limits.KeyOf(user)
	noted, ok := s.Origins().(*origins)
	if !ok {
		return Origin{} // the set was made of no file
	}
	o := Origin{FileMode: noted.mode}
	// The set as it is now knows the tier, with patterns, ends and overrides; only the lines are looked up here.
	tier := s.User(key).Tier
	if tier == limits.ExemptTier {
		o.TierFrom, o.File, o.User = FromExempt, s.Name(), noted.exempt[user]
		// A name counts before patterns, as in the set.
		if o.User == 0 {
			o.Pattern = s.ExemptPatternOf(limits.Key(user))
			o.User = noted.exempt[o.Pattern]
		}
		return o
	}
	own := o.findUser(s, noted, user)
	if own != nil {
		o.setUserEntry(own, s.FromFile(key), s.Time())
	}
	if override, ok := s.OverrideOf(key); ok {
		o.Override = &override
	}
	named := o.setFields(noted, own, tier)
	switch {
	// No file can name these requests, so that an entry is none of theirs.
	case s.UnreadableTier() != "" && key == limits.UnreadableKey:
		o.TierFrom = FromUnreadable
	case own == nil && s.AnonymousTier() != "" && limits.Anonymous(key) && !named:
		o.TierFrom = FromAnonymous
	}
	return o
}

// findUser sets where a user, or a pattern that matches the name, is among the users, and returns
// how the entry is written, or nil.
func (o *Origin) findUser(s *limits.Set, noted *origins, user string) *written {
	key := limits.KeyOf(user)
	// By the exact name first, as the set looks it up.
	at, ok := s.Named(key)
	if !ok {
		// Of a user who is named exactly no pattern counts, however well it matches.
		user = s.PatternOf(key)
		if at, ok = s.Named(user); !ok {
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
	// The last file that begins before the line.
	after := sort.Search(len(o.files), func(i int) bool { return o.files[i].before >= int(line) })
	file = o.files[after-1]
	return file, int(line) - file.before
}

// setUserEntry adds what a user's own entry says besides limits.
func (o *Origin) setUserEntry(w *written, e *limits.Entry, now time.Time) {
	o.Comment, o.Then = w.comment, w.then
	if e.Until != 0 {
		o.Until = time.Unix(0, e.Until).UTC()
		o.Expired = !o.Until.After(now)
	}
	// After an entry's end the tier that follows is one that it names.
	if w.tier || o.Expired && o.Then != "" {
		o.TierFrom = FromEntry
	}
}

// setFields sets the fields of all layers, and reports whether an override names a tier.
func (o *Origin) setFields(noted *origins, own *written, tier string) (named bool) {
	// Before the layers: what the entry says is left out if an override names a tier.
	var override *written
	if o.Override != nil {
		override = noted.overrides[o.Override.User]
		named = override.tier
	}
	all := collector{}
	// The tier is the one that counts now: after an entry's end, that which follows.
	of := noted.tiers[tier]
	o.Tier = of.line
	all.addLayer(of.written, FieldOrigin{File: noted.files[0].name, Line: of.line})
	// A tier that an override names takes the place of all that the entry says.
	if own != nil && !o.Expired && !named {
		all.addLayer(own, FieldOrigin{File: o.File, Line: o.User, Layer: EntryLayer})
	}
	if override != nil {
		all.addLayer(override, FieldOrigin{Layer: OverrideLayer})
	}
	o.Fields = slices.SortedFunc(maps.Values(all), func(a, b FieldOrigin) int { return cmp.Compare(a.Name, b.Name) })
	return named
}

// collector are fields by name, as one layer after the other sets them.
type collector map[string]FieldOrigin

// addLayer adds what is written, and drops what that replaces. The origin is that of the layer.
func (c collector) addLayer(w *written, origin FieldOrigin) {
	for _, m := range w.marks {
		if m.line == dropped {
			c.removeField(fieldName(m.path))
			continue
		}
		of := origin
		of.Name, of.Line = fieldName(m.path), origin.Line+m.line
		c[of.Name] = of
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
	// Of the other fields of three parts, none is a limit by windows.
	if len(parts) < 3 || parts[0] != "requests" && parts[0] != "costs" {
		return path
	}
	for _, w := range limits.CostWindows {
		switch {
		case parts[2] != w.String():
		case parts[0] == "costs":
			return "costs." + limits.Cost{Unit: parts[1], Window: w}.Name()
		default:
			return "requests." + limits.RateName(parts[1], w)
		}
	}
	return path
}

func (c collector) removeField(name string) {
	for other := range c {
		// Both kinds of names that lie below: requests.GET.burst and requests.GET/minute.
		if below, ok := strings.CutPrefix(other, name); ok && (below == "" || below[0] == '.' || below[0] == '/') {
			delete(c, other)
		}
	}
}
