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

// A refused is a value of a field and the error that it is.
type refused struct{ name, in, want string }

func checkRefused(t *testing.T, parse func(string) (int64, error), values []refused) {
	for _, v := range values {
		t.Run(v.name, func(t *testing.T) {
			if got, err := parse(v.in); got != 0 || err == nil || err.Error() != v.want {
				t.Errorf("%q = %d, %v, want %s", v.in, got, err, v.want)
			}
		})
	}
}
