package limitfile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How much classes may hold. HAProxy compares each request with all of them.
const (
	maxClasses    = 64
	maxMatches    = 16   // of a class
	maxMatchItems = 64   // methods, query keys or headers of a match
	maxPathBytes  = 1000 // of a path or a prefix of one
	maxValueBytes = 200  // of a header's value
)

// The forms of texts. They mean the same in Go and in ECMAScript, which JSON Schema uses.
var (
	classForm  = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)
	methodForm = regexp.MustCompile(`^[A-Z][A-Z-]{0,31}$`)
	queryForm  = regexp.MustCompile(`^[A-Za-z0-9_.~:\[\]-]{1,100}$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
	hostForm   = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	// Names of HAProxy's proxies (configuration.txt, section 4).
	frontendForm = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,100}$`)
	valueForm    = regexp.MustCompile(`^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$`)
	prefixForm   = regexp.MustCompile(`^/[\x21\x22\x24-\x3e\x40-\x7e]*$`)              // neither ? nor #
	pathsForm    = regexp.MustCompile(`^/[\x21\x22\x24-\x29\x2b-\x3e\x40-\x7e]*[*]?$`) // nor *, but at the end
)

// classes are those that every file may limit.
var classes = slices.Concat([]string{limits.All}, limits.BuiltinClasses())

// s3Preset names the ready-made classes of an S3 service.
const s3Preset = "s3"

const (
	classesExample = `{LIST: {methods: [GET], query: [list-type]}}`
	prefixWords    = "the beginning of a path, such as /reports/, without blanks, ? or #"
)

// readClasses reads the name of ready-made classes, or a mapping of them.
func (f *file) readClasses(where place, n *yaml.Node) {
	switch {
	case !f.isPlain(n):
	case n.Kind == yaml.ScalarNode && n.Value == s3Preset:
		f.content.Classes = limits.S3Classes(nil)
	case n.Kind != yaml.MappingNode:
		f.errorf(n, "%s must be s3, or a mapping such as %s, got %s", where, classesExample, describe(n))
	case isEmpty(n):
		f.errorf(n, "%s is empty; leave it out, or write s3 or a mapping such as %s", where, classesExample)
	case len(n.Content)/2 > maxClasses:
		f.errorf(n, "%s has %d classes; at most %d are possible", where, len(n.Content)/2, maxClasses)
	default:
		for key, value := range f.eachEntry(n, where, classesExample) {
			// In the order of the file, because the first that matches is the request's.
			var more []limits.Class
			if key.Value == s3Preset {
				more = f.readS3(where.below(s3Preset), value)
			} else if f.isClassName(key, where) {
				more = []limits.Class{f.readClass(key.Value, value)}
			}
			for _, c := range more {
				if slices.ContainsFunc(f.content.Classes, func(other limits.Class) bool { return other.Name == c.Name }) {
					f.errorf(key, "%s has the class %s twice: s3 has it", where, c.Name)
				}
			}
			f.content.Classes = append(f.content.Classes, more...)
		}
	}
	f.classes = slices.Clone(f.classes)
	for _, c := range f.content.Classes {
		f.classes = append(f.classes, c.Name)
	}
}

func (f *file) isClassName(n *yaml.Node, where place) bool {
	switch {
	case slices.Contains(classes, n.Value):
		f.errorf(n, "%s: %s is the class of a method already; choose another name", where, n.Value)
	case !classForm.MatchString(n.Value):
		f.errorf(n, "%s: the name %s is not usable; write 1 to 32 capital letters, digits and _, of which the first is a letter", where, quote(n.Value))
	default:
		return true
	}
	return false
}

// readS3 reads the hosts of an S3 service, and returns its classes.
func (f *file) readS3(where place, n *yaml.Node) []limits.Class {
	var hosts []string
	f.readFields(n, where, "{hosts: [s3.example.com]}", field{"hosts", f.readHosts(&hosts)})
	if n.Kind == yaml.MappingNode && lookup(n, "hosts") == nil {
		f.errorf(n, "%s has no hosts; write the names of the service, such as hosts: [s3.example.com]", where)
	}
	return limits.S3Classes(hosts)
}

func (f *file) readHosts(to *[]string) func(place, *yaml.Node) {
	return f.texts(to, `[api.example.com, "*.api.example.com"]`, maxMatchItems, f.isForm(hostForm, "the name of a host in small letters, without a port, or *. and one for all hosts below it"))
}

