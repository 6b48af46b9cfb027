package limitfile

import (
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// The limits of a tier or a user.
var (
	limitFields = fields[draft]{
		{"requests", (*file).readRequests},
		{"costs", (*file).readCosts},
		{"concurrent", (*file).readConcurrent},
		{"bandwidth", (*file).readBandwidth},
		{"over_limit", func(f *file, d *draft, at place, n *yaml.Node) {
			readFields(f, d, at, n, "{concurrent: wait 2s}", overLimitFields)
		}},
		scalar("priority", priorities, func(d *draft) *int { return &d.priority }),
		modeField(func(d *draft) *limits.Mode { return &d.mode }),
		{"jobs", (*file).readJobs},
	}

	rateFields = fields[rateDraft]{
		scalar("second", perSecond, func(r *rateDraft) *int { return &r.counts[limits.Second] }),
		scalar("burst", bursts, func(r *rateDraft) *int { return &r.burst }),
		scalar("minute", perSecond, func(r *rateDraft) *int { return &r.counts[limits.Minute] }),
		scalar("hour", perSecond, func(r *rateDraft) *int { return &r.counts[limits.Hour] }),
		modeField(func(r *rateDraft) *limits.Mode { return &r.mode }),
	}
	concurrentFields = fields[draft]{
		scalar("limit", inProgress, func(d *draft) *int { return &d.concurrent }),
		modeField(func(d *draft) *limits.Mode { return &d.concurrentMode }),
	}
	bandwidthFields = fields[draft]{
		scalar("down", sizes, func(d *draft) *int64 { return &d.bandwidth.Down }),
		scalar("up", sizes, func(d *draft) *int64 { return &d.bandwidth.Up }),
		scalar("default_share", sizes, func(d *draft) *int64 { return &d.bandwidth.DefaultShare }),
	}
	overLimitFields = fields[draft]{
		scalar("concurrent", waits, func(d *draft) *time.Duration { return &d.wait }),
	}
)

// rateDraft is what is said of the requests of one class.
type rateDraft struct {
	counts [len(limits.Windows)]int // 0: not limited
	burst  int
	mode   limits.Mode
}

// readRequests reads limits by class: what is named replaces what was there.
func (f *file) readRequests(d *draft, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		d.requests = nil
		f.replace(at, n)
		return
	}
	// Class by class: what the tier says of a class that is not named here stays.
	rates := d.requests
	for key, value := range f.eachEntry(n, at, `{GET: 100, "*": 200}`) {
		if !slices.Contains(f.classNames, key.Value) {
			f.refuseUnknown(key, at, "class", f.classNames)
			continue
		}
		// Also after an error in it, so that the other classes are read over the same.
		own := f.readRate(key.Value, at.below(key.Value), value)
		rates = f.sharedRequests(rates.replaceClass(key.Value, own))
	}
	d.requests = rates
}

// readRate reads the limits of one class: a number for each second, or a mapping with a
// number for each window.
func (f *file) readRate(class string, at place, n *yaml.Node) (rates []limits.Rate) {
	if !f.isPlain(n) {
		return nil
	}
	// An entry states all of its class: a burst or an hour of the tier would be a surprise beside it.
	f.drop(at)
	r := &f.rate
	*r = rateDraft{}
	switch {
	case n.Kind == yaml.MappingNode:
		readFields(f, r, at, n, "{second: 10, minute: 100}", rateFields)
		f.checkWindows(at, n)
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s must be a whole number, a mapping such as {second: 10, minute: 100}, or unlimited, got %s", at, describe(n))
	default:
		perSecond.read(f, &r.counts[limits.Second], at, n)
	}
	for _, w := range limits.Windows {
		// Unlimited in one window is no limit there; the others count.
		if r.counts[w] == 0 {
			continue
		}
		rate := limits.Rate{Class: class, Window: w, Max: r.counts[w], Mode: r.mode}
		// A burst is what was left unused in the seconds before, so that no other window has one.
		if w == limits.Second {
			rate.Burst = r.burst
		}
		rates = append(rates, rate)
	}
	return rates
}

// checkWindows checks that a mapping of windows limits something, and that a burst has a second
// to be over.
func (f *file) checkWindows(at place, n *yaml.Node) {
	if !slices.ContainsFunc(limits.Windows[:], func(w limits.Window) bool { return lookup(n, w.String()) != nil }) {
		f.errorf(n, "%s has no limit; write one of second, minute and hour, such as {second: 10}", at)
	}
	second := lookup(n, limits.Second.String())
	if burst := lookup(n, "burst"); burst != nil && (second == nil || isUnlimited(second)) {
		f.errorf(burst, "%s.burst needs a limit for each second; write second: beside it", at)
	}
}

// readConcurrent reads a number, or a mapping of one and its mode.
func (f *file) readConcurrent(d *draft, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	// A number alone replaces the mode of the tier, too: else a limit that somebody states
	// could go on being a dry run that they do not see.
	d.concurrent, d.concurrentMode = 0, limits.Enforce
	f.drop(at)
	if n.Kind != yaml.MappingNode {
		inProgress.read(f, &d.concurrent, at, n)
		return
	}
	readFields(f, d, at, n, "{limit: 10, mode: dry-run}", concurrentFields)
	if lookup(n, "limit") == nil {
		f.errorf(n, "%s has no limit; write limit: and a number beside the mode", at)
	}
}

func (f *file) readBandwidth(d *draft, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		d.bandwidth = limits.Bandwidth{}
		f.replace(at, n)
		return
	}
	// Field by field, unlike the requests of a class: a direction that is not named stays as the tier has it.
	readFields(f, d, at, n, "{down: 10MiB, up: 5MiB}", bandwidthFields)
	// The error is where the share is, or else where the limit is that has become too small for it.
	share := lookup(n, "default_share")
	if share == nil {
		share = n
	}
	f.checkDefaultShare(share, at, d.bandwidth)
}

// checkDefaultShare checks that a default share is at most each limit. n is what may make
// it too large.
func (f *file) checkDefaultShare(n *yaml.Node, where place, b limits.Bandwidth) {
	where = where.atField("bandwidth.default_share")
	// A share above the limit would give one instance more than all of them may give.
	if b.Down > 0 && b.DefaultShare > b.Down {
		f.errorf(n, "%s must be at most bandwidth.down, which is %d bytes, got %d", where, b.Down, b.DefaultShare)
	}
	if b.Up > 0 && b.DefaultShare > b.Up {
		f.errorf(n, "%s must be at most bandwidth.up, which is %d bytes, got %d", where, b.Up, b.DefaultShare)
	}
}

// readMode reads enforce, dry-run or off.
func (f *file) readMode(to *limits.Mode, at place, n *yaml.Node) {
	if !f.isScalar(n, at, "enforce, dry-run or off") {
		return
	}
	i := slices.Index(modeNames, n.Value)
	if i < 0 {
		f.refuseUnknown(n, at, "mode", modeNames)
		return
	}
	// The names are in the order of the modes.
	*to = limits.Mode(i)
	f.mark(at, n)
}

// modeNames are the names of the modes, each at its own number.
var modeNames = []string{limits.Enforce.String(), limits.DryRun.String(), limits.Off.String()}
