package limitdiff

import "iter"

// sides tells which of two sequences has a name.
type sides struct{ left, right bool }

func (s sides) onBoth() bool { return s.left && s.right }

// unionOf yields the names of two sorted sequences, sorted, each once.
func unionOf(left, right iter.Seq[string]) iter.Seq2[string, sides] {
	return func(yield func(string, sides) bool) {
		nextLeft, stopLeft := iter.Pull(left)
		defer stopLeft()
		nextRight, stopRight := iter.Pull(right)
		defer stopRight()
		l, okL := nextLeft()
		r, okR := nextRight()
		for okL || okR {
			in := sides{okL && (!okR || l <= r), okR && (!okL || r <= l)}
			name := l
			if !in.left {
				name = r
			}
			if !yield(name, in) {
				return
			}
			if in.left {
				l, okL = nextLeft()
			}
			if in.right {
				r, okR = nextRight()
			}
		}
	}
}
