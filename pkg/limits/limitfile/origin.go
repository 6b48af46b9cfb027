package limitfile

import (
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Origin tells where a limit file says what a user may do. All lines are from 1.
type Origin struct {
	// File is the file that names the user, the limit file or one of its users_from, and
	// User the line there. They are "" and 0 when no file does.
	File    string
	User    int
	Pattern string // the pattern that matches the name; "" when an entry has the name itself, or there is none
	Comment string // of the user's entry

	Tier     int // the line of the user's tier in the limit file; 0 for exempt users
	TierFrom TierSource

	// Until is when what the file says of the user ends, zero when never, and Then the
	// user's tier from then on. Expired is whether that was before the Set's time: the
	// tier is then the one of Then, and no field is of the user's own entry.
	Until   time.Time
	Then    string
	Expired bool

	// Override is what counts for the user, or nil. All other fields are what the file
	// says, except that Tier is that of the tier which the override names.
	Override *limits.Override

	FileMode int // the line of the mode of the whole file; 0 when it has none

	// Fields are what the tier, the user's entry and the overrides set, sorted by name. Each
	// replaces the field of the same name in the layer below it.
	Fields []FieldOrigin
}

// TierSource tells why a user has their tier.
type TierSource uint8

// The sources of a tier.
const (
	FromDefault    TierSource = iota // no file names a tier for the user: the default one, with or without limits of their own
	FromEntry                        // the user's entry names it, or names it as the one that follows
	FromAnonymous                    // the requests have no name
	FromUnreadable                   // the user is UnreadableKey, which has a tier of its own
	FromExempt                       // the user is not limited; File and User are where exempt says so
)

// FieldOrigin is one field that a file sets, to a value or to unlimited.
type FieldOrigin struct {
	// Name is the field's path, such as "concurrent" or "bandwidth". A request limit
	// is "requests." and its name ("requests.GET", "requests.GET/minute"), with
	// "requests.GET.burst" and "requests.GET.mode" beside it; one of costs is "costs.tokens/day".
	Name  string
	Line  int    // 0 in OverrideLayer
	File  string // the limit file, or the one of users_from that has the entry; "" in OverrideLayer
	Layer Layer
}

// Layer is who sets a field. A higher layer counts over a lower one.
type Layer uint8

// The layers.
const (
	TierLayer     Layer = iota
	EntryLayer          // the user's own entry
	OverrideLayer       // an override, which is in no file
)

// FieldOrigin returns who sets a field: the field itself, or the mapping around it that
// was set as a whole (requests: unlimited). It is false when nothing does.
func (o Origin) FieldOrigin(name string) (FieldOrigin, bool) {
	for _, f := range o.Fields {
		if f.Name == name {
			return f, true
		}
	}
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return o.FieldOrigin(name[:i])
	}
	return FieldOrigin{}, false
}
