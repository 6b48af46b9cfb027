package limitfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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

// EncodeOverrides is what DecodeOverrides reads: JSON, sorted by user and endpoint,
// with times in UTC.
func EncodeOverrides(overrides []limits.Override) []byte {
	list := append([]limits.Override{}, overrides...)
	for i := range list {
		list[i].Since, list[i].Until = list[i].Since.UTC(), list[i].Until.UTC()
	}
	slices.SortStableFunc(list, compareOverrides)
	data, err := json.Marshal(list)
	if err != nil {
		return []byte("[]") // cannot be: what was decoded, or checked, is JSON
	}
	return data
}

func compareOverrides(a, b limits.Override) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Endpoint, b.Endpoint))
}

// DecodeOverrides reads them. What they say is for WithOverrides to judge.
func DecodeOverrides(data []byte) ([]limits.Override, error) {
	if len(data) > MaxOverridesSize {
		return nil, fmt.Errorf("overrides: larger than %d bytes", MaxOverridesSize)
	}
	var list []limits.Override
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	if d.More() {
		return nil, errors.New("overrides: something follows them")
	}
	if len(list) > MaxOverrides {
		return nil, fmt.Errorf("overrides: %d, want %d at most", len(list), MaxOverrides)
	}
	return list, nil
}
