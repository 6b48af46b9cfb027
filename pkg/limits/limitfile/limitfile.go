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
	f := &file{problems: problems{file: name}, resolver: newResolver(&model{classes: classes, tiers: map[string]*tier{}, exempt: map[string]int{}})}
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
	calendar  *limits.Calendar // nil if days and months are those of UTC
}

type tier struct {
	layer
	line  int    // 0 if the mapping has no value, which is an error
	entry uint32 // of all users with the name of the tier and nothing else
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

// fileFields are the fields of a limit file, as errors list them.
var fileFields = []string{"version", "default_tier", "tiers", "users", "mode", "anonymous_tier", "unreadable", "classes", "exempt", "queues", "workers", "failed_auth", "per_address", "costs", "windows"}

func (f *file) readRoot(root *yaml.Node) {
	if version := lookup(root, "version"); version != nil && !f.readVersion(version) {
		return // only a reader of that version knows the other fields
	}
	nodes := map[string]*yaml.Node{}
	var fields []field
	for _, name := range fileFields {
		fields = append(fields, field{name, func(_ place, n *yaml.Node) { nodes[name] = n }})
	}
	f.readFields(root, place{of: "the file"}, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}", fields...)
	if root.Kind != yaml.MappingNode {
		return
	}
	if nodes["version"] == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	tierName := func(to *string) func(place, *yaml.Node) {
		return func(at place, n *yaml.Node) { *to = f.readTierName(n, at) }
	}
	// In the order of what names what: modes, classes, units and services come before tiers.
	for _, part := range []field{
		{"mode", f.readFileMode}, {"windows", f.readWindows}, {"classes", f.readClasses}, {"costs", f.readCostUnits}, {"queues", f.readQueues},
		{"failed_auth", f.readFailedAuth}, {"per_address", f.readPerAddress},
		{"tiers", func(_ place, n *yaml.Node) { f.readTiers(n, nodes["default_tier"]) }},
		{"default_tier", tierName(&f.content.DefaultTier)},
		{"anonymous_tier", tierName(&f.content.AnonymousTier)}, {"unreadable", tierName(&f.content.UnreadableTier)},
		{"workers", f.readDedicated}, {"exempt", f.readExempt}, {"users", f.readUsers},
	} {
		switch n := nodes[part.name]; {
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
		f.mode, f.modeLine, f.content.Mode = limits.Mode(i), n.Line, limits.Mode(i)
	}
}
