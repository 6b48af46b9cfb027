package limitfile

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	maxPatterns    = 10_000 // of a file, those of exempt users included
	maxOddPatterns = 256    // those of them that are neither prefix* nor *suffix (see limits.Set)
	maxExempt      = 10_000 // users, and addresses
	maxPaths       = 1000
)

// readTiers reads all tiers. A tier with errors is known too, so that naming it is no error.
func (f *file) readTiers(n, defaultTier *yaml.Node) {
	for key, value := range f.eachEntry(n, place{field: "tiers"}, "{free: {concurrent: 10}}") {
		switch {
		case !limits.IsOwnKey(key.Value):
			f.errorf(key, "the tier name %s is not usable; write 1 to %d bytes without control characters, and no ~ in front", quote(key.Value), limits.MaxOwnKey)
		case key.Value == limits.ExemptTier:
			f.errorf(key, "the tier name exempt is taken: it is the tier of those who are under exempt")
		default:
			f.tiers[key.Value] = &tier{layer: f.readTier(key, value), line: key.Line}
		}
	}
	f.tierNames = slices.Sorted(maps.Keys(f.tiers))
	byDefault := ""
	if defaultTier != nil {
		byDefault = defaultTier.Value
	}
	f.completeJobs(byDefault)
	for name, t := range f.tiers {
		f.content.Tiers[name] = f.entryOf(f.limitsOf(t.layer), 0, nil)
		t.entry = f.addEntry(f.content.Tiers[name], packed{&spec{tier: name}, ""})
	}
	if isEmpty(n) {
		f.errorf(n, "tiers is empty; write one at least, such as {free: {concurrent: 10}}")
	}
}

func (f *file) readTier(key, n *yaml.Node) layer {
	where := place{of: "tier " + quote(key.Value)}
	// No limits at all must be written down: a value that was forgotten looks the same.
	if isNull(n) {
		f.errorf(n, "%s has no value; write {} for a tier without limits", where)
		return layer{tier: key.Value}
	}
	e := entryReader{file: f, first: key.Line}
	e.readFields(n, where, "{concurrent: 10}", append(e.limitsOfEntry(), field{"comment", into(f, &e.comment, comments)})...)
	return layer{tier: key.Value}.with(e.spec, limits.OfTier)
}

// readTierName reads the name of a tier of the file. It is "" after an error. A file
// without tiers has an error already.
func (f *file) readTierName(n *yaml.Node, where place) string {
	switch t, ok := f.tiers[n.Value]; {
	case !f.is(n, where, yaml.ScalarNode, "the name of a tier") || f.refuseBool(n, where):
	case ok:
		return t.tier
	case len(f.tiers) > 0:
		f.refuseUnknown(n, where, "tier", f.tierNames)
	}
	return ""
}

func (f *file) readUsers(at place, n *yaml.Node) {
	if isNull(n) && f.isPlain(n) {
		return // every user commented out
	}
	if len(f.content.Users) == 0 && len(n.Content) > 1000 {
		f.content.Users = make(map[string]limits.Named, len(n.Content)/2)
	}
	e := &entryReader{file: f}
	readLater := func(place, *yaml.Node) {}
	fields := slices.Concat([]field{{"tier", readLater}}, e.limitsOfEntry(),
		[]field{{"comment", into(f, &e.comment, comments)}, {"until", readLater}, {"then", readLater}})
	for key, value := range f.allEntries(n, at, "{alice: free}") {
		pattern := limits.IsPattern(key.Value)
		if pattern && !f.isUsablePattern(key, at) {
			continue
		}
		entry := e.readUser(key, value, fields)
		wire := limits.Key(key.Value)
		if first, ok := f.content.Users[wire]; ok {
			f.errorf(key, "users has %s twice, first on line %d", quote(key.Value), first.Line)
			continue
		}
		f.content.Users[wire] = limits.Named{Entry: entry, Line: uint32(key.Line)}
		if wire != key.Value {
			f.content.Names[wire] = key.Value
		}
		if pattern {
			f.content.Patterns = append(f.content.Patterns, key.Value)
		}
	}
}

