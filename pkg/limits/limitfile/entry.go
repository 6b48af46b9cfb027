package limitfile

import (
	"fmt"
	"maps"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// layer is what somebody has: their tier, or it with other limits over it. Those at the endpoints
// where they differ are at their names, those over all endpoints together at All.
type layer struct {
	draft
	tier string
	at   map[string]draft
}

// entry is a mapping of a tier, of a user, or of an override, while it is read.
type entry struct {
	layer                       // begins as what the mapping lies over
	sets                   bool // it sets limits
	endpoints, until, then *yaml.Node
}

// The fields of tiers, of users, and of overrides, which have an end and a reason of their own.
var (
	tierFields = slices.Concat(ofEntry(everywhereFields), fields[entry]{
		{"endpoints", func(_ *file, e *entry, _ place, n *yaml.Node) { e.endpoints, e.sets = n, true }},
		{"comment", func(f *file, _ *entry, at place, n *yaml.Node) { comments.read(f, &f.written.comment, at, n) }},
	})
	userFields = slices.Concat(fields[entry]{
		{"tier", func(*file, *entry, place, *yaml.Node) {}}, // read before the others, which lie over it
	}, tierFields, fields[entry]{
		{"until", func(_ *file, e *entry, _ place, n *yaml.Node) { e.until = n }},
		{"then", func(_ *file, e *entry, _ place, n *yaml.Node) { e.then = n }},
	})
	overrideFields = userFields.without(notInOverride)
)

// notInOverride are the fields of a user's entry that have no meaning in an override.
var notInOverride = []string{"comment", "until", "then"}

// ofEntry are the fields of limits as those of an entry.
func ofEntry(all fields[draft]) (of fields[entry]) {
	for _, one := range all {
		of = append(of, field[entry]{one.name, func(f *file, e *entry, at place, n *yaml.Node) {
			e.sets = true
			one.read(f, &e.draft, at, n)
		}})
	}
	return of
}

// comments mean nothing to the parts of the cluster.
var comments = kind[string]{forms: "text", silent: true, parse: func(s string) (string, error) {
	if len(s) > maxComment {
		return "", fmt.Errorf("is longer than %d bytes", maxComment)
	}
	return s, nil
}}

// maxComment is the longest comment field, in bytes.
const maxComment = 1000

// readEntry reads what a mapping says over a layer.
func (f *file) readEntry(over layer, where place, n *yaml.Node, example string, all fields[entry]) entry {
	found := f.count()
	// It begins as a copy of the layer: what the mapping does not name stays as it is there.
	e := &f.entry
	*e = entry{layer: layer{draft: over.draft, tier: over.tier}}
	readFields(f, e, where, n, example, all)
	// What is wrong with a user everywhere would be told again where the tier has an endpoint.
	if f.count() == found || where.kind == "tier" {
		f.readAtEndpoints(e, over, where, n)
	}
	return *e
}

// layerUnder is the tier that an entry names, alone or in a mapping, and otherwise the layer
// that is given.
func (f *file) layerUnder(where place, n *yaml.Node, otherwise layer) layer {
	if n.Kind != yaml.ScalarNode {
		// It may stand behind the fields that lie over it.
		if n = lookup(n, "tier"); n == nil {
			return otherwise
		}
	}
	f.written.tier = true
	return f.tiers[f.readTierName(n, where.atField("tier"))]
}

// readAtEndpoints sets the limits at the endpoints where they differ: those of the layer below
// there, then what the mapping says of everywhere, then what it says of the endpoint.
func (f *file) readAtEndpoints(e *entry, below layer, where place, n *yaml.Node) {
	if len(below.at) == 0 && e.endpoints == nil {
		return
	}
	e.at = map[string]draft{}
	for _, endpoint := range slices.Sorted(maps.Keys(below.at)) {
		// Those that the mapping names are read below, over the same.
		if e.endpoints != nil && lookup(e.endpoints, endpoint) != nil {
			continue
		}
		e.at[endpoint] = f.draftAt(endpoint, e, below, where, n)
		// The user's share may be too large for the tier's limit here, of which the user's entry says nothing.
		if bandwidth := lookup(n, "bandwidth"); bandwidth != nil && endpoint != limits.All {
			f.checkDefaultShare(bandwidth, where.atEndpoint(endpoint), e.at[endpoint].bandwidth)
		}
	}
	if e.endpoints == nil {
		return
	}
	for name, value := range f.eachEntry(e.endpoints, where.atField("endpoints"), "{uploads: {concurrent: 2}}") {
		// One that is not declared would be limits that no request has.
		if f.isEndpoint(name, where.atField("endpoints")) {
			d := f.draftAt(name.Value, e, below, where, n)
			f.readEndpoint(&d, where.atEndpoint(name.Value), name, value)
			e.at[name.Value] = d
		}
	}
}

// draftAt is what counts at an endpoint before an entry says something of it.
func (f *file) draftAt(endpoint string, e *entry, below layer, where place, n *yaml.Node) draft {
	d, ok := below.at[endpoint]
	switch {
	case endpoint == limits.All:
		// A dry run of somebody's limits is one of these, too. Nothing else that is said of
		// everywhere is said of all endpoints together.
		if !ok || lookup(n, "mode") != nil {
			d.mode = e.mode
		}
	case !ok:
		d = e.draft
	default:
		// What the mapping says lies over other limits here, so it is read once more.
		f.quiet = true
		for key, value := range children(n) {
			if i := everywhereFields.indexOf(key.Value); i >= 0 {
				everywhereFields[i].read(f, &d, where.below(key.Value), value)
			}
		}
		f.quiet = false
	}
	return d
}

func (f *file) isEndpoint(n *yaml.Node, where place) bool {
	declared := f.content.Endpoints
	_, ok := slices.BinarySearch(declared, n.Value)
	together := n.Value == limits.All
	switch {
	case ok || together && len(declared) > 0:
		return true
	// With one frontend there is nothing to take together, and requests beside endpoints says the same.
	case together:
		f.errorf(n, `%s: "*" limits requests at all endpoints together, and the limit file declares no endpoint; declare some at the top of it, such as endpoints: [uploads]. Without endpoints, requests beside endpoints is that limit`, where)
	case len(declared) == 0:
		f.errorf(n, "%s: unknown endpoint %s; declare it at the top of the limit file, with endpoints: [%s]", where, quote(n.Value), shorten(n.Value))
	default:
		f.refuseUnknown(n, where, "endpoint", append(slices.Clip(declared), limits.All))
	}
	return false
}

// readEndpoint reads what is said of an endpoint, or of all of them together.
func (f *file) readEndpoint(d *draft, where place, name, n *yaml.Node) {
	refused := func(key, value *yaml.Node) bool { return f.refuseAtEndpoint(where, key, value) }
	switch {
	case isNull(n):
		f.errorf(n, "%s has no value; leave it out, or write what differs there", where)
	case name.Value == limits.All:
		readFieldsOr(f, d, where, n, `{requests: {GET: 100, "*": 200}}`, togetherFields, refused)
	default:
		readFieldsOr(f, d, where, n, "{concurrent: 2}", limitFields, refused)
		// A share that is inherited may be too large for a limit that is not.
		if lookup(n, "bandwidth") == nil {
			f.checkDefaultShare(name, where, d.bandwidth)
		}
	}
}

// refuseAtEndpoint refuses limits that are possible in other places.
func (f *file) refuseAtEndpoint(where place, key, value *yaml.Node) bool {
	switch {
	case key.Value == "jobs":
		f.errorf(value, "%s are counted everywhere, not at endpoints; write jobs beside endpoints", where.atField("jobs"))
	case limitFields.indexOf(key.Value) >= 0:
		f.errorf(key, "%s: %s cannot be limited over all endpoints together, only requests and costs can; write %s beside endpoints, where it counts at each endpoint apart, or at one endpoint", where, key.Value, key.Value)
	default:
		return false
	}
	return true
}

// entryOf makes an entry that does not expire: of limits everywhere, and at
// endpoints where there are others.
func (f *file) entryOf(l layer) limits.Entry {
	// Over all endpoints together the zero draft limits nothing, which is what no layer at All means.
	e := limits.Entry{Limits: f.sharedLimits(l.tier, l.draft), Together: f.sharedLimits(l.tier, l.at[limits.All])}
	differs := false
	endpoints := make([]*limits.Limits, len(f.content.Endpoints))
	// By index and not by name: each request is looked up at its endpoint.
	for i, name := range f.content.Endpoints {
		endpoints[i] = e.Limits
		if d, ok := l.at[name]; ok {
			endpoints[i] = f.sharedLimits(l.tier, d)
			differs = differs || endpoints[i] != e.Limits
		}
	}
	// Most users have the same limits at every endpoint, and need no list of them.
	if differs {
		e.More = &limits.More{Endpoints: endpoints}
	}
	return e
}
