package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A user whose name is not known is given by the hash that top shows. Hashed once more,
// it would be another user.
func TestByHash(t *testing.T) {
	hash := "~" + strings.Repeat("0123456789ABCDEF", 4)
	unblock, set, remove := []string{"unblock", "--reason", "r"}, []string{"override", "--reason", "r"}, []string{"override", "--remove"}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"unblock", append(unblock, hash), "POST /api/v1/users/" + hash + "/unblock?by=key"},
		{"unblock by name", append(unblock, "a/b.c"), "POST /api/v1/users/a%2Fb%2Ec/unblock"},
		{"what is no hash", append(unblock, hash[:64]), "POST /api/v1/users/" + hash[:64] + "/unblock"},
		{"nor that", append(unblock, strings.ToLower(hash)), "POST /api/v1/users/" + strings.ToLower(hash) + "/unblock"},
		{"override", append(set, hash, "concurrent=5"), "PUT /api/v1/overrides/" + hash + "?by=key"},
		{"override by name", append(set, "bob", "concurrent=5"), "PUT /api/v1/overrides/bob"},
		{"remove", append(remove, hash), "DELETE /api/v1/overrides/" + hash + "?by=key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := ""
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.Method + " " + r.RequestURI
				fmt.Fprint(w, `{"polygen":"one"}`)
			}))
			defer s.Close()
			var out, errs strings.Builder
			if code := runCommand(append(tt.args, "--admin", s.Listener.Addr().String()), &out, &errs); code != 0 {
				t.Fatalf("it ended with %d: %s", code, &errs)
			}
			if asked != tt.want {
				t.Errorf("sluice %q asks %s, want %s", tt.args, asked, tt.want)
			}
		})
	}
}