// readUser reads a tier's name, or a mapping over a tier. It returns the index in
// limits.Content.Entries, or 0 after an error.
func (e *entryReader) readUser(key, n *yaml.Node, fields []field) uint32 {
	where := place{of: "user " + quote(key.Value)}
	if n.Kind == yaml.ScalarNode {
		if t := e.tiers[e.readTierName(n, where.below("tier"))]; t != nil {
			return t.entry
		}
		return 0
	}
	before := e.count()
	e.first, e.spec = key.Line, spec{settings: e.settings[:0]}
	named := lookup(n, "tier")
	if named != nil {
		e.tier = e.readTierName(named, where.below("tier"))
	}
	e.under = e.tierOf(e.tier, named == nil)
	beforeFields := e.count()
	e.readFields(n, where, "{tier: free, concurrent: 10}", fields...)
	if e.count() == beforeFields {
		e.readExpiry(where, n)
	}
	if e.count() > before {
		return 0
	}
	// Users whose entries are written alike share all of it.
	p := e.pack()
	i, ok := e.written[p]
	if !ok {
		l := e.limitsOf(e.under.with(e.spec, limits.OfUser))
		var then *limits.Entry
		if e.until != 0 {
			then = e.content.Tiers[cmp.Or(e.then, l.Tier)]
		}
		i = e.addEntry(e.entryOf(l, e.until, then), p)
		e.written[p] = i
	}
	return i
}

// tierOf is the layer of a tier, or of the default one. A tier that is not known has no settings.
func (f *file) tierOf(name string, byDefault bool) layer {
	if byDefault {
		name = f.content.DefaultTier
	}
	if t := f.tiers[name]; t != nil {
		return t.layer
	}
	return layer{}
}

func (f *file) addEntry(e *limits.Entry, p packed) uint32 {
	f.content.Entries = append(f.content.Entries, e)
	f.specs = append(f.specs, p)
	return uint32(len(f.specs) - 1)
}

// packed is a spec of a user. Without its values it is the same for many users.
type packed struct {
	shape  *spec
	values string // of the settings
}

// pack packs the spec that was read. Packed specs are equal if they are written alike.
func (e *entryReader) pack() packed {
	key := appendKey(appendKey(appendKey(nil, e.tier), e.then, e.until), e.comment)
	var values []byte
	for _, s := range e.settings {
		key = appendKey(key, s.name, int64(s.line), int64(s.effect))
		values = binary.AppendVarint(values, s.value)
	}
	shape := e.shapes[string(key)]
	if shape == nil {
		own := e.spec
		own.settings = slices.Clone(own.settings) // the next entry is read into the same room
		shape = &own
		e.shapes[string(key)] = shape
	}
	return packed{shape, string(values)}
}

func (p packed) unpack() spec {
	s := *p.shape
	s.settings = slices.Clone(s.settings)
	rest := []byte(p.values)
	for i := range s.settings {
		value, n := binary.Varint(rest)
		s.settings[i].value, rest = value, rest[n:]
	}
	return s
}

// readExpiry reads from when on an entry is void, and which tier the user has from then on.
func (e *entryReader) readExpiry(where place, n *yaml.Node) {
	until, then := lookup(n, "until"), lookup(n, "then")
	switch {
	case until == nil && then == nil:
		return
	case until == nil:
		e.errorf(then, "%s needs until: say from when on", where.below("then"))
		return
	}
	t, _ := read(e.file, times, where.below("until"), until)
	e.until = t.UnixNano()
	if then != nil {
		e.then = e.readTierName(then, where.below("then"))
	} else if !slices.ContainsFunc(limitFields, func(name string) bool { return lookup(n, name) != nil }) {
		e.errorf(until, "%s has no effect: nothing is overridden that could end; name the tier that follows with then, or leave it out", where.below("until"))
	}
}

