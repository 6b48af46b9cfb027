package riverqos

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

func TestJobNames(t *testing.T) {
	for _, names := range []namespace{"", "app", "a.b"} {
		job := names.slotsJob("ann", 42, "analysis")
		if id, ok := names.riverID(job); id != 42 || !ok {
			t.Errorf("in namespace %q id(%v) = %d, %v, want 42, true", names, job, id, ok)
		}
	}
	names := namespace("app")
	for _, name := range []string{"42", "other.42", "app.", "app.x", "app.-1", "app.0", "apps.42"} {
		if id, ok := names.riverID(jobs.Job{ID: name}); ok {
			t.Errorf("in namespace app id(%q) = %d, want none", name, id)
		}
	}
}
