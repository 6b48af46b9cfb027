package concurrency

// Free is how many more requests of a user may start now, as far as this agent knows:
// exactly, where it is alone; among several, what it holds and what the pool had when
// it last answered, of which others may have taken since. It is never negative and
// never above his limit. It reports false for a user who is not known, or not limited.
func (a *Agent) Free(name string) (int, bool) {
	u := a.users[name]
	if u == nil || u.unlimited {
		return 0, false
	}
	n := a.capacity(u) - u.running()
	if !a.countsAlone() {
		n += u.left
	}
	return max(0, min(n, u.limit)), true
}
