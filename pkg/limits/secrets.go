package limits

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Secrets hide users' names. With them a user's key is made of an HMAC of the name, which
// tells nothing of the name to those who do not have the secret. HAProxy makes the same
// keys (SLUICE_KEY_SECRET in haproxy.cfg), so that no other part ever has a name.
//
// The first secret is the current one. The others are previous ones: while HAProxies
// change over to another secret one by one, users are known by their keys of all.
// Secrets never change and are safe for concurrent use.
type Secrets struct{ all []secret }

type secret struct {
	key []byte
	id  string // what the keys begin with
}

const (
	// minSecret is the least length of a secret, in bytes: that of a SHA-256, as RFC 2104
	// (section 3) asks for. maxSecret is the block of SHA-256: what is longer is hashed first.
	minSecret, maxSecret = 32, 64
	// MaxSecrets bounds the secrets of a file. Each makes the published limits so much larger.
	MaxSecrets     = 3
	maxSecretsFile = 16 << 10 // bytes

	// A secret's id is so many bytes of its HMAC of idText, and a key's digest so many of
	// its HMAC of the name: half of it, the least that RFC 2104 (section 5) allows.
	// All of it would make the limits of a million users larger than MaxFileSize.
	idBytes, digestBytes = 4, 16
	idText               = "sluice"

	hiddenLength = 1 + 2*idBytes + 1 + 2*digestBytes
)

// What stands between a secret's id and the digest of a name, or of an address: for that
// there may be a tier (anonymous_tier).
const nameMark, addressMark = '.', ':'

// ParseSecrets reads a secret file: one secret a line, in base64, of 32 to 64 bytes, the
// current one first. What is empty or begins with # is a comment. Errors tell the line
// and nothing of what it holds.
func ParseSecrets(file []byte) (*Secrets, error) {
	// Before it is looked at, for somebody may have given the wrong file.
	if len(file) > maxSecretsFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxSecretsFile)
	}
	s := &Secrets{}
	for i, line := range strings.Split(string(file), "\n") {
		// An editor on another system may have left a carriage return.
		text, n := strings.TrimSpace(line), i+1
		if text == "" || text[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.Strict().DecodeString(text)
		switch {
		// The library passes over newlines within, of which HAProxy's variable has none.
		case err != nil || strings.ContainsAny(text, "\r\n"):
			return nil, fmt.Errorf("line %d is no base64: want one secret, such as from: openssl rand -base64 32", n)
		// What is shorter may be guessed; what is longer than a block would only be hashed first.
		case len(key) < minSecret || len(key) > maxSecret:
			return nil, fmt.Errorf("line %d: a secret of %d bytes: want %d to %d, such as from: openssl rand -base64 32", n, len(key), minSecret, maxSecret)
		case slices.ContainsFunc(s.all, func(other secret) bool { return bytes.Equal(other.key, key) }):
			return nil, fmt.Errorf("line %d: a secret that is there before", n)
		case len(s.all) == MaxSecrets:
			return nil, fmt.Errorf("line %d: more than %d secrets: remove those that no HAProxy uses any more", n, MaxSecrets)
		}
		s.all = append(s.all, secret{key, digest(key, idText, idBytes)})
	}
	if len(s.all) == 0 {
		return nil, errors.New("it holds no secret")
	}
	return s, nil
}

// digest is the beginning of an HMAC-SHA256, in upper-case hex digits as HAProxy writes it.
func digest(key []byte, text string, length int) string {
	// An HMAC, because a plain hash of a name can be found by trying all names.
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return strings.ToUpper(hex.EncodeToString(mac.Sum(nil)[:length]))
}

// Current returns the current secret in base64, as HAProxy takes it.
func (s *Secrets) Current() string { return base64.StdEncoding.EncodeToString(s.all[0].key) }

