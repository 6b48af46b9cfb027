// Package credit says who can have credit, and how much of a user's limit each instance's
// HAProxy may admit by itself, without a question to its agent.
//
// A credit is for several instances at once, and none of them knows what the others
// have used of theirs. So what all of them may admit by themselves is reserved: it
// counts as used until an instance says that its HAProxy has no credit. The portion
// is small enough that most of the limit is left to those who ask, and large enough
// that a user far below their limit is asked about rarely.
//
// The package is pure: all of it follows from the limit file and the number of instances.
// It does not know whether HAProxy has any credit now.
package credit

// Portion is what each of the instances may admit by itself of a limit: all of it if
// there is only one instance, else a quarter of its even part, and at least 1. It is
// 0, no credit, where 1 for each instance would reserve more than three fifths of the
// limit: then the instances have to ask. It is never negative, and for several
// instances together never more than three fifths of the limit. A limit of 0 or less
// has none.
//
// All agents and the pool compute it for themselves, so it must depend on nothing but
// the limit and the number of instances, of which less than 1 counts as 1.
func Portion(limit, instances int) (each int) {
	switch {
	case limit <= 0:
		return 0
	// Nobody else admits anything, so nothing has to be left for those who ask.
	case instances <= 1:
		return limit
	// Else less than two fifths of the limit would be left to whoever needs more than a portion.
	case 5*instances > 3*limit:
		return 0
	}
	return max(1, limit/(4*instances))
}

// MostReserved is at least what any number of instances, of two and more up to the given one,
// may admit by themselves of a limit together: for a while after that number has changed, they
// go by different ones, which nobody knows all. It is never more than three fifths of the
// limit, and not negative.
func MostReserved(limit, most int) int {
	// Each has 1, or less than a quarter of the limit divided by their number.
	return max(0, limit/4, min(most, 3*limit/5))
}
