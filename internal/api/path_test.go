package api

import (
	"net/url"
	"strings"
	"testing"
)

// Whatever the user is called, the path is that user's.
func TestUnblockPath(t *testing.T) {
	for _, user := range []string{"alice", "a/b", "..", ".", "a b?c#d%", "\xff", "unblock", "/"} {
		u, err := url.Parse(UnblockPath(user, "up"))
		if err != nil {
			t.Fatal(err)
		}
		middle := strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), "/api/v1/users/"), "/unblock")
		if got, err := url.PathUnescape(middle); err != nil || got != user || strings.Contains(middle, "/") || u.Query().Get("endpoint") != "up" {
			t.Errorf("UnblockPath(%q) = %s", user, u)
		}
	}
}

func TestPathOfShown(t *testing.T) {
	hash := strings.Repeat("0A", 32)
	for _, tt := range []struct{ user, endpoint, want string }{
		{"alice", "", "/api/v1/users/alice"},
		{"alice", "api", "/api/v1/users/alice?endpoint=api"},
		{"~" + hash, "", "/api/v1/users/~" + hash + "?by=key"},
		{"~" + hash, "api", "/api/v1/users/~" + hash + "?by=key&endpoint=api"},
		{hash, "", "/api/v1/users/" + hash},
		{"~" + hash[1:], "", "/api/v1/users/~" + hash[1:]},
		{"~" + strings.ToLower(hash), "", "/api/v1/users/~" + strings.ToLower(hash)},
		{"~", "", "/api/v1/users/~"},
	} {
		if got := PathOfShown(tt.user, tt.endpoint); got != tt.want {
			t.Errorf("PathOfShown(%q, %q) = %s, want %s", tt.user, tt.endpoint, got, tt.want)
		}
	}
}
