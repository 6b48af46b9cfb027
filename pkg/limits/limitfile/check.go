package limitfile

import (
	"cmp"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// maxServices bounds the services of queues, and those that limits of jobs name.
	maxServices = 256
	// maxDedicated bounds the tiers and users with workers of their own: each is one more queue of
	// each service, which River asks the database for.
	maxDedicated = 64
	// maxQueue is the longest name of a queue that River takes (validateQueueName in its client.go),
	// and maxService leaves room for the longest class behind it.
	maxQueue   = 64
	maxService = maxQueue - len("_scheduled")
)

var (
	// serviceForm is of names that can be a part of a queue's name.
	serviceForm     = regexp.MustCompile(`^[a-z0-9]+([_-][a-z0-9]+)*$`)
	classesOfQueues = []string{limits.PriorityQueues, limits.DefaultQueues, limits.ScheduledQueues}
)

// ValidService reports whether a service may have queues of this name.
func ValidService(name string) bool { return len(name) <= maxService && serviceForm.MatchString(name) }

// isLowerName checks the name of a service or of a unit of cost.
func (f *file) isLowerName(at at, name string, where place, most int) bool {
	if len(name) <= most && serviceForm.MatchString(name) {
		return true
	}
	f.report(at, "%s: the name %s is not usable; write 1 to %d of a-z and 0-9, with single _ or - between them", where, quote(name), most)
	return false
}

// checkTier returns the name of a tier of the file, "" if it is none. A file without tiers has an
// error already.
func (f *file) checkTier(name scalar, where place) string {
	switch t, ok := f.tiers[name.text]; {
	case ok:
		return t.tier
	case name.text != "" && len(f.tiers) > 0:
		f.refuseUnknown(name.at, where, "tier", name.text, f.tierNames)
	}
	return ""
}

// checkEntry compares an entry with the classes, units and services of the file and with the layer
// below it.
func (f *file) checkEntry(e *entry, under layer, where place) {
	for _, r := range e.Requests.entries {
		at := where.below("requests")
		if !slices.Contains(f.classes, r.name) {
			f.refuseUnknown(r.at, at, "class", r.name, f.classes)
			continue
		}
		if r.at != r.value.at { // not a number for all
			at = at.below(r.name)
		}
		f.checkRate(r.value, at)
	}
	for _, c := range e.Costs.entries {
		f.checkCost(c, where.below("costs"))
	}
	if c := e.Concurrent; c.said() && !c.Limit.said() {
		f.report(c.at, "%s has no limit; write limit: and a number", where.below("concurrent"))
	}
	f.checkClassNames(e.Concurrent.Except, where.below("concurrent").below("except"))
	f.checkShare(e, under, where.below("bandwidth"))
	f.checkJobs(e, under, where.below("jobs").below("queues"))
}

func (f *file) checkRate(r rate, where place) {
	if !r.said() {
		return
	}
	if !r.limited() {
		f.report(r.at, "%s has no limit; write one of second, minute, hour, day and month, such as {second: 10}", where)
	}
	for i, limit := range r.limits() {
		if limit.n > limits.MaxPerSecond {
			at := where
			if limit.at != r.at {
				at = where.below(limits.Windows[i].String())
			}
			f.report(limit.at, "%s must be at most %d, got %s", at, limits.MaxPerSecond, shorten(limit.text))
		}
	}
	if r.Burst.said() && (!r.Second.said() || r.Second.lifts || r.Second.text == "0") {
		f.report(r.Burst.at, "%s.burst needs a limit above 0 for each second; write second: beside it", where)
	}
}

func (f *file) checkCost(c named[costLimit], where place) {
	at := where.below(c.name)
	unit, ok := f.units[c.name]
	switch {
	case !ok && len(f.units) == 0 && !f.doc.Costs.said():
		f.report(c.at, "%s: unknown unit %s; declare it at the top of the limit file, such as costs: {%s: {estimate: {default: 1}}}", where, quote(c.name), shorten(c.name))
	case !ok && len(f.units) > 0: // without units there is an error already
		f.refuseUnknown(c.at, where, "unit", c.name, slices.Sorted(maps.Keys(f.units)))
	case c.value.said() && !c.value.Unlimited.said() && !c.value.limited():
		f.report(c.value.at, "%s has no limit; write one of second, minute, hour, day and month, such as {minute: 20k}", at)
	}
	from, estimate := largestEstimate(unit)
	for i, limit := range c.value.limits() {
		// A request that is estimated at more than the limit could never be admitted.
		if limit.n > 0 && estimate > limit.n {
			f.report(limit.at, "%s must be at least %d, got %s: a request is estimated at so much that does not say what it costs (costs.%s.estimate.%s), and could never be admitted",
				at.below(limits.Windows[i].String()), estimate, quoteUnlessPlain(limit.text), unit.Name, from)
		}
	}
}

