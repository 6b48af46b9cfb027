// Package limitfile reads limit files, and writes their JSON Schema.
//
// Parse turns a file into a limits.Set, or says everything that is wrong with it, each error
// with its line, its column and what would be valid. WithOverrides puts in force what an
// operator set over it, Hide makes the form of it that names nobody, and OriginAt
// tells which lines say what a user may do. Only ReadFile, ReadFiles and Load open files.
package limitfile

import (
	"maps"
	"path/filepath"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxFileSize is the largest limit file that is read, in bytes, with all files of
// its users_from: room for more than a million users.
const MaxFileSize = 64 << 20

const unlimited = "unlimited"

// The fields of a mapping, as errors list them.
var (
	fileFields      = []string{"version", "default_tier", "tiers", "users", "mode", "anonymous_tier", "unreadable", "users_from", "endpoints", "classes", "exempt", "queues", "failed_auth", "per_address"}
	usersFileFields = []string{"version", "users"}
	limitFieldNames = []string{"requests", "concurrent", "bandwidth", "over_limit", "priority", "mode"} // of endpoints
	tierFields      = slices.Concat(limitFieldNames, []string{"jobs", "endpoints", "comment"})
	userFields      = slices.Concat([]string{"tier"}, tierFields, []string{"until", "then"})
	rateFields      = []string{"second", "burst", "minute", "hour", "mode"}
	concurrentNames = []string{"limit", "mode"}
	bandwidthFields = []string{"down", "up", "default_share", "mode"}
	overLimitFields = []string{"concurrent"}
	togetherFields  = []string{"requests", "mode"} // of all endpoints together
	exemptFields    = []string{"users", "addresses", "paths"}
	jobsFields      = []string{"total", "queues", "class"}
	jobsClasses     = []string{limits.PriorityQueues, limits.DefaultQueues}
	workersFields   = []string{"priority", "default", "scheduled"}
	matchFields     = []string{"methods", "path_prefix", "path_regex", "query", "no_query", "headers"}
)

// Load reads and parses a limit file and those of its users_from. The error is that
// of ReadFile or of Parse.
func Load(path string) (*limits.Set, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse makes a Set of a limit file, or of the bundle that ReadFile makes of one
// with users_from; of the file alone Parse does not make one. The name stands for
// the file in errors, and its folder for that of the other files. The error is of
// type Errors, and tells everything that is wrong. An empty file is an error. Parse
// keeps a copy of data.
//
// The Set is that of all times: nothing in it has expired (see Set.At).
func Parse(name string, data []byte) (*limits.Set, error) {
	return parseHidden(name, data, nil, nil)
}

// parseHidden is Parse for the hidden form of a set (see Hide).
func parseHidden(name string, data []byte, secrets *limits.Secrets, named *limits.Set) (*limits.Set, error) {
	f := parseSources(name, data, secrets, named)
	for _, r := range f.refused {
		f.addError(1, 1, "override of user %s: %v", quote(r.User), r.Why)
	}
	if f.hasErrors() {
		return nil, f.errors()
	}
	return f.set, nil
}

// parseSources reads a file and those of its users_from.
func parseSources(name string, data []byte, secrets *limits.Secrets, named *limits.Set) *file {
	f := newFile(name, data)
	f.content.Secrets, f.content.Named = secrets, named
	sources, err := unbundle(data)
	if err != nil {
		f.addError(1, 1, "%v", err)
		return f
	}
	for i, s := range sources[1:] {
		if s.name != overridesName {
			sources[i+1].name = nameBeside(name, s.name)
		}
	}
	sources[0].name = name
	var overrides []byte
	if f.sources, overrides = splitOverrides(sources); overrides != nil {
		f.readOverrides(overrides)
	}
	f.readSources(data)
	return f
}

// nameBeside is the name of a file that is named as seen from the folder of another.
func nameBeside(name, other string) string {
	if filepath.IsAbs(other) {
		return other
	}
	return filepath.Join(filepath.Dir(name), other)
}

// file is a limit file, and those of its users_from, while they are read.
type file struct {
	problems
	content limits.Content
	set     *limits.Set // of the content, when all sources are read without an error
	sources []source    // the limit file, then those of users_from
	bundled bool        // whether the files of users_from are there

	drafts
	tierDrafts map[string]tierDraft // the tiers, for overrides to start from
	tierNames  []string             // sorted
	classNames []string             // what requests may name: verbs and operation classes

	users users // what is known of users so far
	overrideState
	quiet bool // shareFits has nothing to say
}

func newFile(name string, data []byte) *file {
	return &file{
		problems: problems{file: name},
		content: limits.Content{
			Name: name, Tiers: map[string]*limits.Entry{}, Users: map[string]*limits.Entry{}, Names: map[string]string{},
		},
		bundled:    isBundle(data),
		drafts:     newDrafts(),
		tierDrafts: map[string]tierDraft{},
		classNames: classes,
	}
}

// tierDraft is a tier while a file is read: its limits, and those at the endpoints
// where it has others. Those over all endpoints together are at All.
type tierDraft struct {
	draft
	at map[string]draft
}

// place tells, at the beginning of an error, what it is about: a field of a tier or
// a user (at an endpoint), or something that has no name.
type place struct{ kind, name, endpoint, field string }

func (p place) atField(field string) place {
	p.field = field
	return p
}

func (p place) String() string {
	s := p.kind
	if p.name != "" {
		s += " " + quote(p.name)
	}
	if p.endpoint != "" {
		s += " at " + p.endpoint
	}
	if s != "" && p.field != "" {
		s += ": "
	}
	return s + p.field
}

// readSources reads all sources, which come from data.
func (f *file) readSources(data []byte) {
	for i, s := range f.sources {
		f.openSource(i, s.name)
		if i > 0 && s.isFlat() {
			f.readFlatFile(s.data)
			continue
		}
		root := f.decode(s.data)
		if root == nil {
			continue
		}
		if i == 0 {
			f.readRoot(root)
		} else {
			f.readUsersFile(root)
		}
	}
	f.makeSet(data)
}

func (f *file) readRoot(root *yaml.Node) {
	where := place{kind: "the file"}
	version := lookup(root, "version")
	// Without a version the errors of this one are still told, with the one that it is missing.
	if version != nil && !f.readVersion(version) {
		return // what else the file says is not for this version to judge
	}
	fields := map[string]*yaml.Node{}
	for key, value := range f.eachEntry(root, where, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}") {
		if slices.Contains(fileFields, key.Value) {
			fields[key.Value] = value
		} else {
			f.refuseUnknown(key, where, "field", fileFields)
		}
	}
	if root.Kind != yaml.MappingNode {
		return
	}
	if version == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	f.withField(fields, "mode", func(n *yaml.Node) { f.readMode(&f.mode, place{field: "mode"}, n) })
	f.withField(fields, "endpoints", f.readEndpoints)
	f.withField(fields, "classes", f.readClasses)
	f.withField(fields, "queues", f.readQueues)
	f.withField(fields, "failed_auth", f.readFailedAuth)
	f.withField(fields, "per_address", f.readPerAddress)
	// Modes, classes, endpoints and services are known before tiers and users name them.
	f.content.Mode = f.mode
	f.readTiersAndDefaults(root, fields)
	f.withField(fields, "exempt", f.readExempt)
	f.withField(fields, "users_from", f.readUsersFrom)
	f.withField(fields, "users", f.readUsers)
}

// withField calls read with the value of a field that the file has.
func (f *file) withField(fields map[string]*yaml.Node, name string, read func(*yaml.Node)) {
	if n := fields[name]; n != nil {
		read(n)
	}
}

func (f *file) readTiersAndDefaults(root *yaml.Node, fields map[string]*yaml.Node) {
	tiers, defaultTier := fields["tiers"], fields["default_tier"]
	known := tiers != nil && f.readTiers(tiers, textOf(defaultTier))
	if tiers == nil {
		f.errorf(root, "tiers is missing; write one at least, such as tiers: {free: {concurrent: 10}}")
	}
	switch {
	case defaultTier == nil && known:
		f.errorf(root, "default_tier is missing; name one of the tiers: %s", joinChoices(f.tierNames))
	case defaultTier == nil:
		f.errorf(root, "default_tier is missing; name one of the tiers")
	default:
		f.content.DefaultTier = f.readTierName(defaultTier, place{field: "default_tier"})
	}
	if n := fields["anonymous_tier"]; n != nil {
		f.content.AnonymousTier = f.readTierName(n, place{field: "anonymous_tier"})
	}
	if n := fields["unreadable"]; n != nil {
		f.content.UnreadableTier = f.readTierName(n, place{field: "unreadable"})
	}
}

func (f *file) readVersion(n *yaml.Node) bool {
	if !f.isPlain(n) {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		f.errorf(n, "version must be the number 1, got %s", describe(n))
		return false
	}
	if n.Value != "1" {
		f.errorf(n, "version %s is not supported (valid: 1)", shorten(n.Value))
		return false
	}
	return true
}

// readTiers reads all tiers and reports whether there are any. A tier with errors is
// known too, so that its users are not errors as well.
func (f *file) readTiers(n *yaml.Node, defaultTier string) bool {
	for key, value := range f.eachEntry(n, place{field: "tiers"}, "{free: {concurrent: 10}}") {
		name := key.Value
		if !limits.IsOwnKey(name) {
			f.errorf(key, "the tier name %s is not usable; write 1 to %d bytes without control characters, and no ~ or @ in front", quote(name), limits.MaxOwnKey)
			continue
		}
		if name == limits.ExemptTier {
			f.errorf(key, "the tier name exempt is taken: it is the tier of those who are under exempt")
			continue
		}
		f.tierDrafts[name] = f.readTier(name, value)
	}
	f.tierNames = slices.Sorted(maps.Keys(f.tierDrafts))
	f.completeTiersJobs(defaultTier)
	for _, name := range f.tierNames {
		f.content.Tiers[name] = f.tierEntry(name, f.tierDrafts[name])
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "tiers is empty; write one at least, such as {free: {concurrent: 10}}")
	}
	return len(f.tierDrafts) > 0
}

