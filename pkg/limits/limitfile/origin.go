package limitfile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

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
// their hidden key, or UnreadableKey. It reads Source again, which takes nearly as
// long as Parse: it is for people's questions.
func OriginAt(s *limits.Set, endpoint, user string) Origin {
	file, key, who := s, s.Key(user), append(s.Keys(user), user)
	if s.NamedSet() != nil { // what the file says is said of names
		file, user = s.NamedSet(), s.NameOf(user)
	}
	sources, err := unbundle(file.Source())
	if err != nil {
		return Origin{} // cannot be: Parse has read it
	}
	sources, _ = splitOverrides(sources)
	root := sources[0].rootNode()
	o := Origin{}
	if mode, _ := findEntry(root, "mode"); mode != nil {
		o.FileMode = mode.Line
	}
	tier := s.User(key).Tier
	if tier == limits.ExemptTier {
		o.TierFrom, o.File = FromExempt, s.Name()
		o.User, o.Pattern = exemptAt(s, root, user)
		return o
	}
	name := namedBy(s, key, user)
	if limits.IsPattern(name) {
		o.Pattern = name
	}
	own := o.findUser(root, sources, s.Name(), name)
	o.setUserEntry(own, s.Time())
	if s.NamedSet() != nil {
		o.Comment = "" // free text, which may well have their name
	}
	o.Overrides = overridesOf(s, endpoint, who...)
	switch {
	case s.UnreadableTier() != "" && key == limits.UnreadableKey:
		o.TierFrom = FromUnreadable
	case own == nil && s.AnonymousTier() != "" && limits.Anonymous(key) && !namesTier(o.Overrides):
		o.TierFrom = FromAnonymous
	}
	o.setFields(root, own, s.Name(), tier, endpoint)
	return o
}

// findUser sets where a name or pattern is among the users, and returns what is said there,
// or nil.
func (o *Origin) findUser(root *yaml.Node, sources []source, limitFile, name string) (own *yaml.Node) {
	at, own := findEntry(lookup(root, "users"), name)
	file := limitFile
	for i := 1; i < len(sources) && at == nil; i++ {
		at, own = sources[i].entryOfUser(name)
		file = nameBeside(limitFile, sources[i].name)
	}
	if at != nil {
		o.File, o.User = file, at.Line
	}
	return own
}

// setFields sets the fields of all layers.
func (o *Origin) setFields(root, own *yaml.Node, limitFile, tier, endpoint string) {
	fields := collector{}
	if key, value := findEntry(lookup(root, "tiers"), tier); key != nil {
		o.Tier = key.Line
		fields.addLayers(value, FieldOrigin{File: limitFile}, endpoint)
	}
	// A tier that an override names takes the place of all that the entry says.
	if own != nil && !o.Expired && !namesTier(o.Overrides) {
		fields.addLayers(own, FieldOrigin{File: o.File, Layer: EntryLayer}, endpoint)
	}
	for _, override := range o.Overrides {
		if n, err := jsonNode(override.Limits); err == nil { // Parse has read it
			fields.addLayers(n, FieldOrigin{Layer: OverrideLayer, Endpoint: override.Endpoint != ""}, endpoint)
		}
	}
	o.Fields = slices.SortedFunc(maps.Values(fields), func(a, b FieldOrigin) int { return cmp.Compare(a.Name, b.Name) })
}

// overridesOf are those in force that count for a user at an endpoint.
func overridesOf(s *limits.Set, endpoint string, users ...string) []limits.Override {
	return slices.DeleteFunc(s.Overrides(), func(o limits.Override) bool {
		return !o.AppliesTo(users...) || o.Endpoint != "" && o.Endpoint != endpoint
	})
}

// namesTier reports whether overrides take the place of all that a file says.
func namesTier(overrides []limits.Override) bool {
	return slices.ContainsFunc(overrides, func(o limits.Override) bool {
		n, err := jsonNode(o.Limits)
		return err == nil && (n.Kind == yaml.ScalarNode || lookup(n, "tier") != nil)
	})
}

// namedBy is what the file names a user by: the name, a pattern, or "" for neither.
func namedBy(s *limits.Set, key, user string) string {
	if s.NamesExactly(key) {
		return user
	}
	return s.PatternOf(key)
}

// exemptAt returns the line of exempt.users that names a user, and the pattern with
// which it does.
func exemptAt(s *limits.Set, root *yaml.Node, user string) (line int, pattern string) {
	users := lookup(lookup(root, "exempt"), "users")
	if users == nil {
		return 0, ""
	}
	lines := map[string]int{}
	for _, n := range users.Content {
		lines[n.Value] = n.Line
	}
	if lines[user] == 0 {
		pattern = s.ExemptPatternOf(limits.Key(user))
		return lines[pattern], pattern
	}
	return lines[user], ""
}

