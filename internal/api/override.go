package api

import (
	"encoding/json"
	"errors"
	"time"
)

// OverrideRequest is a change that an operator asks for: to set or remove an override, or to
// unblock a user.
type OverrideRequest struct {
	Action Action
	User   string // the user's name, or key
	IsKey  bool   // User is the key, not the name
	By     string // the operator, as far as known, and where the request came from
	Reason string

	For    time.Duration   // how long an override holds
	Limits json.RawMessage // the limits of an override, in the form of limits.Override
}

// Action is a kind of OverrideRequest.
type Action string

// The actions.
const (
	SetOverride    Action = "override"
	RemoveOverride Action = "remove"
	UnblockUser    Action = "unblock"
)

// Errors of an OverrideRequest that is valid itself.
var (
	ErrNoOverride  = errors.New("there is no such override")
	ErrFull        = errors.New("there are too many overrides: remove some first")
	ErrUnavailable = errors.New("redis does not answer")
	ErrNotLeading  = errors.New("another polygen leads")
)

// UserOverride is a user's override by hand.
type UserOverride struct {
	Name
	Limits  json.RawMessage `json:"limits"` // as an entry of the limit file: a tier's name or a mapping
	Reason  string          `json:"reason"`
	By      string          `json:"by"`
	Since   time.Time       `json:"since"`
	Until   time.Time       `json:"until"`             // when it ends by itself
	Problem string          `json:"problem,omitempty"` // why it is not in force: the limit file has changed since
}

// Overrides is the answer of /api/v1/overrides.
type Overrides struct {
	From
	Overrides []UserOverride `json:"overrides"` // sorted by user
	Capacity  int            `json:"capacity"`  // how many there may be
}

// Override is the answer when an override was set or removed.
type Override struct {
	From
	UserOverride
}

// Unblocked is the answer of /api/v1/users/{user}/unblock.
type Unblocked struct {
	From
	Name
	Sent       bool   `json:"sent"`        // the instances are told
	InProgress int    `json:"in_progress"` // requests, as known of before
	Max        int    `json:"max"`         // the limit of requests in progress; 0 if there is none
	Note       string `json:"note"`        // what to expect
}

// OverrideNote is what an Entry tells of an override by hand.
type OverrideNote struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Until  time.Time `json:"until"` // when it ends by itself
}