func (f *file) readTier(name string, n *yaml.Node) (d tierDraft) {
	where := place{kind: "tier", name: name}
	if isNull(n) {
		f.errorf(n, "%s has no value; write {} for a tier without limits", where)
		return d
	}
	for key, value := range f.eachEntry(n, where, "{concurrent: 10}") {
		switch {
		case key.Value == "comment":
			f.readComment(where, value)
		case key.Value == "endpoints":
		case !f.readLimit(&d.draft, where, key, value):
			f.refuseUnknown(key, where, "field", tierFields)
		}
	}
	if at := lookup(n, "endpoints"); at != nil {
		d.at = f.endpointDrafts(where, at, func(endpoint string) draft {
			if endpoint == limits.All {
				return draft{mode: d.mode}
			}
			return d.draft
		})
	}
	return d
}

// endpointDrafts reads the limits at endpoints of a tier or a user, over those that
// base returns.
func (f *file) endpointDrafts(where place, n *yaml.Node, base func(endpoint string) draft) map[string]draft {
	at := map[string]draft{}
	for name, fields := range f.eachEntry(n, where.atField("endpoints"), "{uploads: {concurrent: 2}}") {
		together := name.Value == limits.All
		if _, ok := slices.BinarySearch(f.content.Endpoints, name.Value); !ok && (!together || len(f.content.Endpoints) == 0) {
			switch {
			case together:
				f.errorf(name, `%s: "*" limits requests at all endpoints together, and the limit file declares no endpoint; declare some at the top of it, such as endpoints: [uploads]. Without endpoints, requests beside endpoints is that limit`, where.atField("endpoints"))
			case len(f.content.Endpoints) == 0:
				f.errorf(name, "%s: unknown endpoint %s; declare it at the top of the limit file, with endpoints: [%s]", where.atField("endpoints"), quote(name.Value), shorten(name.Value))
			default:
				f.refuseUnknown(name, where.atField("endpoints"), "endpoint", append(slices.Clip(f.content.Endpoints), limits.All))
			}
			continue
		}
		d := base(name.Value)
		here := where
		here.endpoint = name.Value
		if together {
			here.endpoint = "all endpoints together"
		}
		if isNull(fields) {
			f.errorf(fields, "%s has no value; leave it out, or write what differs there", here)
			continue
		}
		valid, example := limitFieldNames, "{concurrent: 2}"
		if together {
			valid, example = togetherFields, `{requests: {GET: 100, "*": 200}}`
		}
		for key, value := range f.eachEntry(fields, here, example) {
			switch {
			case together && slices.Contains(limitFieldNames, key.Value) && !slices.Contains(togetherFields, key.Value):
				f.errorf(key, "%s: %s cannot be limited over all endpoints together, only requests can; write %s beside endpoints, where it counts at each endpoint apart, or at one endpoint", here, key.Value, key.Value)
			case !f.readLimit(&d, here, key, value):
				f.refuseUnknown(key, here, "field", valid)
			}
		}
		if lookup(fields, "bandwidth") == nil {
			f.checkDefaultShare(name, here, d.bandwidth)
		}
		at[name.Value] = d
	}
	return at
}

// tierEntry returns the entry of a tier.
func (f *file) tierEntry(name string, d tierDraft) *limits.Entry {
	return f.sharedEntry(f.entryOf(name, d.draft, d.at))
}

// entryOf makes an entry that does not expire: of limits everywhere, and at
// endpoints where there are others.
func (f *file) entryOf(tier string, everywhere draft, at map[string]draft) limits.Entry {
	e := limits.Entry{Limits: f.sharedLimits(tier, everywhere), Together: f.sharedLimits(tier, at[limits.All])}
	differs := false
	endpoints := make([]*limits.Limits, len(f.content.Endpoints))
	for i, name := range f.content.Endpoints {
		endpoints[i] = e.Limits
		if d, ok := at[name]; ok {
			endpoints[i] = f.sharedLimits(tier, d)
			differs = differs || endpoints[i] != e.Limits
		}
	}
	if differs {
		e.More = &limits.More{Endpoints: endpoints}
	}
	return e
}
