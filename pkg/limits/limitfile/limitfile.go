// Package limitfile reads limit files.
//
// Parse turns a file into a limits.Set, or reports all errors, each with its line, its column
// and what would be valid. It works in three steps. Decode: yaml.v3 makes nodes of the text
// (yaml.go). Validate: one reader for each part of the file checks its node and keeps what the
// node says (limitfile.go, users.go, entry.go, classes.go, costs.go, jobs.go); the mapping of a tier, a
// user or an override becomes a list of settings, each with its line. Resolve: settings are laid
// over those of the tier, and become limits.Limits (resolve.go).
//
// WithOverrides lays overrides by hand over a Set, and OriginOf tells which lines set a user's
// limits; both use the same settings. Only Load and a Loader open files.
package limitfile

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxFileSize is the largest limit file that is read, in bytes: room for more than a million users.
const MaxFileSize = 64 << 20

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
	f := newFile(name, newModel())
	f.content = limits.Content{Name: name, Tiers: map[string]*limits.Entry{}, Users: map[string]limits.Named{}, Names: map[string]string{}}
	f.written, f.shapes = map[packed]uint32{}, map[string]*spec{}
	if root := f.decode(data); root != nil {
		f.readRoot(root)
	}
	if most := len(f.content.Patterns) + f.exemptPatterns; most > maxPatterns {
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
}

type tier struct {
	layer
	line  int    // 0 if the mapping has no value, which is an error
	entry uint32 // of all users with the name of the tier and nothing else
}

func newModel() *model {
	return &model{classes: classes, tiers: map[string]*tier{}, exempt: map[string]int{}}
}

type file struct {
	problems
	resolver // with the model
	content  limits.Content

	exemptPatterns int
	oddPatterns    int               // those that are neither prefix* nor *suffix
	written        map[packed]uint32 // indexes of entries
	shapes         map[string]*spec
}

func newFile(name string, m *model) *file {
	return &file{problems: problems{file: name}, resolver: newResolver(m)}
}

// fileFields are the fields of a limit file, as errors list them.
var fileFields = []string{"version", "default_tier", "tiers", "users", "mode", "anonymous_tier", "unreadable", "classes", "exempt", "queues", "workers", "failed_auth", "per_address", "costs"}

func (f *file) readRoot(root *yaml.Node) {
	fields, ok := f.collect(root)
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
		{"workers", f.readDedicated}, {"exempt", f.readExempt}, {"users", f.readUsers},
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

// collect returns the fields of the file by name, and whether the file is a mapping of a version
// that is known.
func (f *file) collect(root *yaml.Node) (fields map[string]*yaml.Node, ok bool) {
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return nil, false // only a reader of that version knows the other fields
	}
	fields = map[string]*yaml.Node{}
	where := place{kind: "the file"}
	for key, value := range f.eachEntry(root, where, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}") {
		if slices.Contains(fileFields, key.Value) {
			fields[key.Value] = value
		} else {
			f.refuseUnknown(key, where, "field", fileFields)
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
