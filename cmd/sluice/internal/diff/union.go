package diff

import "iter"

// sides tells which of two sequences has a name.
type sides struct{ left, right bool }

func (s sides) onBoth() bool { return s.left && s.right }

// unionOf yields the names of two sorted lists, sorted, each once.
func unionOf(left, right []string) iter.Seq2[string, sides] {
	return func(yield func(string, sides) bool) {
		// Side by side through both, because a map of the names of two large files would take more than the files.
		for len(left)+len(right) > 0 {
			in := sides{
				len(left) > 0 && (len(right) == 0 || left[0] <= right[0]),
				len(right) > 0 && (len(left) == 0 || right[0] <= left[0]),
			}
			var name string
			if in.left {
				name, left = left[0], left[1:]
			}
			if in.right {
				name, right = right[0], right[1:]
			}
			if !yield(name, in) {
				return
			}
		}
	}
}
