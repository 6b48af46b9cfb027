package haproxy

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Identifier is one way to find the user of a request: a fragment of
// configuration in identify/.
type Identifier struct {
	Kind  string // header, s3, jwt, basic, ip or auto
	Param string // the header of header, the claim of jwt; empty: the environment's, or else the default
}

// String is the identifier as ParseIdentify reads it.
func (i Identifier) String() string {
	if i.Param == "" {
		return i.Kind
	}
	return i.Kind + ":" + i.Param
}

// kinds are the identifiers that exist. placeholder is the text in the
// fragment that a parameter takes the place of; param is what one looks like.
// A parameter is pasted into the configuration: its pattern must leave out
// every character that means something there, and blanks.
var kinds = map[string]struct {
	placeholder, example string
	param                *regexp.Regexp
}{
	"auto":   {},
	"basic":  {},
	"header": {"${SLUICE_USER_HEADER-X-User}", "header:X-User", regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)},
	"ip":     {},
	"jwt":    {"${SLUICE_JWT_CLAIM-sub}", "jwt:sub", regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100}){0,9}$`)},
	"s3":     {},
}

const validIdentifiers = "header:NAME, s3, jwt:CLAIM, basic, ip and auto"

// ParseIdentify reads a comma-separated chain of identifiers: header:X-User,
// s3, jwt:sub (jwt:a.b is claim b of the object a), basic, ip, auto. The first
// that finds a name for a request decides; auto is s3, jwt, basic, header and
// ip. A request that no identifier of the chain has a name for belongs to the
// user "~", so chains end with ip unless all nameless requests together shall
// share one user's limits.
func ParseIdentify(chain string) ([]Identifier, error) {
	var out []Identifier
	for _, word := range strings.Split(chain, ",") {
		name, param, given := strings.Cut(strings.TrimSpace(word), ":")
		kind, ok := kinds[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("identify %q: no identifier %q; valid are %s", chain, name, validIdentifiers)
		case given && kind.param == nil:
			return nil, fmt.Errorf("identify %q: %s takes no parameter; valid are %s", chain, name, validIdentifiers)
		case given && !kind.param.MatchString(param):
			return nil, fmt.Errorf("identify %q: %q cannot be the parameter of %s; write it like %s", chain, param, name, kind.example)
		}
		out = append(out, Identifier{Kind: name, Param: param})
	}
	return out, nil
}

// fragment is the identifier's configuration with its parameter in place.
func (i Identifier) fragment() (string, error) {
	lines, err := fs.ReadFile(Files, "identify/"+i.Kind+".cfg")
	if err != nil {
		return "", err
	}
	if i.Param == "" {
		return string(lines), nil
	}
	return strings.ReplaceAll(string(lines), kinds[i.Kind].placeholder, i.Param), nil
}
