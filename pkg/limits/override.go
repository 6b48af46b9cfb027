package limits

import (
	"encoding/json"
	"slices"
	"time"
)

// Override is what an operator set for a user until a time, over what the limit
// file says of that user.
type Override struct {
	User string `json:"user"` // named as in the limit file; no pattern

	// Limits, in JSON, are what an entry of users may hold except for comment, until and
	// then: the name of a tier or a mapping. A field that they do not set stays as the
	// file has it; a tier that they name replaces everything that the file says of the
	// user.
	Limits json.RawMessage `json:"limits"`

	Reason string    `json:"reason"`       // 1 to 200 printable characters
	By     string    `json:"by,omitempty"` // who did it; "" if that is not known
	Since  time.Time `json:"since"`        // means nothing
	Until  time.Time `json:"until"`        // when the file counts again
}

// Overrides are those that are in force, sorted by user.
func (s *Set) Overrides() []Override {
	return slices.DeleteFunc(slices.Clone(s.content.overrides), func(o Override) bool { return unixNano(o.Until) <= s.now })
}

// NamesTier reports whether the override names a tier, which replaces everything that the
// file says of the user.
func (o Override) NamesTier() bool {
	var name string
	var fields struct{ Tier string }
	return json.Unmarshal(o.Limits, &name) == nil || json.Unmarshal(o.Limits, &fields) == nil && fields.Tier != ""
}

// OverrideOf returns the override that is in force for the user of a key, if
// there is one.
func (s *Set) OverrideOf(key string) (o Override, ok bool) {
	if _, ok := s.content.overridden[key]; !ok {
		return Override{}, false
	}
	for _, o := range s.Overrides() {
		if Key(o.User) == key {
			return o, true
		}
	}
	return Override{}, false
}
