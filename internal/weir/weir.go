// Package weir reads the limit file of Bloomberg's Weir and writes the limit file
// of Sluice that means the same.
//
// The format is that of github.com/bloomberg/weir-qos (polygen/README.md, "Limit
// data"; examples/dev_cfg/polygen_user_limits.json): a JSON object with
// user_to_qos_id, from users to the names of policies, and qos, from those names
// to limits. Of the limits it knows user_GET, user_PUT, user_POST, user_DELETE and
// user_HEAD in requests per second, user_bnd_up and user_bnd_dwn in MB per second,
// of which each is 1024×1024 bytes, and user_conns, the requests in progress.
// Operations of S3, such as user_LISTBUCKETS, are requests per second as well;
// they become limits on the classes that Sluice has for them (classes: s3).
//
// Users without a policy have DEFAULT, and a limit that a policy does not name, or
// that is -1, is that of DEFAULT. Before there was DEFAULT, the policy of the user
// "common" was what DEFAULT is now. "common" stands for requests of nobody.
//
// What has no counterpart in Sluice becomes a comment in the file that says what to
// do about it; nothing is left out silently.
package weir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// The names that have a meaning of their own.
const (
	defaultPolicy = "DEFAULT"
	commonUser    = "common"
)

// file is a limit file of Weir.
type file struct {
	Users    map[string]string             `json:"user_to_qos_id"`
	Policies map[string]map[string]float64 `json:"qos"`
}

// Convert returns the limit file of Sluice that does what a limit file of Weir
// does. The name stands for the file in errors and in a comment. What it returns
// limitfile.Parse accepts.
func Convert(name string, data []byte) ([]byte, error) {
	f, err := parseFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	fallback, err := f.fallback()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := writer{file: f, fallback: fallback}
	w.writeFile(name)
	// What is printed must be a file that polygen takes: names and numbers of Weir's may be none of Sluice's.
	if _, err := limitfile.Parse("the converted file", w.Bytes()); err != nil {
		return nil, fmt.Errorf("%s: cannot be expressed as a limit file of Sluice: %w", name, err)
	}
	return w.Bytes(), nil
}

// parseFile reads the JSON strictly. Its errors begin with the line and the column if
// they are of one place.
func parseFile(data []byte) (*file, error) {
	var f file
	d := json.NewDecoder(bytes.NewReader(data))
	// A field that is misspelled would be left out silently, and with it limits.
	d.DisallowUnknownFields()
	// Numbers as they are: Weir takes fractions of requests, which write.go rounds.
	err := d.Decode(&f)
	if err == nil {
		// Two files in one: the second would be lost.
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			return nil, errors.New("there is more after the JSON object; keep one object")
		}
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty; want a JSON object with user_to_qos_id and qos")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s: not valid JSON: the file ends too early", position(data, int64(len(data))))
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("%s: not valid JSON: %w", position(data, syntax.Offset-1), err)
	// In words, for encoding/json names types of Go.
	case errors.As(err, &kind):
		where := ""
		if kind.Field != "" {
			where = " in " + kind.Field
		}
		return nil, fmt.Errorf("%s: want %s%s, got a JSON %s", position(data, kind.Offset-1), wants[kind.Type.String()], where, kind.Value)
	case err != nil:
		return nil, fmt.Errorf("%s; a limit file of Weir has user_to_qos_id and qos only", strings.TrimPrefix(err.Error(), "json: "))
	case len(f.Policies) == 0:
		return nil, errors.New("qos is missing or empty; a limit file of Weir has user_to_qos_id and qos")
	}
	return &f, nil
}

// wants says in words what encoding/json wanted.
var wants = map[string]string{
	"weir.file":                     "an object with user_to_qos_id and qos",
	"map[string]string":             "an object of users and the names of their policies",
	"map[string]map[string]float64": "an object of policies",
	"map[string]float64":            "an object of limits",
	"string":                        "the name of a policy",
	"float64":                       "a number",
}

// fallback is the name of the policy that counts where nothing else is said.
func (f *file) fallback() (string, error) {
	// As Weir does: "common" counts only in files from before there was DEFAULT.
	if _, ok := f.Policies[defaultPolicy]; ok {
		return defaultPolicy, nil
	}
	name, named := f.Users[commonUser]
	if _, ok := f.Policies[name]; named && ok {
		return name, nil
	}
	// Sluice has no limits of its own to fall back on, and must not make some up.
	return "", fmt.Errorf("there is no default policy; add %s to qos, with the limits of users without a policy", defaultPolicy)
}

// position is the line and the column, in bytes from 1, of data[at].
func position(data []byte, at int64) string {
	// encoding/json may tell a place behind the end, where the file is cut off.
	before := data[:min(max(at, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("%d:%d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}
