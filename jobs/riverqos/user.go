package riverqos

import (
	"encoding/json"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// UserFunc returns the name of the user of a job, from its kind, its arguments as JSON
// and its metadata as JSON. If it is not ok, the job has no user (periodic jobs, those
// of the system): it is governed by nothing. It must say the same of a job each time.
type UserFunc func(kind string, args, metadata []byte) (user string, ok bool)

// FromArgs takes the user from a job's arguments: a string or number at a path of
// names, such as "owner.id". An empty string is no user.
func FromArgs(path string) UserFunc {
	names := strings.Split(path, ".")
	return func(_ string, args, _ []byte) (string, bool) { return at(args, names) }
}

// FromMetadata takes the user from a string or number in a job's metadata. An empty
// string is no user.
func FromMetadata(key string) UserFunc {
	return func(_ string, _, metadata []byte) (string, bool) { return at(metadata, []string{key}) }
}

// First is the first of the functions that finds a user.
func First(funcs ...UserFunc) UserFunc {
	return func(kind string, args, metadata []byte) (string, bool) {
		for _, f := range funcs {
			if user, ok := f(kind, args, metadata); ok {
				return user, true
			}
		}
		return "", false
	}
}

// at is the string or number at a path of names.
func at(data []byte, names []string) (string, bool) {
	for _, name := range names {
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			return "", false
		}
		data = object[name]
	}
	var number json.Number
	if len(data) > 0 && data[0] != '"' && json.Unmarshal(data, &number) == nil {
		return number.String(), number != ""
	}
	var text string
	if json.Unmarshal(data, &text) != nil {
		return "", false
	}
	return text, text != ""
}

// key is the limit file's key of a job's user, or "".
func (f *Fairness) key(kind string, args, metadata []byte) string {
	user, ok := f.cfg.User(kind, args, metadata)
	if !ok || user == "" {
		return ""
	}
	return limits.Key(user)
}
