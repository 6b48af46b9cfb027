package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A term is one thing that limits say, as check, diff and explain show it.
type term struct {
	name  string // the field's path in the limit file, such as requests.GET
	value string // such as "10/s"
}

const notLimited = "not limited"

// terms are what limits say beyond the defaults, in the order of the limit file's
// documentation; requests are sorted by class.
func terms(l *limits.Limits) []term {
	var all []term
	for _, r := range l.All() {
		all = append(all, term{"requests." + r.Class, fmt.Sprintf("%d/s", r.PerSecond)})
	}
	if l.Concurrent > 0 {
		all = append(all, term{"concurrent", strconv.Itoa(l.Concurrent)})
		if l.Wait > 0 {
			all = append(all, term{"over_limit.concurrent", fmt.Sprintf("wait %v", l.Wait)})
		}
	}
	b := l.Bandwidth
	if b.Down == 0 && b.Up == 0 {
		b.DefaultShare = 0 // a share of nothing
	}
	for _, t := range []struct {
		name  string
		bytes int64
	}{{"bandwidth.down", b.Down}, {"bandwidth.up", b.Up}, {"bandwidth.default_share", b.DefaultShare}} {
		if t.bytes > 0 {
			all = append(all, term{t.name, size(t.bytes) + "/s"})
		}
	}
	if l.Priority != 0 {
		all = append(all, term{"priority", strconv.Itoa(l.Priority)})
	}
	return all
}

// unsaid is the value of a term that limits do not have.
func unsaid(name string) string {
	switch name {
	case "over_limit.concurrent":
		return "refuse"
	case "bandwidth.default_share":
		return "an even part"
	case "priority":
		return "0"
	default:
		return notLimited
	}
}

// value is the term's value, or what counts when nothing is said.
func value(all []term, name string) string {
	for _, t := range all {
		if t.name == name {
			return t.value
		}
	}
	return unsaid(name)
}

// sortTerms brings names into the order of terms.
func sortTerms(names []string) []string {
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	return slices.Compact(names)
}

// ranks are the names that have a place of their own; "requests." and what is new
// to this program come by name.
var ranks = []string{"requests", "concurrent", "over_limit.concurrent", "bandwidth.down", "bandwidth.up", "bandwidth.default_share", "priority"}

func rank(name string) int {
	if strings.HasPrefix(name, "requests") {
		return 0
	}
	if i := slices.Index(ranks, name); i >= 0 {
		return i
	}
	return len(ranks)
}

// describe names the limits in one line, and what departs from the defaults: how
// long a request over the limit of requests in progress waits, and the priority.
func describe(l *limits.Limits) string {
	var parts []string
	limited := false
	for _, t := range terms(l) {
		part := t.value
		switch class, ok := strings.CutPrefix(t.name, "requests."); {
		case ok && class == limits.All:
			part = "all " + part
		case ok:
			part = class + " " + part
		case t.name == "concurrent":
			part += " in progress"
		case t.name == "over_limit.concurrent":
			parts[len(parts)-1] += " (more " + part + ")"
			continue
		case t.name == "bandwidth.default_share":
			part = "default share " + part
		case t.name == "priority":
			if !limited {
				parts = append(parts, notLimited)
			}
			part = "priority " + part
		default:
			part = strings.TrimPrefix(t.name, "bandwidth.") + " " + part
		}
		limited = true
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return notLimited
	}
	return strings.Join(parts, ", ")
}

// size writes bytes in the largest binary unit that divides them.
func size(n int64) string {
	for _, u := range []struct {
		name string
		in   int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.in == 0 {
			return strconv.FormatInt(n/u.in, 10) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}

// shown is a name from a file as a terminal may have it: in quotes when it is not
// plain, so that it cannot look like something else.
func shown(name string) string {
	plain := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == unicode.ReplacementChar
	})
	if plain {
		return name
	}
	return strconv.Quote(name)
}