// setUserEntry adds what a user's own entry says besides limits.
func (o *Origin) setUserEntry(n *yaml.Node, now time.Time) {
	if n == nil {
		return
	}
	o.Comment = textOf(lookup(n, "comment"))
	if until := lookup(n, "until"); until != nil {
		o.Until, _ = parseTime(until.Value)
		o.Until = o.Until.UTC()
		o.Expired = !o.Until.After(now)
	}
	o.Then = textOf(lookup(n, "then"))
	if n.Kind == yaml.ScalarNode || lookup(n, "tier") != nil || o.Expired && o.Then != "" {
		o.TierFrom = FromEntry
	}
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

// collector are fields by name, as one layer after the other sets them.
type collector map[string]FieldOrigin

// addLayers adds what a tier or a user sets everywhere, and at an endpoint. The origin
// tells the rest of a FieldOrigin.
func (c collector) addLayers(n *yaml.Node, origin FieldOrigin, endpoint string) {
	// Of what is said of everywhere, only the mode is said of all endpoints together, too.
	if mode := lookup(n, "mode"); endpoint != limits.All {
		c.addLayer(n, origin)
	} else if mode != nil {
		c.replaceField("mode", mode, origin) // all that these limits have of everywhere
	}
	if at := lookup(lookup(n, "endpoints"), endpoint); at != nil {
		origin.Endpoint = true
		c.addLayer(at, origin)
	}
}

// addLayer adds what a mapping sets, and drops what that replaces.
func (c collector) addLayer(n *yaml.Node, origin FieldOrigin) {
	for key, value := range children(n) {
		name := key.Value
		switch {
		case name == "jobs":
			c.addJobs(value, origin)
		case !slices.Contains(limitFieldNames, name):
		case value.Kind != yaml.MappingNode:
			c.replaceField(name, value, origin)
		case name == "requests":
			for class, of := range children(value) {
				c.addRate("requests."+class.Value, of, origin)
			}
		case name == "concurrent":
			c.replaceField(name, lookup(value, "limit"), origin)
			if mode := lookup(value, "mode"); mode != nil {
				c.addField("concurrent.mode", mode, origin)
			}
		default:
			for key, value := range children(value) {
				c.addField(name+"."+key.Value, value, origin)
			}
		}
	}
}

// addJobs adds what is said of background jobs. What a number or a mapping does not say
// stays.
func (c collector) addJobs(n *yaml.Node, origin FieldOrigin) {
	if n.Kind != yaml.MappingNode {
		if !isUnlimited(n) {
			c.replaceField("jobs.total", n, origin)
			return
		}
		c.replaceField("jobs.total", n, origin)
		c.replaceField("jobs.queues", n, origin)
		return
	}
	for key, value := range children(n) {
		name := "jobs." + key.Value
		if value.Kind != yaml.MappingNode {
			c.replaceField(name, value, origin)
		}
		for service, limit := range children(value) {
			c.addField(name+"."+service.Value, limit, origin)
		}
	}
}

// addRate adds the limits of a class, in place of those that were there.
func (c collector) addRate(name string, n *yaml.Node, origin FieldOrigin) {
	c.removeField(name)
	if n.Kind != yaml.MappingNode {
		c.addField(name, n, origin)
	}
	for key, value := range children(n) {
		switch key.Value {
		case limits.Second.String():
			c.addField(name, value, origin)
		case limits.Minute.String(), limits.Hour.String():
			c.addField(name+"/"+key.Value, value, origin)
		default:
			c.addField(name+"."+key.Value, value, origin)
		}
	}
}

// replaceField adds a field in place of it and all that is below it.
func (c collector) replaceField(name string, n *yaml.Node, origin FieldOrigin) {
	c.removeField(name)
	c.addField(name, n, origin)
}

func (c collector) removeField(name string) {
	for other := range c {
		if below, ok := strings.CutPrefix(other, name); ok && (below == "" || below[0] == '.' || below[0] == '/') {
			delete(c, other)
		}
	}
}

func (c collector) addField(name string, n *yaml.Node, origin FieldOrigin) {
	origin.Name, origin.Line = name, n.Line
	c[name] = origin
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

// textOf is the text of a node, "" for none.
func textOf(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}

// children yields the entries of a mapping; anything else has none.
func children(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// findEntry returns the entry of that name in a mapping, or nil.
func findEntry(n *yaml.Node, name string) (key, value *yaml.Node) {
	for key, value := range children(n) {
		if key.Value == name {
			return key, value
		}
	}
	return nil, nil
}
