package riverqos

import "testing"

func TestJobNames(t *testing.T) {
	for _, names := range []namespace{"", "app", "a.b"} {
		name := names.slotsID(42)
		if id, ok := names.riverID(name); id != 42 || !ok {
			t.Errorf("in namespace %q id(%q) = %d, %v, want 42, true", names, name, id, ok)
		}
	}
	names := namespace("app")
	for _, name := range []string{"42", "other.42", "app.", "app.x", "app.-1", "app.0", "apps.42"} {
		if id, ok := names.riverID(name); ok {
			t.Errorf("in namespace app id(%q) = %d, want none", name, id)
		}
	}
}
