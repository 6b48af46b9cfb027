package polygen

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/polygen/view"
)

// The registry as it is read again and again, and what is said of it.
func TestFleet(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	type step struct {
		after    time.Duration // since t0
		versions map[string]string
		want     string
		say      []late
		changed  bool
	}
	for _, tt := range []struct {
		name  string
		steps []step
		list  []view.Instance
	}{
		{"nobody", []step{{0, nil, "v1", nil, false}}, nil},
		{"all have the limits", []step{
			{0, map[string]string{"b": "v1", "a": "v1"}, "v1", nil, true},
			{10 * time.Second, map[string]string{"b": "v1", "a": "v1"}, "v1", nil, false},
		}, []view.Instance{{Name: "a", Version: "v1", Current: true}, {Name: "b", Version: "v1", Current: true}}},
		{"one that comes up has none", []step{
			{0, map[string]string{"a": ""}, "v1", nil, true},
			{500 * time.Millisecond, map[string]string{"a": ""}, "v1", nil, false},
		}, []view.Instance{{Name: "a", Behind: 0.5}}},
		{"one that is late is said once", []step{
			{0, map[string]string{"a": "v1", "b": "v1"}, "v1", nil, true},
			{time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2", nil, true},
			{5900 * time.Millisecond, map[string]string{"a": "v2", "b": "v1"}, "v2", nil, false},
			{6 * time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2", []late{{"b", "v1", 5 * time.Second}}, false},
			{20 * time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2", nil, false},
		}, []view.Instance{{Name: "a", Version: "v2", Current: true}, {Name: "b", Version: "v1", Behind: 19}}},
		{"and that it is no more", []step{
			{0, map[string]string{"a": "v1"}, "v2", nil, true},
			{5 * time.Second, map[string]string{"a": "v1"}, "v2", []late{{"a", "v1", 5 * time.Second}}, false},
			{6 * time.Second, map[string]string{"a": "v2"}, "v2", []late{{"a", "v2", 0}}, true},
			{7 * time.Second, map[string]string{"a": "v2"}, "v2", nil, false},
		}, []view.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"one that was late for a moment is not said", []step{
			{0, map[string]string{"a": "v1"}, "v2", nil, true},
			{time.Second, map[string]string{"a": "v2"}, "v2", nil, true},
			{6 * time.Second, map[string]string{"a": "v1"}, "v2", nil, true},
			{7 * time.Second, map[string]string{"a": "v2"}, "v2", nil, true},
		}, []view.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"one that left is forgotten", []step{
			{0, map[string]string{"a": "v1", "b": "v2"}, "v2", nil, true},
			{10 * time.Second, map[string]string{"b": "v2"}, "v2", nil, true},
			{11 * time.Second, map[string]string{"a": "v1", "b": "v2"}, "v2", nil, true},
		}, []view.Instance{{Name: "a", Version: "v1"}, {Name: "b", Version: "v2", Current: true}}},
		{"a registry that was overtaken says nothing", []step{
			{time.Second, map[string]string{"a": "v2"}, "v2", nil, true},
			{0, map[string]string{"a": "v1", "b": "v1"}, "v2", nil, false},
		}, []view.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"a clock that was set back begins anew", []step{
			{time.Hour, map[string]string{"a": "v1"}, "v2", nil, true},
			{0, map[string]string{"a": "v1"}, "v2", nil, false},
			{4 * time.Second, map[string]string{"a": "v1"}, "v2", nil, false},
			{5 * time.Second, map[string]string{"a": "v1"}, "v2", []late{{"a", "v1", 5 * time.Second}}, false},
		}, []view.Instance{{Name: "a", Version: "v1", Behind: 5}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f fleet
			for _, s := range tt.steps {
				r := bus.Registry{Now: t0.Add(s.after), Versions: map[string]string{}}
				for _, name := range []string{"a", "b"} {
					if version, ok := s.versions[name]; ok {
						r.Instances = append(r.Instances, name)
						if version != "" {
							r.Versions[name] = version
						}
					}
				}
				say, changed := f.observe(r, s.want)
				if diff := cmp.Diff(s.say, say, cmp.AllowUnexported(late{}), cmpopts.EquateEmpty()); diff != "" || changed != s.changed {
					t.Errorf("after %v: changed %v, want %v; says (-want +got):\n%s", s.after, changed, s.changed, diff)
				}
			}
			if diff := cmp.Diff(tt.list, f.list(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("instances differ (-want +got):\n%s", diff)
			}
		})
	}
}

// What a registry says of problems holds until one says otherwise; one that says nothing
// of them changes nothing.
func TestFleetProblems(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	var f fleet
	for i, tt := range []struct {
		name     string
		problems map[string]string
		want     string
	}{
		{"not told", nil, ""},
		{"all is well", map[string]string{}, ""},
		{"one has a problem", map[string]string{"a": "no peers session \xff"}, "no peers session \ufffd"},
		{"not told again", nil, "no peers session \ufffd"},
		{"another problem", map[string]string{"a": "not serving yet", "b": "x"}, "not serving yet"},
		{"it is well again", map[string]string{"b": "x"}, ""},
	} {
		f.observe(bus.Registry{Now: t0.Add(time.Duration(i) * time.Second), Instances: []string{"a"}, Problems: tt.problems}, "v1")
		if got := f.list()[0].Problem; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