// IDs returns what keys begin with behind "~", of each secret, the current one's first.
// An id tells which secret a key is of, and nothing of the secret.
func (s *Secrets) IDs() []string {
	ids := make([]string, len(s.all))
	// Of all secrets, so that HAProxies can change over one by one.
	for i, secret := range s.all {
		ids[i] = secret.id
	}
	return ids
}

// String tells nothing: a secret must not be logged by accident.
func (s *Secrets) String() string { return fmt.Sprintf("%d secret(s)", len(s.all)) }

// GoString is String.
func (s *Secrets) GoString() string { return s.String() }

// Keys returns the wire keys of a user by their name, of each secret, the current one's
// first. What is a hidden key already is the one key. haproxy.cfg makes the same keys of
// all names but the empty one, which is no name: its key is "~".
func (s *Secrets) Keys(name string) []string {
	if IsHidden(name) {
		return []string{name}
	}
	// In the clear, because addresses have a tier of their own, and nobody else sees the name.
	mark := byte(nameMark)
	if looksLikeAddress(name) {
		mark = addressMark
	}
	keys := make([]string, len(s.all))
	for i, secret := range s.all {
		keys[i] = "~" + secret.id + string(mark) + digest(secret.key, name, digestBytes)
	}
	return keys
}

// IsHidden reports whether a user's key, without endpoint, is one that Secrets makes. No
// name is: HAProxy makes another key of what begins with "~".
func IsHidden(key string) bool {
	// The length first: it tells nearly all keys apart, and is asked of each.
	if len(key) != hiddenLength || key[0] != '~' {
		return false
	}
	mark := key[1+2*idBytes]
	return (mark == nameMark || mark == addressMark) && isUpperHex(key[1:1+2*idBytes]) && isUpperHex(key[2+2*idBytes:])
}

// isUpperHex reports whether s is of upper-case hex digits alone.
func isUpperHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// looksLikeAddress is what haproxy.cfg takes for an address before it hides a name: four
// numbers of up to three digits with dots between them, or hex digits, dots and two or
// more colons. It is simpler than what Anonymous takes for one, and knows all of those.
func looksLikeAddress(name string) bool {
	colons, numbers, digits := 0, 1, 0
	v4 := true
	for i := range len(name) {
		switch c := name[i]; {
		case c == ':':
			colons++
			v4 = false
		case c == '.':
			v4 = v4 && digits > 0
			numbers, digits = numbers+1, 0
		case c >= '0' && c <= '9':
			digits++
			v4 = v4 && digits <= 3
		case c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F':
			v4 = false
		default:
			return false
		}
	}
	return colons >= 2 || v4 && numbers == 4 && digits > 0
}

// SecretOf says of which secret a wire key is.
type SecretOf string

// The secrets that a key may be of.
const (
	CurrentSecret  SecretOf = "current"
	PreviousSecret SecretOf = "previous"
	UnknownSecret  SecretOf = "unknown" // hidden with a secret that the Set does not have
	NoSecret       SecretOf = "missing" // not hidden, although the Set has secrets
)

// SecretOf says of which of the Set's secrets a wire key is: "" if it does not matter, as
// where there are no secrets and the name is not hidden, or for requests without a user.
func (s *Set) SecretOf(key string) SecretOf {
	_, key = SplitEndpoint(key)
	if IsHidden(key) {
		if s.content.Secrets == nil {
			return UnknownSecret
		}
		switch i := slices.IndexFunc(s.content.Secrets.all, func(secret secret) bool { return secret.id == key[1:1+2*idBytes] }); {
		case i == 0:
			return CurrentSecret
		// A key of a previous secret is right, but tells which HAProxy is still to be changed.
		case i > 0:
			return PreviousSecret
		}
		return UnknownSecret
	}
	// Without a digest, "~" begins the keys of requests that have no user of their own.
	if s.content.Secrets == nil || key == "" || key[0] == '~' && len(key) < len("~")+2*sha256.Size {
		return ""
	}
	return NoSecret
}
