package limitfile

import (
	"cmp"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"
)

// at is where the file says something, from 1. The zero at is of what it does not say.
type at struct {
	line, column int32
	wrong        bool // what it says is no mapping, or has other fields: nothing is missing in it
}

func (a *at) place() *at { return a }

func (a at) said() bool { return a.line != 0 && !a.wrong }

// A scalar is a single value of the file: the text as it is written, and what its kind makes of it.
type scalar struct {
	at
	text  string
	n     int64 // 0 for unlimited, and after an error
	lifts bool  // it is unlimited
	layer Layer // who says it
}

// A decoder fills structs with what nodes say, and notes where they say it and what is wrong with
// them: unknown and repeated names, values of another kind, and YAML that makes a small file huge.
type decoder struct {
	problems
	layer Layer
	base  int32 // is added to the lines of the nodes
}

// A decodable reads itself. The tag is that of the field.
type decodable interface {
	decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag)
}

func (d *decoder) at(n *yaml.Node) at {
	return at{line: int32(n.Line) + d.base, column: int32(n.Column)}
}

// decode reads a node to where a pointer points. What it says is noted even after an error, so that
// nothing is reported as missing that is only wrong.
func (d *decoder) decode(n *yaml.Node, to any, where place, tag reflect.StructTag) {
	if p, ok := to.(interface{ place() *at }); ok {
		*p.place() = d.at(n)
	}
	switch to := to.(type) {
	case decodable:
		to.decode(d, n, where, tag)
	case *scalar:
		d.scalar(n, to, kinds[tag.Get("kind")], where)
	default:
		d.structure(n, to, where, tag)
	}
}

func (d *decoder) scalar(n *yaml.Node, s *scalar, k kind, where place) {
	if !d.is(n, where, yaml.ScalarNode, k.forms) || k.name && d.refuseBool(n, where) {
		return
	}
	s.layer, s.text = d.layer, n.Value
	if k.lifts && n.Value == unlimited {
		s.lifts = true
		return
	}
	// The text, not the value that YAML makes of it: to YAML 010 is eight.
	v, err := k.parse(n.Value)
	switch tag := n.ShortTag(); {
	case err != nil:
		d.errorf(n, "%s %v", where, err)
	// The JSON Schema has one type for each of these values.
	case k.text && (tag == "!!int" || tag == "!!float" || tag == "!!bool"):
		d.errorf(n, "%s must be text, got %s; write it in quotes", where, shorten(n.Value))
	case k.number && tag == "!!str":
		d.errorf(n, "%s must be a number, got text; write %v without quotes", where, v)
	default:
		s.n = v
	}
}

// structure reads a mapping with a field for each name. The tag of the struct's at has the forms of
// the value for errors, and the field that may stand for all of it.
func (d *decoder) structure(n *yaml.Node, to any, where place, tag reflect.StructTag) {
	v := reflect.ValueOf(to).Elem()
	own, _ := v.Type().FieldByName("at")
	if bare, ok := v.Type().FieldByName(cmp.Or(tag.Get("bare"), own.Tag.Get("bare"))); ok && n.Kind == yaml.ScalarNode && !isNull(n) {
		if n.Value == unlimited || kinds[bare.Tag.Get("kind")].parse != nil {
			d.decode(n, v.FieldByIndex(bare.Index).Addr().Interface(), where, bare.Tag)
			return
		}
	}
	wrong := func() {
		if p, ok := to.(interface{ place() *at }); ok {
			p.place().wrong = true
		}
	}
	if !d.is(n, where, yaml.MappingNode, cmp.Or(own.Tag.Get("forms"), tag.Get("each"), tag.Get("forms"))) {
		wrong()
		return
	}
	all := fieldsOfStruct(v.Type())
	without := strings.Fields(tag.Get("without"))
	for key, value := range d.pairs(n, where) {
		if i := slices.Index(all.names, key.Value); i >= 0 && !slices.Contains(without, key.Value) {
			f := all.fields[i]
			d.decode(value, v.FieldByIndex(f.Index).Addr().Interface(), where.below(key.Value), f.Tag)
		} else {
			valid := slices.DeleteFunc(slices.Clone(all.names), func(name string) bool { return slices.Contains(without, name) })
			d.refuseUnknown(d.at(key), where, "field", key.Value, valid)
			wrong()
		}
	}
}

type structFields struct {
	names  []string
	fields []reflect.StructField
}

var knownFields sync.Map // structFields by reflect.Type: listing them takes longer than decoding

