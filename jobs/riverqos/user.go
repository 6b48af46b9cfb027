package riverqos

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// maxDigits bounds the digits of a user's number, and its exponent: limits.Key has no
// longer names.
const maxDigits = 100

// UserFunc returns the name of the user of a job, from its kind, its arguments as JSON
// and its metadata as JSON. If it is not ok, the job has no user (periodic jobs, those
// of the system): it is governed by nothing. It must say the same of a job each time. A
// name that is not UTF-8 is known by its hash alone, as one that is too long.
type UserFunc func(kind string, args, metadata []byte) (user string, ok bool)

// FromArgs takes the user from a job's arguments: a string or number at a path of
// names, such as "owner.id". An empty string is no user, nor is a number of more than
// 100 digits.
func FromArgs(path string) UserFunc {
	names := strings.Split(path, ".")
	return func(_ string, args, _ []byte) (string, bool) { return textAt(args, names) }
}

// FromMetadata takes the user from a string or number in a job's metadata. An empty
// string is no user.
func FromMetadata(key string) UserFunc {
	return func(_ string, _, metadata []byte) (string, bool) { return textAt(metadata, []string{key}) }
}

// textAt is the string or number at a path of names.
func textAt(data []byte, names []string) (string, bool) {
	// Checked first, because gjson finds things in what is no JSON, too.
	if !gjson.ValidBytes(data) {
		return "", false
	}
	value := gjson.ParseBytes(data)
	for _, name := range names {
		value = valueOf(value, name)
	}
	switch {
	case value.Type == gjson.Number:
		return storedNumber(value.Raw)
	case value.Type != gjson.String:
		return "", false
	// Nearly always: nothing has to be decoded.
	case !strings.Contains(value.Raw, `\`) && utf8.ValidString(value.Str):
		return value.Str, value.Str != ""
	}
	var text string
	if json.Unmarshal([]byte(value.Raw), &text) != nil {
		return "", false
	}
	return text, text != ""
}

// valueOf is the value of a name in a JSON object, or nothing. A job's arguments are searched at its insert and
// for each attempt: encoding/json would read all of them, which takes ten times as long.
func valueOf(object gjson.Result, name string) (value gjson.Result) {
	// The elements of an array have numbers for names.
	if !object.IsObject() {
		return value
	}
	object.ForEach(func(key, found gjson.Result) bool {
		// Not the first of several: jsonb keeps the last.
		if key.String() == name {
			value = found
		}
		return true
	})
	return value
}

// storedNumber is a number as jsonb gives it back, lest a job have one user before it is
// inserted and another one after: without an exponent, and 0 without a sign. One that
// jsonb would not take, or of more digits than a user's name can have, is nobody.
func storedNumber(number string) (string, bool) {
	mantissa, power, scientific := strings.Cut(strings.ToLower(number), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	exponent := 0
	if scientific {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil || exponent < -maxDigits || exponent > maxDigits {
			return "", false
		}
	}
	// Checked before it is computed: a client may send 1e999999999.
	if len(mantissa) > maxDigits || number == "" {
		return "", false
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return "", false
	}
	if number = value.FloatString(max(0, len(fraction)-exponent)); len(number) > maxDigits {
		return "", false
	}
	return number, true
}

// userKey is the limit file's key of a job's user, or "".
func (r *resources) userKey(kind string, args, metadata []byte) string {
	user, ok := r.cfg.User(kind, args, metadata)
	if !ok {
		return ""
	}
	return jobs.UserKey(user)
}
