package limits

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"gopkg.in/yaml.v3"
)

// MaxFileSize is the largest limit file that is read, in bytes: room for more
// than a million users.
const MaxFileSize = 64 << 20

const unlimited = "unlimited"

// The fields of a mapping, as errors list them.
var (
	fileFields      = []string{"version", "default_tier", "tiers", "users"}
	tierFields      = []string{"requests", "concurrent", "bandwidth", "over_limit", "priority"}
	userFields      = []string{"tier", "requests", "concurrent", "bandwidth", "over_limit", "priority"}
	bandwidthFields = []string{"down", "up", "default_share"}
	overLimitFields = []string{"concurrent"}
)

// Load reads and parses a limit file. The error is that of ReadFile or of Parse.
func Load(path string) (*Set, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// ReadFile reads a limit file without parsing it. It stops after MaxFileSize and
// one byte, which Parse then refuses.
func ReadFile(path string) ([]byte, error) {
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

// Parse makes a Set of a limit file. The name stands for the file in errors. The
// error is of type Errors, and tells everything that is wrong with the file. An
// empty file is an error. Parse keeps a copy of data.
func Parse(name string, data []byte) (*Set, error) {
	f := &file{
		problems: problems{file: name},
		set:      &Set{tiers: map[string]*Limits{}},
		drafts:   map[string]draft{},
		shared:   map[tierDraft]*Limits{},
		rates:    map[requests][]Rate{},
	}
	if root := f.decode(data); root != nil {
		f.root(root)
	}
	if f.any() {
		return nil, f.errors()
	}
	f.set.source = bytes.Clone(data)
	f.set.version = version(data)
	return f.set, nil
}

// file is a limit file while it is read.
type file struct {
	problems
	set    *Set             // on its own, so that it does not keep the rest alive
	drafts map[string]draft // the tiers, for overrides to start from

	// Users with equal limits share them, so that memory grows with what differs.
	shared map[tierDraft]*Limits
	rates  map[requests][]Rate
}

type tierDraft struct {
	tier string
	draft
}

// place tells, at the beginning of an error, what it is about: a field of a tier or
// a user, or something that has no name.
type place struct{ kind, name, field string }

func (p place) at(field string) place {
	p.field = field
	return p
}

func (p place) String() string {
	s := p.kind
	if p.name != "" {
		s += " " + quote(p.name)
	}
	if s != "" && p.field != "" {
		s += ": "
	}
	return s + p.field
}

func (f *file) root(root *yaml.Node) {
	where := place{kind: "the file"}
	version := lookup(root, "version")
	if version != nil && !f.version(version) {
		return // what else the file says is not for this version to judge
	}
	var defaultTier, tiers, users *yaml.Node
	for key, value := range f.entries(root, where, "{version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}") {
		switch key.Value {
		case "version":
		case "default_tier":
			defaultTier = value
		case "tiers":
			tiers = value
		case "users":
			users = value
		default:
			f.unknown(key, where, "field", fileFields)
		}
	}
	if root.Kind != yaml.MappingNode {
		return
	}
	if version == nil {
		f.errorf(root, "version is missing; begin the file with version: 1")
	}
	known := tiers != nil && f.tiers(tiers)
	if tiers == nil {
		f.errorf(root, "tiers is missing; write one at least, such as tiers: {free: {concurrent: 10}}")
	}
	switch {
	case defaultTier == nil && known:
		f.errorf(root, "default_tier is missing; name one of the tiers: %s", list(f.set.tierNames))
	case defaultTier == nil:
		f.errorf(root, "default_tier is missing; name one of the tiers")
	default:
		f.set.defaultTier = f.tierName(defaultTier, place{field: "default_tier"})
		f.set.fallback = f.set.tiers[f.set.defaultTier]
	}
	if users != nil {
		f.users(users)
	}
}

func (f *file) version(n *yaml.Node) bool {
	if !f.plain(n) {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		f.errorf(n, "version must be the number 1, got %s", describe(n))
		return false
	}
	if n.Value != "1" {
		f.errorf(n, "version %s is not supported (valid: 1)", cut(n.Value))
		return false
	}
	return true
}

// tiers reads all tiers and reports whether there are any. A tier with errors is
// known too, so that its users are not errors as well.
func (f *file) tiers(n *yaml.Node) bool {
	for key, value := range f.entries(n, place{field: "tiers"}, "{free: {concurrent: 10}}") {
		name := key.Value
		if !verbatim(name) {
			f.errorf(key, "the tier name %s is not usable; write 1 to %d bytes without control characters, and no ~ in front", quote(name), maxVerbatim)
			continue
		}
		d := f.tier(name, value)
		f.drafts[name] = d
		f.set.tiers[name] = f.limits(name, d)
	}
	f.set.tierNames = slices.Sorted(maps.Keys(f.drafts))
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "tiers is empty; write one at least, such as {free: {concurrent: 10}}")
	}
	return len(f.drafts) > 0
}

func (f *file) tier(name string, n *yaml.Node) (d draft) {
	where := place{kind: "tier", name: name}
	if isNull(n) {
		f.errorf(n, "%s has no value; write {} for a tier without limits", where)
		return d
	}
	for key, value := range f.entries(n, where, "{concurrent: 10}") {
		if !f.limit(&d, where, key, value) {
			f.unknown(key, where, "field", tierFields)
		}
	}
	return d
}

func (f *file) users(n *yaml.Node) {
	if isNull(n) && f.plain(n) {
		return // every user commented out
	}
	f.set.users = make(map[string]*Limits, len(n.Content)/2)
	f.set.userNames = make([]string, 0, len(n.Content)/2)
	for key, value := range f.entries(n, place{field: "users"}, "{alice: free}") {
		f.set.users[Key(key.Value)] = f.user(key.Value, value)
		f.set.userNames = append(f.set.userNames, key.Value)
	}
	slices.Sort(f.set.userNames)
}

// user reads a tier's name, or a mapping that overrides some limits of a tier
// (the default tier if it names none).
func (f *file) user(name string, n *yaml.Node) *Limits {
	where := place{kind: "user", name: name}
	if n.Kind == yaml.ScalarNode {
		return f.set.tiers[f.tierName(n, where.at("tier"))]
	}
	tier := f.set.defaultTier
	if t := lookup(n, "tier"); t != nil {
		tier = f.tierName(t, where.at("tier"))
	}
	d := f.drafts[tier]
	for key, value := range f.entries(n, where, "{tier: free, concurrent: 10}") {
		if key.Value != "tier" && !f.limit(&d, where, key, value) {
			f.unknown(key, where, "field", userFields)
		}
	}
	return f.limits(tier, d)
}

// limits returns the Limits of a draft, the same ones for the same draft.
func (f *file) limits(tier string, d draft) *Limits {
	l := f.shared[tierDraft{tier, d}]
	if l == nil {
		l = &Limits{
			Tier: tier, Concurrent: d.concurrent, Bandwidth: d.bandwidth,
			Wait: d.wait, Priority: d.priority, rates: f.rates[d.requests],
		}
		if l.rates == nil {
			l.rates = d.requests.rates()
			f.rates[d.requests] = l.rates
		}
		f.shared[tierDraft{tier, d}] = l
	}
	return l
}
