package diff

import (
	"slices"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type difference struct{ name, before, after string }

func (d difference) String() string { return d.name + ": " + d.before + " → " + d.after }

// differences are the terms that differ, in the order of SortNames. What differs in
// nothing but the mode is none if modes are ignored.
func differences(a, b *limits.Limits, ignoreModes bool) []difference {
	// Only of who is exempt under both files, which share nothing else.
	if a == b {
		return nil
	}
	// In a file that says nothing of jobs they follow from the tier's name, and differ with that alone.
	jobs := a.Jobs().Stated || b.Jobs().Stated
	before, after := terms.TermsWithJobs(a, jobs), terms.TermsWithJobs(b, jobs)
	var found []difference
	for _, name := range terms.NamesIn(before, after) {
		d := difference{name, terms.ValueOf(before, name), terms.ValueOf(after, name)}
		// Not limited and off differ in words, and in nothing that a user would notice.
		if d.before == d.after || terms.LimitsNothing(d.before) && terms.LimitsNothing(d.after) ||
			ignoreModes && terms.ValueOf(anyMode(before), name) == terms.ValueOf(anyMode(after), name) {
			continue
		}
		found = append(found, d)
	}
	return found
}

// anyMode are terms without what tells of a dry run.
func anyMode(all []terms.Term) []terms.Term {
	var other []terms.Term
	for _, t := range all {
		t.Notes = slices.DeleteFunc(slices.Clone(t.Notes), func(note string) bool { return note == limits.DryRun.String() })
		other = append(other, t)
	}
	return other
}