// checkShare reports its error at the share, or at the limit that has become too small for the
// tier's share.
func (f *file) checkShare(e *entry, under layer, where place) {
	if !e.Bandwidth.said() {
		return
	}
	at := e.Bandwidth.at
	if e.Bandwidth.DefaultShare.said() {
		at = e.Bandwidth.DefaultShare.at
	}
	b := e.Bandwidth.over(under.Bandwidth)
	for _, of := range []struct {
		name  string
		limit int64
	}{{"down", b.Down.n}, {"up", b.Up.n}} {
		if of.limit > 0 && b.DefaultShare.n > of.limit {
			f.report(at, "%s must be at most bandwidth.%s, which is %d bytes, got %d", where.below("default_share"), of.name, of.limit, b.DefaultShare.n)
		}
	}
}

func (f *file) checkJobs(e *entry, under layer, where place) {
	for _, q := range e.Jobs.Queues.entries {
		switch {
		case q.name == all || !f.isLowerName(q.at, q.name, where, maxService):
		// A file without queues may limit services that workers get from their environment.
		case f.services != nil && !slices.Contains(f.services, q.name):
			f.refuseUnknown(q.at, where, "service", q.name, f.services)
		}
	}
	// With the services of the tier.
	if j := e.Jobs.over(under.jobs, limits.OfUser); j != nil && len(j.Queues) > maxServices {
		f.report(e.Jobs.Queues.at, "%s has %d services; at most %d are possible", where, len(j.Queues), maxServices)
	}
}

// checkExpiry checks from when on an entry is void, and which tier the user has from then on.
func (f *file) checkExpiry(e *entry, where place) {
	f.checkTier(e.Then, where.below("then"))
	limited := e.Requests.said() || e.Costs.said() || e.Concurrent.said() || e.Bandwidth.said() || e.OverLimit.said() || e.Priority.said() || e.Mode.said() || e.Jobs.said() || e.Group.said()
	switch {
	case !e.Until.said() && e.Then.said():
		f.report(e.Then.at, "%s needs until: say from when on", where.below("then"))
	case e.Until.said() && !e.Then.said() && !limited:
		f.report(e.Until.at, "%s has no effect: nothing is overridden that could end; name the tier that follows with then, or leave it out", where.below("until"))
	}
}

