package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A write that Redis could still lose is told of as that.
func TestUnsafeOverride(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"polygen":"one","user":"bob","unsafe":"0 of 1 replicas of Redis have it"}`)
	}))
	defer s.Close()
	for _, args := range [][]string{{"bob", "concurrent=5", "--reason", "r"}, {"--remove", "bob"}} {
		var out, errs strings.Builder
		args = append([]string{"override", "--admin", s.Listener.Addr().String()}, args...)
		if code := runCommand(args, &out, &errs); code != 0 || !strings.Contains(out.String(), "\nnot safe yet: 0 of 1 replicas of Redis have it; it is lost if") {
			t.Errorf("sluice %q ended with %d, and says %q, %s", args, code, &out, &errs)
		}
	}
}

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
