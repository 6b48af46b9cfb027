package limitfile

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func mustParse(t testing.TB, source string) *limits.Set {
	t.Helper()
	set, err := Parse("limits.yaml", []byte(source))
	if err != nil {
		t.Fatalf("Parse(%q) = %v", source, err)
	}
	return set
}
