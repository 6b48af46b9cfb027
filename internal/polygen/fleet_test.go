package polygen

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// The registry as it is read again and again, and what is said of it.
func TestFleet(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	type step struct {
		after    time.Duration // since t0
		versions map[string]string
		want     string
	}
	for _, tt := range []struct {
		name  string
		steps []step
		list  []api.Instance
	}{
		{"nobody", []step{{0, nil, "v1"}}, nil},
		{"all have the limits", []step{
			{0, map[string]string{"b": "v1", "a": "v1"}, "v1"},
			{10 * time.Second, map[string]string{"b": "v1", "a": "v1"}, "v1"},
		}, []api.Instance{{Name: "a", Version: "v1", Current: true}, {Name: "b", Version: "v1", Current: true}}},
		{"one that comes up has none", []step{
			{0, map[string]string{"a": ""}, "v1"},
			{500 * time.Millisecond, map[string]string{"a": ""}, "v1"},
		}, []api.Instance{{Name: "a", Behind: 0.5}}},
		{"one that is late", []step{
			{0, map[string]string{"a": "v1", "b": "v1"}, "v1"},
			{time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2"},
			{5900 * time.Millisecond, map[string]string{"a": "v2", "b": "v1"}, "v2"},
			{6 * time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2"},
			{20 * time.Second, map[string]string{"a": "v2", "b": "v1"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v2", Current: true}, {Name: "b", Version: "v1", Behind: 19}}},
		{"and is not any more", []step{
			{0, map[string]string{"a": "v1"}, "v2"},
			{5 * time.Second, map[string]string{"a": "v1"}, "v2"},
			{6 * time.Second, map[string]string{"a": "v2"}, "v2"},
			{7 * time.Second, map[string]string{"a": "v2"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"one that was late for a moment", []step{
			{0, map[string]string{"a": "v1"}, "v2"},
			{time.Second, map[string]string{"a": "v2"}, "v2"},
			{6 * time.Second, map[string]string{"a": "v1"}, "v2"},
			{7 * time.Second, map[string]string{"a": "v2"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"one that left is forgotten", []step{
			{0, map[string]string{"a": "v1", "b": "v2"}, "v2"},
			{10 * time.Second, map[string]string{"b": "v2"}, "v2"},
			{11 * time.Second, map[string]string{"a": "v1", "b": "v2"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v1"}, {Name: "b", Version: "v2", Current: true}}},
		{"a registry that was overtaken says nothing", []step{
			{time.Second, map[string]string{"a": "v2"}, "v2"},
			{0, map[string]string{"a": "v1", "b": "v1"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v2", Current: true}}},
		{"a clock that was set back begins anew", []step{
			{time.Hour, map[string]string{"a": "v1"}, "v2"},
			{0, map[string]string{"a": "v1"}, "v2"},
			{4 * time.Second, map[string]string{"a": "v1"}, "v2"},
			{5 * time.Second, map[string]string{"a": "v1"}, "v2"},
		}, []api.Instance{{Name: "a", Version: "v1", Behind: 5}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f fleet
			for _, s := range tt.steps {
				r := redisbus.Registry{Now: t0.Add(s.after), Versions: map[string]string{}}
				for _, name := range []string{"a", "b"} {
					if version, ok := s.versions[name]; ok {
						r.Instances = append(r.Instances, name)
						if version != "" {
							r.Versions[name] = version
						}
					}
				}
				f.observe(r, s.want)
			}
			if diff := cmp.Diff(tt.list, f.instances(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("instances differ (-want +got):\n%s", diff)
			}
		})
	}
}

// An instance that is gone is still listed for a while, unless another one of the same
// name has come in its place.
func TestFleetTellsOfThoseGone(t *testing.T) {
	t0 := time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)
	at := func(after time.Duration) redisbus.Registry { return redisbus.Registry{Now: t0.Add(after)} }
	with := func(after time.Duration, names ...string) redisbus.Registry {
		r := at(after)
		r.Instances, r.Versions = names, map[string]string{}
		for _, name := range names {
			r.Versions[name] = "v1"
		}
		return r
	}
	here := func(name string) api.Instance { return api.Instance{Name: name, Version: "v1", Current: true} }
	gone := func(name string, since time.Duration, clock string) api.Instance {
		when := t0.Add(since)
		return api.Instance{Name: name, Version: "v1", Gone: &when, Problem: "gone: not heard of since " + clock + " UTC"}
	}
	for _, tt := range []struct {
		name  string
		seen  []redisbus.Registry
		there int
		list  []api.Instance
	}{
		{"one is gone", []redisbus.Registry{with(0, "a#1", "b#1"), with(time.Second, "b#1")}, 1, []api.Instance{gone("a#1", time.Second, "08:00:01"), here("b#1")}},
		{"since it was missed first", []redisbus.Registry{with(0, "a#1", "b#1"), with(time.Second, "b#1"), with(5*time.Minute, "b#1")}, 1,
			[]api.Instance{gone("a#1", time.Second, "08:00:01"), here("b#1")}},
		{"for ten minutes", []redisbus.Registry{with(0, "a#1", "b#1"), with(time.Second, "b#1"), with(10*time.Minute+time.Second, "b#1")}, 1, []api.Instance{here("b#1")}},
		{"all are gone", []redisbus.Registry{with(0, "a#1"), at(time.Second)}, 0, []api.Instance{gone("a#1", time.Second, "08:00:01")}},
		{"it is back", []redisbus.Registry{with(0, "a#1"), at(time.Second), with(2*time.Second, "a#1")}, 1, []api.Instance{here("a#1")}},
		{"restarted, it has another number", []redisbus.Registry{with(0, "a#1", "b#1"), with(time.Second, "b#1"), with(2*time.Second, "a#2", "b#1")}, 2, []api.Instance{here("a#2"), here("b#1")}},
		{"restarted before it was missed", []redisbus.Registry{with(0, "a#1"), with(time.Second, "a#1", "a#2"), with(2*time.Second, "a#2")}, 1, []api.Instance{here("a#2")}},
		{"without a number", []redisbus.Registry{with(0, "a", "b"), with(time.Second, "b")}, 1, []api.Instance{gone("a", time.Second, "08:00:01"), here("b")}},
		{"the clock was set back", []redisbus.Registry{with(time.Hour, "a#1"), at(time.Hour + time.Second), at(0)}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f fleet
			for _, r := range tt.seen {
				f.observe(r, "v1")
			}
			present, behind := f.counts()
			if diff := cmp.Diff(tt.list, f.instances(), cmpopts.EquateEmpty()); diff != "" || present != tt.there || behind != 0 {
				t.Errorf("%d there, want %d; %d behind, want 0; instances (-want +got):\n%s", present, tt.there, behind, diff)
			}
		})
	}
}

// Names that change with each start do not add up.
func TestGoneInstancesAreBounded(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	var f fleet
	for i := range 3 * maxGone {
		f.observe(redisbus.Registry{Now: t0.Add(time.Duration(i) * time.Second), Instances: []string{fmt.Sprintf("pod-%03d", i)}}, "v1")
	}
	if list := f.instances(); len(list) != maxGone+1 || list[maxGone].Gone != nil {
		t.Errorf("%d instances, want %d that are gone and the present one", len(list), maxGone)
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
		f.observe(redisbus.Registry{Now: t0.Add(time.Duration(i) * time.Second), Instances: []string{"a"}, Problems: tt.problems}, "v1")
		if got := f.instances()[0].Problem; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