// isUsablePattern checks a pattern of names, and counts it.
func (f *file) isUsablePattern(n *yaml.Node, where place) bool {
	p := n.Value
	literal := strings.ReplaceAll(p, limits.All, "")
	at := strings.Index(p, limits.All)
	odd := strings.Count(p, limits.All) != 1 || at > 0 && at < len(p)-1
	if odd {
		f.oddPatterns++
	}
	const noUser = "%s: the pattern %s matches nobody: a name "
	switch {
	case strings.Contains(p, "**"):
		f.errorf(n, "%s: the pattern %s has ** in it; one * stands for any run of characters", where, quote(p))
	// Patterns are compared with keys. A key that is a hash tells nothing of its name.
	case p[0] == '~':
		f.errorf(n, noUser+"that begins with ~ is known by its hash alone; write the whole name", where, quote(p))
	case len(literal) > limits.MaxOwnKey:
		f.errorf(n, noUser+"of more than %d bytes is known by its hash alone; write the whole name", where, quote(p), limits.MaxOwnKey)
	case strings.ContainsFunc(literal, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		f.errorf(n, noUser+"with control characters is known by its hash alone; write the whole name", where, quote(p))
	case odd && f.oddPatterns == maxOddPatterns+1: // one error for all of them
		f.errorf(n, "%s: more than %d patterns have their * neither at the beginning nor at the end alone; write %s as prefix* or *suffix", where, maxOddPatterns, quote(p))
	default:
		return true
	}
	return false
}

// readExempt reads the users and requests without limits.
func (f *file) readExempt(where place, n *yaml.Node) {
	x := &f.content.Exempt
	f.readFields(n, where, "{users: [probe], addresses: [10.0.0.0/8], paths: [/healthz]}",
		field{"users", f.texts(&x.Users, `[probe, "mon-*"]`, maxExempt, f.isExemptUser)},
		field{"addresses", f.texts(&x.Addresses, "[10.0.0.0/8, 192.0.2.7]", maxExempt, f.isAddress)},
		field{"paths", f.texts(&x.Paths, `[/healthz, "/static/*"]`, maxPaths, f.isExemptPath)})
}

func (f *file) isExemptUser(n *yaml.Node, where place) bool {
	f.exempt[n.Value] = n.Line
	if !limits.IsPattern(n.Value) {
		return true
	}
	if !f.isUsablePattern(n, where) {
		return false
	}
	f.exemptPatterns++
	return true
}

func (f *file) isExemptPath(n *yaml.Node, where place) bool {
	switch {
	case !pathsForm.MatchString(n.Value):
		f.errorf(n, `%s: each must be a path such as /healthz, without blanks, ? or #, or the beginning of one with * behind it, such as "/static/*", got %s`, where, quote(n.Value))
	case len(n.Value) > maxPathBytes:
		f.errorf(n, "%s: each must have at most %d bytes, got %d", where, maxPathBytes, len(n.Value))
	default:
		return true
	}
	return false
}

// isAddress checks an IP address, or a network in CIDR form. Each has one way to be written.
func (f *file) isAddress(n *yaml.Node, where place) bool {
	network, err := netip.ParsePrefix(n.Value)
	address, addressErr := netip.ParseAddr(n.Value)
	switch {
	case addressErr == nil && address.Is4In6() && address.Zone() == "":
		f.errorf(n, "%s: %s is an IPv4 address; write %s", where, n.Value, address.Unmap())
	case addressErr == nil && address.Zone() == "":
		return true
	case err != nil || network.Addr().Is4In6():
		f.errorf(n, `%s: each must be an IP address, or a network such as 10.0.0.0/8 or "2001:db8::/32", got %s`, where, quote(n.Value))
	case network != network.Masked():
		f.errorf(n, "%s: %s is an address in a network; write %s for the network, or the address alone", where, n.Value, network.Masked())
	default:
		return true
	}
	return false
}

func (f *file) readFailedAuth(where place, n *yaml.Node) {
	var rate failureRate
	f.readAddressLimits(n, where, "{per_address: 30/min}", field{"per_address", into(f, &rate, failedAuth)})
	f.content.AddressLimits.FailedAuth, f.content.AddressLimits.FailedAuthWindow = rate.count, rate.window
}

func (f *file) readPerAddress(where place, n *yaml.Node) {
	var requests, concurrent int64
	f.readAddressLimits(n, where, "{requests: 100, concurrent: 20}",
		field{"requests", into(f, &requests, perSecond)}, field{"concurrent", into(f, &concurrent, inProgress)})
	f.content.AddressLimits.Requests, f.content.AddressLimits.Concurrent = int(requests), int(concurrent)
}

// readAddressLimits is readFields of a mapping that must not be empty.
func (f *file) readAddressLimits(n *yaml.Node, where place, example string, fields ...field) {
	if isEmpty(n) {
		f.errorf(n, "%s is empty; leave it out, or write %s", where, example)
	}
	f.readFields(n, where, example, fields...)
}
