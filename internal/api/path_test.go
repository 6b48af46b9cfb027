package api

import (
	"net/url"
	"strings"
	"testing"
)

// Whatever the user is called, the path is that user's.
func TestUnblockPath(t *testing.T) {
	for _, user := range []string{"alice", "a/b", "..", ".", "a b?c#d%", "\xff", "unblock", "/"} {
		u, err := url.Parse(UnblockPath(user))
		if err != nil {
			t.Fatal(err)
		}
		middle := strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), "/api/v1/users/"), "/unblock")
		if got, err := url.PathUnescape(middle); err != nil || got != user || strings.Contains(middle, "/") {
			t.Errorf("UnblockPath(%q) = %s", user, u)
		}
	}
}
