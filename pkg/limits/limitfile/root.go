package limitfile

import (
	"maps"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// The fields of a limit file, and of one of its users_from, as errors list them.
var (
	fileFields      = []string{"version", "default_tier", "tiers", "users", "mode", "anonymous_tier", "unreadable", "users_from", "classes", "exempt", "queues", "workers", "failed_auth", "per_address", "costs"}
	usersFileFields = []string{"version", "users"}
)

func (f *file) readRoot(root *yaml.Node) {
	said, ok := f.collect(root, place{kind: "the file"}, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}", fileFields)
	if !ok {
		return
	}
	// The errors of this version are still told: it is the only one so far.
	if said["version"] == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	// The order is that of what names what, not that of the file.
	read := func(name string, read func(at place, n *yaml.Node)) {
		if n := said[name]; n != nil {
			read(place{field: name}, n)
		}
	}
	// Modes, classes, units and services are known before tiers and users name them.
	read("mode", f.readFileMode)
	read("classes", f.readClasses)
	read("costs", f.readCostUnits)
	read("queues", f.readQueues)
	read("failed_auth", f.readFailedAuth)
	read("per_address", f.readPerAddress)
	f.readTiersAndDefaults(root, said)
	read("workers", f.readDedicated)
	read("exempt", f.readExempt)
	read("users_from", f.readUsersFrom)
	read("users", f.readUsers)
}

// readUsersFile reads a file of users_from.
func (f *file) readUsersFile(root *yaml.Node) {
	said, ok := f.collect(root, place{kind: "a file of users_from"}, "{users: {alice: free}}", usersFileFields)
	if users := said["users"]; users != nil {
		f.readUsers(place{field: "users"}, users)
	} else if ok {
		// An empty file may be one that somebody has not finished to write.
		f.errorf(root, "users is missing; write users: {} for none")
	}
}

// collect returns the fields of a file by name, because they are read in another order than they are
// written. It reports whether the file is a mapping of a version that is known.
func (f *file) collect(root *yaml.Node, where place, example string, valid []string) (said map[string]*yaml.Node, ok bool) {
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return nil, false // what else the file says is not for this version to judge
	}
	said = map[string]*yaml.Node{}
	for key, value := range f.eachEntry(root, where, example) {
		switch {
		case slices.Contains(valid, key.Value):
			said[key.Value] = value
		// Known, and in the wrong file: the error says where it belongs.
		case slices.Contains(fileFields, key.Value):
			f.errorf(key, "%s has users only; write %s in %s", where, key.Value, f.sources[0].name)
		default:
			f.refuseUnknown(key, where, "field", valid)
		}
	}
	return said, root.Kind == yaml.MappingNode
}

func (f *file) readVersion(n *yaml.Node) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int":
		f.errorf(n, "version must be the number 1, got %s", describe(n))
	// A later version may mean another thing by every field.
	case n.Value != "1":
		f.errorf(n, "version %s is not supported (valid: 1)", shorten(n.Value))
	default:
		return true
	}
	return false
}

func (f *file) readFileMode(at place, n *yaml.Node) {
	f.readMode(&f.mode, at, n)
	// A second time, because drafts need it before the set does.
	f.content.Mode, f.origins.mode = f.mode, n.Line
}

func (f *file) readTiersAndDefaults(root *yaml.Node, said map[string]*yaml.Node) {
	tiers, defaultTier := said["tiers"], said["default_tier"]
	// Users may all be in files of users_from, but tiers have no other place.
	if tiers == nil {
		f.errorf(root, "tiers is missing; write one at least, such as tiers: {free: {concurrent: 10}}")
	} else {
		f.readTiers(tiers, defaultTier)
	}
	switch {
	// That it is missing is told with what it could be, if that is known.
	case defaultTier != nil:
	// Unless the file has none at all: then whatever is named cannot be judged.
	case len(f.tiers) > 0:
		f.errorf(root, "default_tier is missing; name one of the tiers: %s", joinChoices(f.tierNames))
	default:
		f.errorf(root, "default_tier is missing; name one of the tiers")
	}
	for field, to := range map[string]*string{
		"default_tier": &f.content.DefaultTier, "anonymous_tier": &f.content.AnonymousTier, "unreadable": &f.content.UnreadableTier,
	} {
		// Of each it is known only now whether there is such a tier.
		if n := said[field]; n != nil {
			*to = f.readTierName(n, place{field: field})
		}
	}
}

// readTiers reads all tiers. A tier with errors is known too, so that its users are not errors
// as well.
func (f *file) readTiers(n, defaultTier *yaml.Node) {
	for key, value := range f.eachEntry(n, place{field: "tiers"}, "{free: {concurrent: 10}}") {
		switch {
		// In the form of names that are their own keys, so that it can be shown and sent as it is.
		case !limits.IsOwnKey(key.Value):
			f.errorf(key, "the tier name %s is not usable; write 1 to %d bytes without control characters, and no ~ in front", quote(key.Value), limits.MaxOwnKey)
		case key.Value == limits.ExemptTier:
			f.errorf(key, "the tier name exempt is taken: it is the tier of those who are under exempt")
		default:
			f.tiers[key.Value] = f.readTier(key, value)
		}
	}
	f.tierNames = slices.Sorted(maps.Keys(f.tiers))
	byDefault := ""
	if defaultTier != nil {
		byDefault = defaultTier.Value
	}
	// Now that all tiers are read: others take the jobs of the default one, wherever it stands.
	f.completeTiersJobs(byDefault)
	for name, tier := range f.tiers {
		f.content.Tiers[name] = f.sharedEntry(f.entryOf(tier))
		f.recordTier(name)
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "tiers is empty; write one at least, such as {free: {concurrent: 10}}")
	}
}

func (f *file) readTier(key, n *yaml.Node) layer {
	where := place{kind: "tier", name: key.Value}
	f.beginEntry(key)
	// No limits at all must be written down: a value that was forgotten looks the same.
	if isNull(n) {
		f.errorf(n, "%s has no value; write {} for a tier without limits", where)
		return layer{tier: key.Value}
	}
	e := f.readEntry(layer{tier: key.Value}, where, n, "{concurrent: 10}", tierFields)
	f.origins.tiers[key.Value] = tierOrigin{key.Line, f.takeWritten()}
	return e.layer
}

// readTierName reads the name of a tier of the file. It is "" after an error. When
// the file has no tiers, which is an error already, any name is as good.
func (f *file) readTierName(n *yaml.Node, where place) string {
	switch _, ok := f.tiers[n.Value]; {
	case !f.isScalar(n, where, "the name of a tier") || f.refuseBool(n, where):
	case ok:
		return n.Value
	case len(f.tiers) > 0:
		f.refuseUnknown(n, where, "tier", f.tierNames)
	}
	return ""
}
