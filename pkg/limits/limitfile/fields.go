package limitfile

import (
	"iter"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// readLimit reads one field of a tier or a user into d. It reports whether there is
// such a field. What is wrong with its value it reports as an error of the file.
func (f *file) readLimit(d *draft, where place, key, value *yaml.Node) bool {
	switch key.Value {
	case "mode":
		f.readMode(&d.mode, where.atField("mode"), value)
	case "requests":
		f.readRequests(d, where, value)
	case "concurrent":
		f.readConcurrent(d, where, value)
	case "bandwidth":
		f.readBandwidth(&d.bandwidth, where, value)
	case "over_limit":
		f.readOverLimit(&d.wait, where, value)
	case "priority":
		f.readPriority(&d.priority, where.atField("priority"), value)
	case "jobs":
		f.readJobs(d, where, value)
	default:
		return false
	}
	return true
}

// readConcurrent reads a number, or a mapping of one and its mode.
func (f *file) readConcurrent(d *draft, where place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	where = where.atField("concurrent")
	// A number alone replaces the mode of the tier, too: else a limit that somebody states
	// could go on being a dry run that they do not see.
	d.concurrent, d.concurrentMode = 0, limits.Enforce
	if n.Kind != yaml.MappingNode {
		f.readCount(&d.concurrent, where, n, limits.MaxConcurrent)
		return
	}
	limit := false
	for key, value := range f.eachEntry(n, where, "{limit: 10, mode: dry-run}") {
		switch key.Value {
		case "limit":
			f.readCount(&d.concurrent, where.atField("concurrent.limit"), value, limits.MaxConcurrent)
			limit = true
		case "mode":
			f.readMode(&d.concurrentMode, where.atField("concurrent.mode"), value)
		default:
			f.refuseUnknown(key, where, "field", concurrentNames)
		}
	}
	if !limit {
		f.errorf(n, "%s has no limit; write limit: and a number beside the mode", where)
	}
}

func (f *file) readBandwidth(b *limits.Bandwidth, where place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		*b = limits.Bandwidth{}
		return
	}
	at := n // what may make the default share too large
	for key, value := range f.eachEntry(n, where.atField("bandwidth"), "{down: 10MiB, up: 5MiB}") {
		switch key.Value {
		case "down":
			f.readSize(&b.Down, where.atField("bandwidth.down"), value)
		case "up":
			f.readSize(&b.Up, where.atField("bandwidth.up"), value)
		case "default_share":
			f.readSize(&b.DefaultShare, where.atField("bandwidth.default_share"), value)
			at = value
		case "mode":
			f.readMode(&b.Mode, where.atField("bandwidth.mode"), value)
		default:
			f.refuseUnknown(key, where.atField("bandwidth"), "field", bandwidthFields)
		}
	}
	f.checkDefaultShare(at, where, *b)
}

// checkDefaultShare checks that a default share is at most each limit. n is what may make
// it too large.
func (f *file) checkDefaultShare(n *yaml.Node, where place, b limits.Bandwidth) {
	if f.quiet {
		return
	}
	where = where.atField("bandwidth.default_share")
	if b.Down > 0 && b.DefaultShare > b.Down {
		f.errorf(n, "%s must be at most bandwidth.down, which is %d bytes, got %d", where, b.Down, b.DefaultShare)
	}
	if b.Up > 0 && b.DefaultShare > b.Up {
		f.errorf(n, "%s must be at most bandwidth.up, which is %d bytes, got %d", where, b.Up, b.DefaultShare)
	}
}

func (f *file) readOverLimit(wait *time.Duration, where place, n *yaml.Node) {
	for key, value := range f.eachEntry(n, where.atField("over_limit"), "{concurrent: wait 2s}") {
		if key.Value == "concurrent" {
			f.readWait(wait, where.atField("over_limit.concurrent"), value)
		} else {
			f.refuseUnknown(key, where.atField("over_limit"), "field", overLimitFields)
		}
	}
}

// readWait reads what becomes of a request over a limit: refuse, which is 0, or wait
// and for how long.
func (f *file) readWait(to *time.Duration, where place, n *yaml.Node) {
	readValue(f, to, where, n, waitForms, parseWait)
}

// readPriority reads a whole number from -MaxPriority to MaxPriority.
func (f *file) readPriority(to *int, where place, n *yaml.Node) {
	f.readNumber(to, where, n, priorityForms, parsePriority)
}

// readCount reads a whole number from 1 to most, or unlimited, which is 0.
func (f *file) readCount(to *int, where place, n *yaml.Node, most int) {
	if isUnlimited(n) {
		if f.isPlain(n) { // else the error is told already
			*to = 0
		}
		return
	}
	f.readNumber(to, where, n, "a whole number or unlimited", func(s string) (int, error) { return parseCount(s, most) })
}

// readNumber is readValue for a number, which must not be in quotes: a schema refuses it
// there.
func (f *file) readNumber(to *int, where place, n *yaml.Node, forms string, parse func(string) (int, error)) {
	var v int
	switch {
	case !readValue(f, &v, where, n, forms, parse):
	case n.ShortTag() == "!!str":
		f.errorf(n, "%s must be a number, got text; write %d without quotes", where, v)
	default:
		*to = v
	}
}

// readValue reads a scalar, and reports whether it could. Errors tell its forms; an error of
// parse goes on where the name of the field leaves off.
func readValue[T any](f *file, to *T, where place, n *yaml.Node, forms string, parse func(string) (T, error)) bool {
	if !f.isScalar(n, where, forms) {
		return false
	}
	v, err := parse(n.Value)
	if err != nil {
		f.errorf(n, "%s %v", where, err)
		return false
	}
	*to = v
	return true
}

