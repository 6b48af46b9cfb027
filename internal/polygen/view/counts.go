package view

// counts has what is counted in the present window, the one before and the one after, by the
// number of the window modulo 3.
type counts[T any] [3]struct {
	begin int64 // in seconds
	value T
}

// set takes the count of the window that begins at a second of the cluster, of windows of a length in seconds of which the
// present one begins at another. Instances ask for the next window ahead of its begin, and may be late for the one before.
// A count of any other window comes from a wrong clock.
func (c *counts[T]) set(length, present, begin int64, value T) {
	// A day may begin at some offset, which the division leaves out: windows after each other have numbers after each other.
	n := begin / length
	// It would replace the count of one of the three windows that matter.
	if off := n - present/length; off < -1 || off > 1 || n < 0 {
		return
	}
	of := &c[n%int64(len(c))]
	of.begin, of.value = begin, value
}

// at is the count of the window that begins at a second, and whether there is one.
func (c *counts[T]) at(length, begin int64) (value T, ok bool) {
	// Only in tests is it 1970. There is no count before it, and no place for one.
	if begin < 0 {
		return value, false
	}
	// A count stays in its place until the third window after it, so its begin decides.
	if of := c[begin/length%int64(len(c))]; of.begin == begin {
		return of.value, true
	}
	return value, false
}
