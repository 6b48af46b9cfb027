package bandwidth

// The constants that tests need.
const (
	ForgetSpan = forgetSpan
)

// Restate has every user reported.
func (a *Agent) Restate() {
	for _, u := range a.users {
		a.report(u)
	}
}
