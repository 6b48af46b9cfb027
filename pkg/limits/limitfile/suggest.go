package limitfile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	maxQuoted = 60 // characters of a name that an error shows
	maxListed = 13 // valid choices that an error lists
)

// quote shows what a file says in an error: in quotes, escaped, and cut.
func quote(s string) string {
	if short := shorten(s); short != s {
		return strconv.Quote(strings.TrimSuffix(short, "…")) + "…"
	}
	return strconv.Quote(s)
}

func shorten(s string) string {
	n := 0
	for i := range s {
		if n == maxQuoted {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// choices quotes what is not valid and lists the valid choices, with the nearest first if one
// is near. It is a type because the search takes long, and most of a million errors have no text.
type choices struct {
	got   string
	valid []string
}

func (c choices) String() string {
	hint := " "
	if near := nearest(c.got, c.valid); near != "" {
		hint = "; did you mean " + near + "? "
	}
	return quote(c.got) + hint + "(valid: " + joinChoices(c.valid) + ")"
}

func joinChoices(valid []string) string {
	rest := ""
	if len(valid) > maxListed {
		rest = fmt.Sprintf(", and %d more", len(valid)-maxListed)
		valid = valid[:maxListed]
	}
	shown := make([]string, len(valid))
	for i, v := range valid {
		shown[i] = v
		if v == limits.All {
			shown[i] = `"*"` // as YAML wants it
		}
	}
	return strings.Join(shown, ", ") + rest
}

// nearest returns the valid choice that differs least from got, or "" when none
// is near: at most one change for every three characters, case aside.
func nearest(got string, valid []string) string {
	if len(got) > maxQuoted {
		return ""
	}
	got = strings.ToLower(got)
	best, least := "", max(1, len(got)/3)+1
	for _, v := range valid {
		// Not all of it may be changed: every name of two letters would be near every other.
		if d := distance(got, strings.ToLower(v)); d < least && d < len(v) {
			best, least = v, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete, replace or swap with their
// neighbour (optimal string alignment) to make b of a.
func distance(a, b string) int {
	d := make([][]int, len(a)+1) // d[i][j] is the distance between a[:i] and b[:j]
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j-1], d[i-1][j], d[i][j-1])
			}
			// Two letters in the wrong order are one slip of the hand, not two.
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
