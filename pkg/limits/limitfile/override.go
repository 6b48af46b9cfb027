package limitfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How many overrides there may be: an exception is what a person can look over,
// and all of them travel with the limits.
const (
	MaxOverrides     = 1000
	MaxOverridesSize = 1 << 20 // bytes of EncodeOverrides

	maxReason = 200  // characters
	maxBy     = 1000 // bytes
)

// EncodeOverrides is what DecodeOverrides reads: JSON, sorted by user, with
// times in UTC.
func EncodeOverrides(overrides []limits.Override) []byte {
	list := append([]limits.Override{}, overrides...)
	for i := range list {
		// The same overrides must be the same bytes, wherever they were set.
		list[i].Since, list[i].Until = list[i].Since.UTC(), list[i].Until.UTC()
	}
	slices.SortStableFunc(list, func(a, b limits.Override) int { return cmp.Compare(a.User, b.User) })
	data, err := json.Marshal(list)
	if err != nil {
		return []byte("[]") // cannot be: what was decoded, or checked, is JSON
	}
	return data
}

// DecodeOverrides reads them. What they say is for WithOverrides to judge.
func DecodeOverrides(data []byte) ([]limits.Override, error) {
	// Before it is decoded, which takes several times as much memory.
	if len(data) > MaxOverridesSize {
		return nil, fmt.Errorf("overrides: larger than %d bytes", MaxOverridesSize)
	}
	var list []limits.Override
	d := json.NewDecoder(bytes.NewReader(data))
	// A field that this build does not know might change what the override means.
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	// Decode stops behind the list, and what follows would be lost in silence.
	if d.More() {
		return nil, errors.New("overrides: something follows them")
	}
	if len(list) > MaxOverrides {
		return nil, fmt.Errorf("overrides: %d, want %d at most", len(list), MaxOverrides)
	}
	return list, nil
}

// CheckOverride says what is wrong with an override whatever the limit file says, or nil.
func CheckOverride(o limits.Override) error {
	_, err := checkOverride(o)
	return err
}

// checkOverride says what is wrong with an override whatever the file says, and returns its
// limits.
func checkOverride(o limits.Override) (*yaml.Node, error) {
	// In characters, as whoever writes it counts.
	runes := utf8.RuneCountInString(o.Reason)
	switch {
	case o.User == "" || !utf8.ValidString(o.User):
		return nil, errors.New("user must be a name in UTF-8, as in a limit file")
	// Overrides are found by key, for each request.
	case limits.IsPattern(o.User):
		return nil, fmt.Errorf("user %s: a pattern cannot be overridden; name one user", quote(o.User))
	case runes < 1 || runes > maxReason || !utf8.ValidString(o.Reason) || strings.ContainsFunc(o.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(o.Reason) == "":
		return nil, fmt.Errorf("reason must be 1 to %d printable characters, got %d characters", maxReason, runes)
	case !utf8.ValidString(o.By) || len(o.By) > maxBy:
		return nil, fmt.Errorf("by must be UTF-8 text of at most %d bytes", maxBy)
	case !orderly(o.Since) || !orderly(o.Until) || o.Until.UnixNano() <= 0:
		return nil, errors.New("since and until must be times from 1970 to 2200")
	}
	// The file's own reader judges them, so that both accept the same.
	n, err := overrideNode(o.Limits)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	// With words of their own: as unknown fields they would seem to be typing mistakes.
	for key := range children(n) {
		if slices.Contains(notInOverride, key.Value) {
			return nil, fmt.Errorf("limits: %s is for limit files; an override has an end and a reason of its own", key.Value)
		}
	}
	return n, nil
}

// overrideNode reads the limits of an override as the nodes of a limit file.
func overrideNode(data []byte) (*yaml.Node, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8 text")
	}
	// JSON is YAML, but an override is no other YAML.
	var text bytes.Buffer
	if err := json.Compact(&text, data); err != nil {
		return nil, err
	}
	document, _, err := documents(&text)
	if err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// orderly reports whether a time can be written, and compared.
func orderly(t time.Time) bool { return t.IsZero() || t.Year() >= 1970 && t.Year() < 2200 }
