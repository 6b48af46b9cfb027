package limitfile

import (
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const burstForms = "a whole number from 1; leave it out for none"

// readRequests reads the request limits of a tier or a user: what it names replaces
// what was there.
func (f *file) readRequests(d *draft, where place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		d.requests = nil
		return
	}
	rates := d.requests
	for key, value := range f.eachEntry(n, where.atField("requests"), `{GET: 100, "*": 200}`) {
		if !slices.Contains(f.classNames, key.Value) {
			f.refuseUnknown(key, where.atField("requests"), "class", f.classNames)
			continue
		}
		own, _ := f.readRate(key.Value, where.atField("requests."+key.Value), value)
		rates = f.sharedRequests(rates.replaceClass(key.Value, own))
	}
	d.requests = rates
}

// readRate reads the limits of one class: a number for each second, or a mapping with a
// number for each window.
func (f *file) readRate(class string, where place, n *yaml.Node) (rates []limits.Rate, ok bool) {
	if !f.isPlain(n) {
		return nil, false
	}
	if n.Kind != yaml.MappingNode {
		if n.Kind != yaml.ScalarNode || isNull(n) {
			f.errorf(n, "%s must be a whole number, a mapping such as {second: 10, minute: 100}, or unlimited, got %s", where, describe(n))
			return nil, false
		}
		r := limits.Rate{Class: class}
		if f.readCount(&r.Max, where, n, limits.MaxPerSecond); r.Max > 0 {
			rates = []limits.Rate{r}
		}
		return rates, true
	}
	var counts [len(limits.Windows)]int
	var burst, windows int
	var mode limits.Mode
	for key, value := range f.eachEntry(n, where, "{second: 10, minute: 100}") {
		field := where.atField(where.field + "." + key.Value)
		at := slices.IndexFunc(limits.Windows[:], func(w limits.Window) bool { return w.String() == key.Value })
		switch {
		case at >= 0:
			f.readCount(&counts[at], field, value, limits.MaxPerSecond)
			windows++
		case key.Value == "burst":
			f.readBurst(&burst, field, value)
		case key.Value == "mode":
			f.readMode(&mode, field, value)
		default:
			f.refuseUnknown(key, where, "field", rateFields)
		}
	}
	if windows == 0 {
		f.errorf(n, "%s has no limit; write one of second, minute and hour, such as {second: 10}", where)
	}
	if b := lookup(n, "burst"); b != nil && (lookup(n, "second") == nil || isUnlimited(lookup(n, "second"))) {
		f.errorf(b, "%s.burst needs a limit for each second; write second: beside it", where)
	}
	for i, w := range limits.Windows {
		if counts[i] == 0 {
			continue
		}
		r := limits.Rate{Class: class, Window: w, Max: counts[i], Mode: mode}
		if w == limits.Second {
			r.Burst = burst
		}
		rates = append(rates, r)
	}
	return rates, true
}

// readBurst reads how many requests beyond a second's a user may save up.
func (f *file) readBurst(to *int, where place, n *yaml.Node) {
	f.readNumber(to, where, n, burstForms, func(s string) (int, error) {
		return parseWhole(s, limits.MaxBurst, burstForms, "leave it out for none")
	})
}

// readMode reads enforce, dry-run or off.
func (f *file) readMode(to *limits.Mode, where place, n *yaml.Node) {
	if !f.isScalar(n, where, "enforce, dry-run or off") {
		return
	}
	for _, mode := range modes {
		if n.Value == mode.String() {
			*to = mode
			return
		}
	}
	f.refuseUnknown(n, where, "mode", modeNames)
}

var (
	modes     = [...]limits.Mode{limits.Enforce, limits.DryRun, limits.Off}
	modeNames = []string{limits.Enforce.String(), limits.DryRun.String(), limits.Off.String()}
)

// isUnlimited reports whether a node lifts a limit.
func isUnlimited(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Value == unlimited }