// isUsablePattern checks a pattern of names.
func (f *file) isUsablePattern(at at, pattern string, where place) bool {
	literal := strings.ReplaceAll(pattern, all, "")
	const noUser = "%s: the pattern %s matches nobody: a name "
	switch {
	case strings.Contains(pattern, "**"):
		f.report(at, "%s: the pattern %s has ** in it; one * stands for any run of characters", where, quote(pattern))
	// Patterns are compared with keys. A key that is a hash tells nothing of its name.
	case pattern[0] == '~':
		f.report(at, noUser+"that begins with ~ is known by its hash alone; write the whole name", where, quote(pattern))
	case len(literal) > limits.MaxOwnKey:
		f.report(at, noUser+"of more than %d bytes is known by its hash alone; write the whole name", where, quote(pattern), limits.MaxOwnKey)
	case strings.ContainsFunc(literal, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		f.report(at, noUser+"with control characters is known by its hash alone; write the whole name", where, quote(pattern))
	default:
		return true
	}
	return false
}

// checkExempt checks the users and requests without limits.
func (f *file) checkExempt() {
	x, where := f.doc.Exempt, place{field: "exempt"}
	for _, user := range x.Users.items {
		f.exempt[user.text] = int(user.line)
		if limits.IsPattern(user.text) {
			f.isUsablePattern(user.at, user.text, where.below("users"))
		}
	}
	for _, address := range x.Addresses.items {
		f.checkAddress(address, where.below("addresses"))
	}
	for _, path := range x.Paths.items {
		if len(path.text) > maxPathBytes {
			f.report(path.at, "%s: each must have at most %d bytes, got %d", where.below("paths"), maxPathBytes, len(path.text))
		}
	}
	f.content.Exempt = limits.Exempt{Users: x.Users.values(), Addresses: x.Addresses.values(), Paths: x.Paths.values()}
}

func (f *file) patternsOfExempt() (n int) {
	for _, user := range f.content.Exempt.Users {
		if limits.IsPattern(user) {
			n++
		}
	}
	return n
}

// checkAddress checks an IP address, or a network in CIDR form. Each has one way to be written.
func (f *file) checkAddress(s scalar, where place) {
	network, err := netip.ParsePrefix(s.text)
	address, addressErr := netip.ParseAddr(s.text)
	switch {
	case addressErr == nil && address.Is4In6() && address.Zone() == "":
		f.report(s.at, "%s: %s is an IPv4 address; write %s", where, s.text, address.Unmap())
	case addressErr == nil && address.Zone() == "":
	case err != nil || network.Addr().Is4In6():
		f.report(s.at, `%s: each must be an IP address, or a network such as 10.0.0.0/8 or "2001:db8::/32", got %s`, where, quote(s.text))
	case network != network.Masked():
		f.report(s.at, "%s: %s is an address in a network; write %s for the network, or the address alone", where, s.text, network.Masked())
	}
}

func (f *file) checkAddressLimits() {
	auth, address := f.doc.FailedAuth, f.doc.PerAddress
	if auth.said() && !auth.PerAddress.said() {
		f.report(auth.at, "failed_auth is empty; leave it out, or write {per_address: 30/min}")
	}
	if address.said() && !address.Requests.said() && !address.Concurrent.said() {
		f.report(address.at, "per_address is empty; leave it out, or write {requests: 100, concurrent: 20}")
	}
	f.content.AddressLimits = limits.AddressLimits{Requests: int(address.Requests.n), Concurrent: int(address.Concurrent.n)}
	if n := auth.PerAddress.n; n > 0 {
		f.content.AddressLimits.FailedAuth = int(n)
		_, f.content.AddressLimits.FailedAuthWindow, _ = parseFailures(auth.PerAddress.text)
	}
}

func (f *file) checkQueues() {
	queues, where := f.doc.Queues, place{field: "queues"}
	for _, q := range queues.entries {
		if !f.isLowerName(q.at, q.name, where, maxService) {
			continue
		}
		// Jobs would wait for ever in a queue that was forgotten.
		for i, n := range q.value.numbers() {
			if q.value.said() && !n.said() {
				f.report(q.value.at, "%s has no %s; write %[2]s: 0 if nobody works that queue here", where.below(q.name), classesOfQueues[i])
			}
		}
		f.content.Queues = append(f.content.Queues, limits.Queue{Service: q.name, Priority: int(q.value.Priority.n), Default: int(q.value.Default.n), Scheduled: int(q.value.Scheduled.n)})
	}
	slices.SortFunc(f.content.Queues, func(a, b limits.Queue) int { return strings.Compare(a.Service, b.Service) })
	for _, q := range f.content.Queues {
		f.services = append(f.services, q.Service)
	}
}

func (f *file) checkDedicated() {
	w, where := f.doc.Workers, place{field: "workers"}
	for _, d := range w.users.entries {
		f.checkDedicatedTo(limits.Dedicated{User: d.name, Name: "user-" + dedicatedName(d.name)}, d, where.below(workersForUsers))
	}
	for _, d := range w.tiers.entries {
		tier, ok := f.tiers[d.name]
		if !ok {
			f.refuseUnknown(d.at, where, "tier", d.name, slices.Concat(f.tierNames, []string{workersForUsers}))
			continue
		}
		if !f.checkDedicatedTo(limits.Dedicated{Tier: d.name, Name: dedicatedName(d.name)}, d, where) {
			continue
		}
		// Workers of a class without jobs are a mistake that nothing else would show.
		for class, number := range map[string]scalar{limits.PriorityQueues: d.value.Priority, limits.DefaultQueues: d.value.Default} {
			if own := cmp.Or(tier.jobs.Class, limits.DefaultQueues); number.n > 0 && class != own {
				f.report(number.at, "%s.%s: the jobs of tier %s go to %s queues; write %[4]s: %[5]d, or jobs: {class: %[2]s} at the tier", where.below(d.name), class, quote(d.name), own, number.n)
			}
		}
	}
	slices.SortFunc(f.content.Dedicated, func(a, b limits.Dedicated) int {
		return cmp.Or(strings.Compare(a.Tier, b.Tier), strings.Compare(a.User, b.User))
	})
	if len(f.content.Dedicated) > maxDedicated {
		f.report(w.at, "%s has %d tiers and users; at most %d are possible", where, len(f.content.Dedicated), maxDedicated)
	}
}

// dedicatedName is a tier or a user in the names of queues. It has no _, so that the text behind
// the last _ of a queue's name is the class, and the tier or user.
func dedicatedName(name string) string { return strings.ReplaceAll(name, "_", "-") }

// checkDedicatedTo checks the workers of one tier or user, and reports whether they are usable.
func (f *file) checkDedicatedTo(d limits.Dedicated, of named[dedicatedTo], where place) bool {
	at := where.below(of.name)
	if !serviceForm.MatchString(of.name) {
		f.report(of.at, "%s: the name %s cannot be in the name of a queue; such names are of a-z and 0-9, with single _ or - between them", where, quote(of.name))
		return false
	}
	v := of.value
	d.Line, d.Priority, d.Default, d.Scheduled = int(of.line), int(v.Priority.n), int(v.Default.n), int(v.Scheduled.n)
	if v.said() && !v.Priority.said() && !v.Default.said() && !v.Scheduled.said() {
		f.report(v.at, "%s is empty; write one of %s, such as {priority: 10}", at, joinChoices(classesOfQueues))
	}
	// One queue for two users would be dedicated to neither.
	for _, other := range f.content.Dedicated {
		if other.Name == d.Name {
			f.report(of.at, "%s: the queues would have the same names as those of %s, on line %d", at, quote(cmp.Or(other.Tier, other.User)), other.Line)
			return false
		}
	}
	for _, q := range f.content.Queues {
		for _, class := range slices.Sorted(maps.Keys(d.Workers())) {
			if queue := q.Service + "_" + class; len(queue) > maxQueue {
				f.report(of.at, "%s: a queue would be called %s, which is %d bytes; River takes %d", at, queue, len(queue), maxQueue)
				return false
			}
		}
	}
	f.content.Dedicated = append(f.content.Dedicated, d)
	return true
}