// isScalar reports whether a node is a scalar that is not null.
func (f *file) isScalar(n *yaml.Node, where place, forms string) bool {
	if !f.isPlain(n) {
		return false
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, forms, describe(n))
		return false
	}
	return true
}

// readSize reads a size, or unlimited, which is 0.
func (f *file) readSize(to *int64, where place, n *yaml.Node) {
	if isUnlimited(n) {
		if f.isPlain(n) { // else the error is told already
			*to = 0
		}
		return
	}
	readValue(f, to, where, n, sizeForms, parseSize)
}

// readTierName reads the name of a tier of the file. It is "" after an error. When
// the file has no tiers, which is an error already, any name is as good.
func (f *file) readTierName(n *yaml.Node, where place) string {
	if !f.isScalar(n, where, "the name of a tier") {
		return ""
	}
	if n.ShortTag() == "!!bool" {
		f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
		return ""
	}
	// A tier with errors is a draft as well: its users are not told of as further errors.
	if _, ok := f.tierDrafts[n.Value]; ok {
		return n.Value
	}
	if len(f.tierDrafts) > 0 {
		f.refuseUnknown(n, where, "tier", f.tierNames)
	}
	return ""
}

// eachEntry yields the names and values of a mapping; the example shows one in an
// error. A name that is not text, or that was there before, is an error and left
// out.
func (f *file) eachEntry(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		lines := make(map[string]int, len(n.Content)/2)
		for key, value := range f.allEntries(n, where, example) {
			if line, ok := lines[key.Value]; ok {
				f.errorf(key, "%s has %s twice, first on line %d", where, quote(key.Value), line)
				continue
			}
			lines[key.Value] = key.Line
			if !yield(key, value) {
				return
			}
		}
	}
}

// allEntries is entries without regard to names that were there before.
func (f *file) allEntries(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if !f.isPlain(n) {
			return
		}
		if n.Kind != yaml.MappingNode {
			f.errorf(n, "%s must be a mapping such as %s, got %s", where, example, describe(n))
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if f.isName(n.Content[i], where) && !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// readComment reads what a person wrote about a tier or a user. It means nothing.
func (f *file) readComment(where place, n *yaml.Node) {
	where = where.atField("comment")
	if f.isScalar(n, where, "text") && len(n.Value) > maxComment {
		f.errorf(n, "%s is longer than %d bytes", where, maxComment)
	}
}

// maxComment is the longest comment field, in bytes.
const maxComment = 1000

// eachItem yields the items of a list of at most so many texts, each there once; the
// example shows one in an error. A list without items is an error.
func (f *file) eachItem(n *yaml.Node, where place, example string, most int) iter.Seq[*yaml.Node] {
	return func(yield func(*yaml.Node) bool) {
		if !f.isPlain(n) {
			return
		}
		switch {
		case n.Kind != yaml.SequenceNode:
			f.errorf(n, "%s must be a list such as %s, got %s", where, example, describe(n))
			return
		case len(n.Content) == 0:
			f.errorf(n, "%s is empty; leave it out, or write a list such as %s", where, example)
			return
		case len(n.Content) > most:
			f.errorf(n, "%s has %d items; at most %d are possible", where, len(n.Content), most)
			return
		}
		seen := make(map[string]bool, len(n.Content))
		for _, item := range n.Content {
			if !f.isText(item, where) {
				continue
			}
			if seen[item.Value] {
				f.errorf(item, "%s has %s twice", where, quote(item.Value))
				continue
			}
			seen[item.Value] = true
			if !yield(item) {
				return
			}
		}
	}
}

// isText reports whether a node is text that is not empty, or a number, which is the
// text that it is written as.
func (f *file) isText(n *yaml.Node, where place) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s: each must be text, got %s", where, describe(n))
	case n.Value == "":
		f.errorf(n, "%s: each must be text, got nothing", where)
	case n.ShortTag() == "!!bool":
		f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	default:
		return true
	}
	return false
}

// isName reports whether a key of a mapping is text that is there. Numbers and
// dates are the text that they are written as; what YAML reads as nothing, as
// true or false, or as a merge is more likely a mistake.
func (f *file) isName(n *yaml.Node, where place) bool {
	if !f.isPlain(n) {
		return false
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		f.errorf(n, "%s: a name must be text, got %s", where, describe(n))
	case n.ShortTag() == "!!merge":
		f.errorf(n, "%s: merging (<<) is not supported; write the values out", where)
	case n.Value == "":
		f.errorf(n, "%s: a name must not be empty", where)
	case n.ShortTag() == "!!null" || n.ShortTag() == "!!bool":
		f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	default:
		return true
	}
	return false
}

// isPlain reports whether a node does without the parts of YAML that a limit file
// may not use: aliases and anchors, which can make a small file huge, and tags.
func (f *file) isPlain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		f.errorf(n, "aliases (*%s) are not supported; write the value out", shorten(n.Value))
	case n.Anchor != "":
		f.errorf(n, "anchors (&%s) are not supported; leave it out", shorten(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		f.errorf(n, "tags (%s) are not supported; leave it out", shorten(n.Tag))
	default:
		return true
	}
	return false
}

// lookup returns the value of the first entry of that name, or nil.
func lookup(n *yaml.Node, name string) *yaml.Node {
	_, value := findEntry(n, name)
	return value
}

func (f *file) refuseUnknown(key *yaml.Node, where place, what string, valid []string) {
	if !f.isFull() {
		f.errorf(key, "%s: unknown %s %s", where, what, choices(key.Value, valid))
		return
	}
	f.more++
}

func (f *file) errorf(n *yaml.Node, format string, args ...any) {
	f.addError(n.Line, n.Column, format, args...)
}
