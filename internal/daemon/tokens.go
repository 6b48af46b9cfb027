package daemon

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Anonymous names clients without a token; no token can have that name.
const Anonymous = "anonymous"

const (
	minToken  = 16   // characters
	maxToken  = 1024 // characters
	maxTokens = 100
	unnamed   = "token" // name of clients whose token has no name
)

var (
	tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`) // RFC 6750, section 2.1
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,32}$`)
)

// Token is a line of a token file.
type Token struct{ Name, Token string }

// ParseTokens reads a token file, which has one token in each line, after the name of its
// owner or alone. Two tokens may have one name, such as while one replaces the other. Lines
// that are empty or begin with # are comments. Errors tell the number of the line, and
// nothing of its text.
func ParseTokens(file []byte) ([]Token, error) {
	var all []Token
	lines := map[string]int{} // by token
	// Errors have the number of the line and never its text, which may be most of a token.
	for i, line := range strings.Split(string(file), "\n") {
		words, n := strings.Fields(line), i+1
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		s := Token{unnamed, words[len(words)-1]}
		if len(words) == 2 {
			s.Name = words[0]
		}
		// Before anything of the file is in force: half a token file would lock somebody out who was let in.
		switch before := lines[s.Token]; {
		case len(words) > 2:
			return nil, fmt.Errorf("line %d: want NAME TOKEN, or TOKEN", n)
		case !nameForm.MatchString(s.Name) || s.Name == Anonymous:
			return nil, fmt.Errorf("line %d: a name has 1 to 32 of a-z, A-Z, 0-9, . _ @ and -, and is not %s", n, Anonymous)
		case len(s.Token) < minToken || len(s.Token) > maxToken:
			return nil, fmt.Errorf("line %d: a token of %d characters: want %d to %d, such as from: openssl rand -hex 32", n, len(s.Token), minToken, maxToken)
		case !tokenForm.MatchString(s.Token):
			return nil, fmt.Errorf("line %d: a token has a-z, A-Z, 0-9, . _ ~ + / and -, and = at its end", n)
		// One of the two owners would never be named in the audit log.
		case before > 0:
			return nil, fmt.Errorf("line %d: the token of line %d again", n, before)
		case len(all) == maxTokens:
			return nil, fmt.Errorf("line %d: more than %d tokens", n, maxTokens)
		}
		lines[s.Token] = n
		all = append(all, s)
	}
	// An empty file is a mistake of whoever writes it, not a wish to let everybody or nobody in.
	if len(all) == 0 {
		return nil, errors.New("it holds no token")
	}
	return all, nil
}

// ReadToken returns the first token of a token file, for a client to use.
func ReadToken(path string) (string, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	all, err := ParseTokens(file)
	if err != nil {
		return "", fmt.Errorf("token file %s: %w", path, err)
	}
	// As the help of --admin-token-file says of a file with several.
	return all[0].Token, nil
}

// tokens are the good tokens. They are kept as digests, so that the time that a comparison
// takes tells nothing of them, not even their length.
type tokens []digested

type digested struct {
	name   string
	digest [sha256.Size]byte
}

func digestTokens(path string, file []byte) (*tokens, error) {
	all, err := ParseTokens(file)
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", path, err)
	}
	var good tokens
	for _, s := range all {
		good = append(good, digested{s.Name, sha256.Sum256([]byte(s.Token))})
	}
	return &good, nil
}

// ownerOf returns the name of a token's owner. It compares all tokens in any case, so that
// its time does not tell which one is near.
func (all tokens) ownerOf(token string) (name string, ok bool) {
	// Of equal length whatever the client sent, which ConstantTimeCompare needs.
	given := sha256.Sum256([]byte(token))
	for _, t := range all {
		if subtle.ConstantTimeCompare(given[:], t.digest[:]) == 1 {
			name, ok = t.name, true
		}
	}
	return name, ok
}
