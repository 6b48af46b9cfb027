package main

import "testing"

func TestVersion(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, tt := range []struct{ name, version, revision, want string }{
		{"nothing is known", "unknown", "unknown", "development, go1.26.0"},
		{"a module", "v1.2.3", "unknown", "v1.2.3, go1.26.0"},
		{"a release", "v1.2.3", commit, "v1.2.3, commit 0123456789ab, go1.26.0"},
		{"a checkout", "(devel)", commit, "development, commit 0123456789ab, go1.26.0"},
		{"a checkout with changes", "(devel)", commit + "-dirty", "development, commit 0123456789ab with changes, go1.26.0"},
		{"a short name of a commit", "unknown", "42", "development, commit 42, go1.26.0"},
	} {
		if got := version(tt.version, tt.revision, "go1.26.0"); got != tt.want {
			t.Errorf("%s: version(%q, %q) = %q, want %q", tt.name, tt.version, tt.revision, got, tt.want)
		}
	}
}
