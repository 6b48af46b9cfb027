package concurrency

// Held is how many slots of a user the agent may use.
func (a *Agent) Held(name string) int {
	if u := a.users[name]; u != nil {
		return u.held
	}
	return 0
}

// Divide is shares, for tests.
var Divide = shares
