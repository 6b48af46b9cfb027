package api

import (
	"crypto/sha256"
	"net/url"
	"strconv"
	"strings"
)

// isHash reports whether this is how a user is shown whose name is not known.
func isHash(user string) bool {
	hash, ok := strings.CutPrefix(user, "~")
	return ok && len(hash) == 2*sha256.Size && strings.Trim(hash, "0123456789ABCDEF") == ""
}

// OverridePath is the path of a user's override by hand. The user is given by name, or by the
// hash that is shown of a user whose name is not known.
func OverridePath(user string) string { return pathOfShown("/api/v1/overrides/", user, "") }

// UnblockPath is the path that lets a user in. The user is given as for OverridePath.
func UnblockPath(user string) string { return pathOfShown(userPath, user, "/unblock") }

// Path is the path of a user given by name, which may be of any bytes.
func Path(user string) string { return path(userPath, user, "", "") }

// PathOfKey is the path of a user given by key.
func PathOfKey(key string) string { return path(userPath, key, "", "key") }

const userPath = "/api/v1/users/"

func pathOfShown(before, user, after string) string {
	by := ""
	if isHash(user) {
		by = "key"
	}
	return path(before, user, after, by)
}

func path(before, user, after, by string) string {
	// Dots are escaped lest "." and ".." be taken for steps of the path.
	p := before + strings.ReplaceAll(url.PathEscape(user), ".", "%2E") + after
	if by != "" {
		p += "?by=" + by
	}
	return p
}

// DecisionsPath is the stream of the decisions about a user.
func DecisionsPath(user string) string {
	return "/api/v1/policies?kind=throttle,block,unblock,override&user=" + url.QueryEscape(user)
}

// JobPath is where a background job is, by River's id.
func JobPath(id int64) string { return "/api/v1/jobs/" + strconv.FormatInt(id, 10) }
