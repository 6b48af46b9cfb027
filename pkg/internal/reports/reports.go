// Package reports remembers which instances have reported which users, so that an
// instance which is gone costs what it had reported, and not a walk through all users.
package reports

// Instances are the last reports about one user, by instance. Embed it.
type Instances[R any] struct{ Reports map[string]*R }

func (i *Instances[R]) all() *Instances[R] { return i }

// ByInstance finds the users of whom an instance has reported; they embed Instances. The
// zero ByInstance has none. It is not safe for concurrent use.
type ByInstance[R any, U interface {
	comparable
	all() *Instances[R]
}] struct{ users map[string]map[U]struct{} }

// Of is the last report of an instance about a user, zero if there was none.
func (b *ByInstance[R, U]) Of(user U, instance string) *R {
	reports := user.all()
	if report := reports.Reports[instance]; report != nil {
		return report
	}
	if reports.Reports == nil {
		reports.Reports = make(map[string]*R, 1)
	}
	if b.users == nil {
		b.users = make(map[string]map[U]struct{})
	}
	if b.users[instance] == nil {
		b.users[instance] = make(map[U]struct{})
	}
	report := new(R)
	reports.Reports[instance], b.users[instance][user] = report, struct{}{}
	return report
}

// Drop forgets the report of an instance about a user.
func (b *ByInstance[R, U]) Drop(user U, instance string) {
	delete(user.all().Reports, instance)
	delete(b.users[instance], user)
	// Instances come and go with new names: none may stay because it once reported somebody.
	if len(b.users[instance]) == 0 {
		delete(b.users, instance)
	}
}

// Gone are the instances that have reported and are not among the live ones, by user. Their reports
// stay until they are dropped.
func (b *ByInstance[R, U]) Gone(live []string) map[U][]string {
	lives := make(map[string]bool, len(live))
	for _, instance := range live {
		lives[instance] = true
	}
	gone := make(map[U][]string)
	for instance, users := range b.users {
		if lives[instance] {
			continue
		}
		for user := range users {
			gone[user] = append(gone[user], instance)
		}
	}
	return gone
}
