// Package limitfile reads limit files.
//
// Parse turns a file into a limits.Set, or reports all errors, each with its line, its column
// and what would be valid. It works in three steps. Decode: yaml.v3 makes nodes of the text
// (yaml.go). Validate: one reader for each part of the file checks its node and keeps what the
// node says (root.go, users.go, entry.go, classes.go, costs.go, jobs.go); the mapping of a tier, a
// user or an override becomes a list of settings, each with its line. Resolve: settings are laid
// over those of the tier, and become limits.Limits (resolve.go).
//
// WithOverrides lays overrides by hand over a Set, and OriginOf tells which lines set a user's
// limits; both use the same settings. Only ReadFiles and Load open files.
package limitfile

import (
	"bytes"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxFileSize is the largest limit file that is read, in bytes, with all files of
// its users_from: room for more than a million users.
const MaxFileSize = 64 << 20

// Load reads and parses a limit file and those of its users_from. The error is that
// of ReadFiles or of Parse.
func Load(path string) (*limits.Set, error) {
	files, err := ReadFiles(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, files.Data)
}

// Parse makes a Set of a limit file, or of the bundle that ReadFiles makes of one with
// users_from. The name stands for the file in errors, and its folder for that of the other
// files. The error is of type Errors. Parse keeps a copy of data.
//
// The Set is that of all times: nothing in it has expired (see Set.At).
func Parse(name string, data []byte) (*limits.Set, error) {
	f := newFile(name, newModel())
	f.content = limits.Content{Name: name, Tiers: map[string]*limits.Entry{}, Users: map[string]limits.Named{}, Names: map[string]string{}}
	f.written, f.scalars, f.shapes = map[written]uint32{}, map[string]uint32{}, map[string]*spec{}
	sources, err := unbundle(name, data)
	if err != nil {
		f.addError(1, 1, "%v", err)
		return nil, f.errors()
	}
	f.sources, f.bundled = sources, isBundle(data)
	lines := 0 // of the files before
	for i, s := range sources {
		f.openSource(i, s.name)
		f.files = append(f.files, fileOrigin{s.name, lines})
		lines += bytes.Count(s.data, []byte("\n")) + 1
		switch root := f.decode(s.data); {
		case root == nil:
		case i == 0:
			f.readRoot(root)
		default:
			f.readUsersFile(root)
		}
	}
	if most := len(f.content.Patterns) + f.exemptPatterns; most > maxPatterns {
		f.openSource(0, name)
		f.addError(1, 1, "the file has %d patterns of users; at most %d are possible", most, maxPatterns)
	}
	if len(f.found) > 0 {
		return nil, f.errors()
	}
	f.content.Source, f.content.Origins = bytes.Clone(data), f.model
	return limits.NewSet(f.content), nil
}

// model is what a file says, as far as overrides and OriginOf need it. A Set keeps it.
type model struct {
	mode      limits.Mode
	modeLine  int
	classes   []string            // what limits of requests may name
	services  []string            // of queues; nil if the file has none
	units     map[string]costUnit // nil if the file has none
	tiers     map[string]*tier
	tierNames []string // sorted
	exempt    map[string]int
	specs     []packed         // of users, by the index in limits.Content.Entries
	overrides map[string]*spec // by user
	files     []fileOrigin     // in the order in which they are read
}

// tier is what the file says of a tier.
type tier struct {
	layer
	line int // 0 if the mapping has no value, which is an error
}

// fileOrigin is a file, and how many lines those before it have: limits.Named numbers the lines of
// all files together.
type fileOrigin struct {
	name   string
	before int
}

func newModel() *model {
	return &model{classes: classes, tiers: map[string]*tier{}, exempt: map[string]int{}}
}

// written is how an entry is written.
type written struct{ shape, values string }

// file is a limit file, and those of its users_from, while they are read.
type file struct {
	problems
	resolver // with the model
	content  limits.Content
	sources  []source // the limit file, then those of users_from
	bundled  bool     // the files of users_from are among the sources

	exemptPatterns int
	oddPatterns    int                // those that are neither prefix* nor *suffix
	written        map[written]uint32 // indexes of entries by how they are written
	shapes         map[string]*spec
	scalars        map[string]uint32 // of entries that are the name of a tier
	room           []setting         // room for those of the entry that is read
	shape, values  []byte            // room for a key of written
}

func newFile(name string, m *model) *file {
	return &file{problems: problems{file: name}, resolver: newResolver(m)}
}

// The fields of a limit file, and of one of its users_from, as errors list them.
var (
	fileFields      = []string{"version", "default_tier", "tiers", "users", "mode", "anonymous_tier", "unreadable", "users_from", "classes", "exempt", "queues", "workers", "failed_auth", "per_address", "costs"}
	usersFileFields = []string{"version", "users"}
)

func (f *file) readRoot(root *yaml.Node) {
	fields, ok := f.collect(root, place{kind: "the file"}, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}", fileFields)
	if !ok {
		return
	}
	if fields["version"] == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	// In the order of what names what: modes, classes, units and services come before tiers.
	for _, part := range []struct {
		name string
		read func(at place, n *yaml.Node)
	}{
		{"mode", f.readFileMode}, {"classes", f.readClasses}, {"costs", f.readCostUnits}, {"queues", f.readQueues},
		{"failed_auth", f.readFailedAuth}, {"per_address", f.readPerAddress},
		{"tiers", func(_ place, n *yaml.Node) { f.readTiers(n, fields["default_tier"]) }},
		{"default_tier", func(at place, n *yaml.Node) { f.content.DefaultTier = f.readTierName(n, at) }},
		{"anonymous_tier", func(at place, n *yaml.Node) { f.content.AnonymousTier = f.readTierName(n, at) }},
		{"unreadable", func(at place, n *yaml.Node) { f.content.UnreadableTier = f.readTierName(n, at) }},
		{"workers", f.readDedicated}, {"exempt", f.readExempt}, {"users_from", f.readUsersFrom}, {"users", f.readUsers},
	} {
		n := fields[part.name]
		switch {
		case n != nil:
			part.read(place{field: part.name}, n)
		case part.name == "tiers":
			f.errorf(root, "tiers is missing; write one at least, such as tiers: {free: {concurrent: 10}}")
		case part.name == "default_tier" && len(f.tiers) > 0:
			f.errorf(root, "default_tier is missing; name one of the tiers: %s", joinChoices(f.tierNames))
		case part.name == "default_tier":
			f.errorf(root, "default_tier is missing; name one of the tiers")
		}
	}
}

// readUsersFile reads a file of users_from.
func (f *file) readUsersFile(root *yaml.Node) {
	fields, ok := f.collect(root, place{kind: "a file of users_from"}, "{users: {alice: free}}", usersFileFields)
	if users := fields["users"]; users != nil {
		f.readUsers(place{field: "users"}, users)
	} else if ok {
		f.errorf(root, "users is missing; write users: {} for none")
	}
}

// collect returns the fields of a file by name, and whether the file is a mapping of a version
// that is known.
func (f *file) collect(root *yaml.Node, where place, example string, valid []string) (fields map[string]*yaml.Node, ok bool) {
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return nil, false // only a reader of that version knows the other fields
	}
	fields = map[string]*yaml.Node{}
	for key, value := range f.eachEntry(root, where, example) {
		switch {
		case slices.Contains(valid, key.Value):
			fields[key.Value] = value
		case slices.Contains(fileFields, key.Value):
			f.errorf(key, "%s has users only; write %s in %s", where, key.Value, f.sources[0].name)
		default:
			f.refuseUnknown(key, where, "field", valid)
		}
	}
	return fields, root.Kind == yaml.MappingNode
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

func (f *file) readFileMode(at place, n *yaml.Node) {
	if i := f.readMode(at, n); i >= 0 {
		f.mode, f.modeLine = limits.Mode(i), n.Line
		f.content.Mode = f.mode
	}
}