// readClass reads one match, or a list of them.
func (f *file) readClass(name string, n *yaml.Node) limits.Class {
	where := place{of: "class " + quote(name)}
	c := limits.Class{Name: name}
	items := []*yaml.Node{n}
	switch {
	case !f.is(n, where, yaml.MappingNode|yaml.SequenceNode, "a mapping such as {methods: [GET], query: [list-type]}, or a list of such"):
		return c
	case n.Kind == yaml.SequenceNode:
		if items = n.Content; len(items) == 0 || len(items) > maxMatches {
			f.errorf(n, "%s must have 1 to %d matches, got %d", where, maxMatches, len(items))
			return c
		}
	}
	for _, item := range items {
		c.Any = append(c.Any, f.readMatch(where, item))
	}
	return c
}

func (f *file) readMatch(where place, n *yaml.Node) (m limits.Match) {
	keys := f.isForm(queryForm, "the key of a query: letters, digits and - _ . ~ : [ ]")
	f.readFields(n, where, "{methods: [GET], path_prefix: /reports/}",
		field{"methods", f.texts(&m.Methods, "[GET, HEAD]", maxMatchItems, f.isForm(methodForm, "the name of a method in capital letters"))},
		field{"hosts", f.readHosts(&m.Hosts)},
		field{"frontends", f.texts(&m.Frontends, "[admin]", maxMatchItems, f.isForm(frontendForm, "the name of a frontend of HAProxy: letters, digits and - _ . :"))},
		field{"path_prefix", into(f, &m.PathPrefix, prefixes)},
		field{"path_regex", func(at place, n *yaml.Node) { m.PathRegex = f.readRegex(at, n) }},
		field{"query", f.texts(&m.Query, "[list-type]", maxMatchItems, keys)},
		field{"no_query", f.texts(&m.NoQuery, "[acl, policy]", maxMatchItems, keys)},
		field{"headers", func(at place, n *yaml.Node) { m.Headers = f.readHeaders(at, n) }})
	if got := m.Conditions(); got > limits.MaxConditions {
		f.errorf(n, "%s: a match must have at most %d conditions, got %d: each key of query and each header is one, and each other field is one",
			where, limits.MaxConditions, got)
	}
	for name, texts := range map[string][]string{"no_query": m.NoQuery, "hosts": m.Hosts, "frontends": m.Frontends} {
		if got := len(strings.Join(texts, " ")); got > limits.MaxMatchText {
			f.errorf(lookup(n, name), "%s must have at most %d bytes, got %d", where.below(name), limits.MaxMatchText, got)
		}
	}
	for _, key := range m.NoQuery {
		if slices.Contains(m.Query, key) {
			f.errorf(lookup(n, "no_query"), "%s has %s, which query has too: nothing would match", where.below("no_query"), quote(key))
		}
	}
	return m
}

// isForm checks an item of a list.
func (f *file) isForm(form *regexp.Regexp, want string) func(item *yaml.Node, at place) bool {
	return func(item *yaml.Node, at place) bool {
		if form.MatchString(item.Value) {
			return true
		}
		f.errorf(item, "%s: each must be %s, got %s", at, want, quote(item.Value))
		return false
	}
}

var prefixes = kind[string]{forms: prefixWords, parse: func(s string) (string, error) {
	switch {
	case !prefixForm.MatchString(s):
		return "", mustBe(prefixWords, s)
	case len(s) > maxPathBytes:
		return "", fmt.Errorf("must have at most %d bytes, got %d", maxPathBytes, len(s))
	}
	return s, nil
}}

// readHeaders reads header names and their values, "" for any.
func (f *file) readHeaders(where place, n *yaml.Node) (headers []limits.HeaderMatch) {
	if !f.isSized(n, where, maxMatchItems, "headers") {
		return nil
	}
	for key, value := range f.eachEntry(n, where, `{X-Kind: report, X-Trace: ""}`) {
		switch {
		case !headerForm.MatchString(key.Value):
			f.errorf(key, "%s: %s is not the name of a header", where, quote(key.Value))
		case slices.ContainsFunc(headers, func(h limits.HeaderMatch) bool { return strings.EqualFold(h.Name, key.Value) }):
			f.errorf(key, "%s has %s twice, in other letters", where, quote(key.Value))
		case !f.isPlain(value):
		case value.Kind != yaml.ScalarNode || isNull(value):
			f.errorf(value, `%s: the value of %s must be text, or "" for any, got %s`, where, shorten(key.Value), describe(value))
		case !valueForm.MatchString(value.Value) || len(value.Value) > maxValueBytes:
			f.errorf(value, "%s: the value of %s must be 1 to %d printable ASCII characters without blanks around them, got %s", where, shorten(key.Value), maxValueBytes, quote(value.Value))
		default:
			headers = append(headers, limits.HeaderMatch{Name: key.Value, Value: value.Value})
		}
	}
	return headers
}