// fieldsOfStruct lists the fields of a struct, with those of the structs within it.
func fieldsOfStruct(t reflect.Type) structFields {
	if known, ok := knownFields.Load(t); ok {
		return known.(structFields)
	}
	var all structFields
	for _, f := range reflect.VisibleFields(t) {
		if name := f.Tag.Get("yaml"); name != "" {
			all.names, all.fields = append(all.names, name), append(all.fields, f)
		}
	}
	knownFields.Store(t, all)
	return all
}

// A table is a mapping of any names, in the order of the file.
type table[T any] struct {
	at
	unlimited scalar // instead of the mapping
	isMapping bool
	entries   []named[T]
}

type named[T any] struct {
	at
	name  string
	value T
}

// decode reads a mapping, or unlimited if the tag has lifts.
func (t *table[T]) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	if tag.Get("lifts") != "" && n.Kind == yaml.ScalarNode && n.Value == unlimited {
		d.decode(n, &t.unlimited, where, `kind:"lift"`)
		return
	}
	if !d.is(n, where, yaml.MappingNode, tag.Get("forms")) {
		return
	}
	t.isMapping = true
	if most, _ := strconv.Atoi(tag.Get("most")); most > 0 && (len(n.Content) == 0 || len(n.Content)/2 > most) {
		d.errorf(n, "%s must have 1 to %d %s, got %d", where, most, tag.Get("what"), len(n.Content)/2)
		return
	}
	for key, value := range d.pairs(n, where) {
		inner := where.below(key.Value)
		if of := tag.Get("of"); of != "" {
			inner = place{of: of + " " + quote(key.Value)}
		}
		t.entries = append(t.entries, named[T]{at: d.at(key), name: key.Value})
		d.decode(value, &t.entries[len(t.entries)-1].value, inner, tag)
	}
}

// over is the table with its entries in the place of those of the same name in the one below it.
func (t table[T]) over(under table[T]) table[T] {
	if !t.said() {
		return under
	}
	if t.unlimited.said() {
		return t
	}
	entries := slices.Clone(under.entries)
	for _, e := range t.entries {
		if i := slices.IndexFunc(entries, func(old named[T]) bool { return old.name == e.name }); i >= 0 {
			entries[i] = e
		} else {
			entries = append(entries, e)
		}
	}
	return table[T]{t.at, under.unlimited, true, entries}
}

// texts is a list of texts, of which each is there once.
type texts struct {
	at
	items []scalar
}

// itemForms are the forms of texts, as the tags of file.go name them, and what errors say.
var itemForms = map[string]struct {
	form  *regexp.Regexp
	words string
}{
	"method":   {methodForm, "the name of a method in capital letters"},
	"host":     {hostForm, "the name of a host in small letters, without a port, or *. and one for all hosts below it"},
	"frontend": {frontendForm, "the name of a frontend of HAProxy: letters, digits and - _ . :"},
	"query":    {queryForm, "the key of a query: letters, digits and - _ . ~ : [ ]"},
	"path":     {pathsForm, `a path such as /healthz, without blanks, ? or #, or the beginning of one with * behind it, such as "/static/*"`},
}

// decode reads a list of 1 to so many texts as the tag has in most, each of the form in items.
func (t *texts) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	example := tag.Get("example")
	most, _ := strconv.Atoi(tag.Get("most"))
	items := itemForms[tag.Get("items")]
	switch {
	case !d.is(n, where, yaml.SequenceNode, "a list such as "+example):
		return
	// To some people an empty list means no user, to others every user.
	case len(n.Content) == 0:
		d.errorf(n, "%s is empty; leave it out, or write a list such as %s", where, example)
		return
	case most > 0 && len(n.Content) > most:
		d.errorf(n, "%s has %d items; at most %d are possible", where, len(n.Content), most)
		return
	}
	seen := make(map[string]bool, len(n.Content))
	for _, item := range n.Content {
		switch {
		case !d.isPlain(item):
		case item.Kind != yaml.ScalarNode || isNull(item) && item.Value != "":
			d.errorf(item, "%s: each must be text, got %s", where, describe(item))
		case item.Value == "":
			d.errorf(item, "%s: each must be text, got nothing", where)
		case d.refuseBool(item, where):
		case seen[item.Value]:
			d.errorf(item, "%s has %s twice", where, quote(item.Value))
		case items.form != nil && !items.form.MatchString(item.Value):
			d.errorf(item, "%s: each must be %s, got %s", where, items.words, quote(item.Value))
		default:
			seen[item.Value] = true
			t.items = append(t.items, scalar{at: d.at(item), text: item.Value, layer: d.layer})
		}
	}
}

func (t texts) values() (all []string) {
	for _, item := range t.items {
		all = append(all, item.text)
	}
	return all
}
