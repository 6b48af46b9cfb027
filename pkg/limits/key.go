package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxOwnKey is the longest user name, in bytes, that is its own key. It keeps
// "class|user" well below the key length of HAProxy's tables, which cut what is
// longer.
const MaxOwnKey = 100

// Key returns the wire key of a user: the user's name in HAProxy's tables, in Redis and
// in the agents.
//
// HAProxy cuts long table keys and ends them at a NUL, so that two users could
// become one. A name is therefore its own key only if it has 1 to 100 bytes,
// none of them a control byte (0x00-0x1f, 0x7f), and does not begin with "~",
// which begins keys that are no names. Any other name has the key "~" followed
// by the SHA-256 of the whole name in 64 upper-case hex digits. haproxy.cfg does
// the same.
//
// Key is not idempotent: a name that looks like a hashed key is hashed as well,
// so no user can take another user's key by sending it.
func Key(user string) string {
	if IsOwnKey(user) {
		return user
	}
	// In capitals, as HAProxy's converter hex writes it.
	sum := sha256.Sum256([]byte(user))
	return "~" + strings.ToUpper(hex.EncodeToString(sum[:]))
}

// KeyOf returns the wire key of a user, or UnreadableKey itself, which stands for requests
// without a readable name.
func KeyOf(name string) string {
	if name == UnreadableKey {
		return name
	}
	return Key(name)
}

// IsOwnKey reports whether a name is its own wire key (see Key).
func IsOwnKey(user string) bool {
	if user == "" || len(user) > MaxOwnKey || user[0] == '~' {
		return false
	}
	// Byte by byte, as HAProxy looks at it: a name need not be UTF-8.
	for i := range len(user) {
		if c := user[i]; c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}
