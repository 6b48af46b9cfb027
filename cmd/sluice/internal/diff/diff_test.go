package diff

import (
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// TestUnion: each name once, in order, with the sequences that have it.
func TestUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), rapid.ID[string])
		left, right := names.Draw(t, "left"), names.Draw(t, "right")
		slices.Sort(left)
		slices.Sort(right)
		want := map[string]sides{}
		for _, name := range left {
			want[name] = sides{left: true}
		}
		for _, name := range right {
			want[name] = sides{slices.Contains(left, name), true}
		}
		got := map[string]sides{}
		var order []string
		for name, in := range unionOf(left, right) {
			got[name] = in
			order = append(order, name)
		}
		if !maps.Equal(got, want) || !slices.IsSorted(order) || len(order) != len(want) {
			t.Errorf("union(%q, %q) = %v in the order %q, want %v", left, right, got, order, want)
		}
	})
}

// TestComparisonFindsWhatDiffers: two files differ exactly if somebody has other
// limits, a tier or a name is there in one only, or the default tier is another;
// and the other way round they differ as well.
func TestComparisonFindsWhatDiffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chosen := rapid.SliceOfN(rapid.IntRange(0, 8*9-1), 5, 5).Draw(t, "before")
		before := choose(t, chosen)
		for i, n := range rapid.MapOfN(rapid.IntRange(0, 4), rapid.IntRange(0, 8*9-1), 0, 2).Draw(t, "changes") {
			chosen[i] = n
		}
		after := choose(t, chosen)
		want := before.DefaultTier() != after.DefaultTier() || !slices.Equal(before.TierNames(), after.TierNames()) ||
			!slices.Equal(slices.Collect(before.UserNames()), slices.Collect(after.UserNames()))
		for _, at := range []time.Time{today, today.AddDate(200, 0, 0)} {
			for _, user := range []string{"u", "v", "nobody"} {
				a, b := before.At(at).User(user), after.At(at).User(user)
				want = want || a.Tier != b.Tier || len(differences(a, b, false)) > 0
			}
		}
		for _, name := range before.TierNames() {
			a, _ := before.TierLimits(name)
			if b, ok := after.TierLimits(name); ok {
				want = want || len(differences(a, b, false)) > 0
			}
		}
		if got := compare(before, after); got != want {
			t.Errorf("differ = %v, want %v:\n%s\n%s", got, want, before.Source(), after.Source())
		}
		if back := compare(after, before); back != want {
			t.Errorf("differ the other way round = %v, want %v:\n%s\n%s", back, want, before.Source(), after.Source())
		}
	})
}

var today = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func compare(before, after *limits.Set) bool {
	return Write(io.Discard, before, after, today)
}

// choose makes a limit file of five numbers: the default tier, two tiers, two users.
func choose(t *rapid.T, chosen []int) *limits.Set {
	of := func(i int, choices ...string) string { return choices[chosen[i]%len(choices)] }
	tier := func(i int) string {
		return of(i, "{}", "{requests: {GET: 1}}", "{concurrent: 5}", "{priority: 1}", "{bandwidth: {up: 5}}",
			"{requests: {GET: {second: 1, burst: 2, mode: dry-run}}}", `{requests: {"*": {hour: 9}}}`, "{costs: {t: {minute: 9, day: 9}}}")
	}
	source := "version: 1\ncosts: {t: {estimate: {default: 1}}}\ndefault_tier: " + of(0, "a", "b") + "\ntiers: {a: " + tier(1) + ", b: " + tier(2) + "}\nusers:\n"
	for i, user := range []string{"u", "v"} {
		if is := of(3+i, "", "a", "b", "{tier: b, concurrent: 5}", "{priority: 1}", "{tier: b, concurrent: 6, until: 2199-01-01}",
			"{tier: a, concurrent: 6, until: 2020-01-01}", `{requests: {"*": {hour: 8}}}`, "{costs: {t: {day: 8, mode: dry-run}}}"); is != "" {
			source += "  " + user + ": " + is + "\n"
		}
	}
	set, err := limitfile.Parse("f", []byte(source))
	if err != nil {
		t.Fatalf("%v:\n%s", err, source)
	}
	return set
}
