package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Identifier is one way to find the user of a request: a part of identify.cfg.tmpl.
type Identifier struct {
	Kind  string // header, s3, jwt, basic or ip
	Param string // the header of header, the claim of jwt; empty: the environment's, or else the default
	Case  string // of header, jwt and basic: lower or exact; empty: the environment's, or else the default
}

// identifierKind is an identifier that exists. paramDefault and caseDefault are what the environment
// says, for a chain that says nothing; param is what a parameter looks like.
// A parameter is pasted into the configuration: its pattern must leave out
// every character that means something there, and blanks.
type identifierKind struct {
	paramDefault, caseDefault string
	example                   string
	param                     *regexp.Regexp
}

var kinds = map[string]identifierKind{
	"basic":  {caseDefault: "${SLUICE_BASIC_CASE-lower}", example: "basic:lower or basic:exact"},
	"header": {"${SLUICE_USER_HEADER-X-User}", "${SLUICE_HEADER_CASE-exact}", "header:X-User or header:X-User:lower", regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)},
	"ip":     {},
	"jwt":    {"${SLUICE_JWT_CLAIM-sub}", "${SLUICE_JWT_CASE-exact}", "jwt:sub or jwt:email:lower", regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100}){0,9}$`)},
	"s3":     {},
}

const validIdentifiers = "header:NAME, s3, jwt:CLAIM, basic, ip and auto"

// TryOut is the chain to try Sluice with: names of its users can be in any place. Any client can send the header X-User, so it is
// for no origin that others reach.
const TryOut = "s3,jwt,basic,header,ip"

// ParseIdentify reads a comma-separated chain of identifiers: header:X-User,
// s3, jwt:sub (jwt:a.b is claim b of the object a), basic, ip, auto. With :lower behind
// it, a header's, token's or Basic name is taken in small letters, with :exact as it is;
// without either, only a Basic one is in small letters. The first identifier
// that finds a name for a request decides; auto is s3, jwt, basic and ip. A request whose Authorization header or presigned URL s3, jwt and basic, as far as they are in the
// chain, cannot read belongs to limits.UnreadableKey. A request that no identifier of the chain has a name for belongs to the
// user "~", so chains end with ip unless all nameless requests together shall
// share one user's limits.
func ParseIdentify(chain string) ([]Identifier, error) {
	var out []Identifier
	header := "" // what reads the Authorization header before
	words := strings.Split(chain, ",")
	for n, word := range words {
		words[n] = strings.TrimSpace(word)
	}
	if n := slices.Index(words, "auto"); n >= 0 {
		words = slices.Replace(words, n, n+1, "s3", "jwt", "basic", "ip")
	}
	for _, word := range words {
		name, _, _ := strings.Cut(word, ":")
		// The text becomes rules, so only what is known is taken.
		k, ok := kinds[name]
		if !ok {
			return nil, fmt.Errorf("identify %q: no identifier %q; valid are %s", chain, name, validIdentifiers)
		}
		i, err := k.parse(name, strings.Split(word, ":")[1:])
		if err != nil {
			return nil, fmt.Errorf("identify %q: %w", chain, err)
		}
		// Whether a request has two credentials is known only if s3 looks at its query before its header is read.
		if name == "s3" && header != "" {
			return nil, fmt.Errorf("identify %q: s3 stands behind %s; write it before jwt and basic", chain, header)
		}
		if name == "jwt" || name == "basic" {
			header = name
		}
		out = append(out, i)
	}
	return out, nil
}

// parse reads what stands behind the identifier's name.
func (k identifierKind) parse(name string, words []string) (Identifier, error) {
	i := Identifier{Kind: name}
	switch {
	case k.example == "" && len(words) > 0:
		return i, fmt.Errorf("%s takes no parameter; valid are %s", name, validIdentifiers)
	case k.param != nil && len(words) > 0:
		if i.Param, words = words[0], words[1:]; !k.param.MatchString(i.Param) {
			return i, fmt.Errorf("%q cannot be the parameter of %s; write it like %s", i.Param, name, k.example)
		}
	}
	switch {
	case len(words) == 0:
	// Any other word, also a second parameter: to pass over one would find other users than it says.
	case len(words) > 1 || words[0] != "lower" && words[0] != "exact":
		return i, fmt.Errorf("%q cannot stand behind %s; write it like %s", strings.Join(words, ":"), name, k.example)
	default:
		i.Case = words[0]
	}
	return i, nil
}

// NeverFound returns the users of a limit file whom a chain can never find, sorted as in Users: they are
// named with capital letters (A to Z), and every name that the chain finds is in small letters.
func NeverFound(chain string, set *limits.Set) ([]string, error) {
	identifiers, err := ParseIdentify(chain)
	if err != nil {
		return nil, err
	}
	// An address has no capitals.
	keepsCase := func(i Identifier) bool {
		return i.Kind != "ip" && i.Case != "lower" && (i.Kind != "basic" || i.Case == "exact")
	}
	if slices.ContainsFunc(identifiers, keepsCase) {
		return nil, nil
	}
	// As HAProxy's lower: no other letters have a small form there.
	inSmallLetters := func(name string) bool { return !strings.ContainsAny(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") }
	return slices.DeleteFunc(slices.Collect(set.UserNames()), inSmallLetters), nil
}

// chainLink is an identifier as the template has it: the chain's own words come before the environment.
type chainLink struct {
	Kind, Param, Case string
	Presigned         bool // s3 stands in the chain, which may have found a presigned URL
	Alone             bool // no name was found before
}

// readsCredentials is whether the identifier can find that credentials are unreadable.
func (i Identifier) readsCredentials() bool { return i.Kind != "header" && i.Kind != "ip" }
