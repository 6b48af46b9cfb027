package polygen

import (
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxHistories is of how many users is remembered what they used second by second: some
// 20 KiB each.
const maxHistories = 512

// History returns what a user, by their name, used in the last seconds. It is remembered
// from the first question on, if it was not before.
func (p *Polygen) History(name string) api.History {
	out := p.HistoryOfKey(limits.KeyOf(name))
	out.Name = api.NameOfUser(name)
	return out
}

// HistoryOfKey is History, by the key that the cluster knows the user by.
func (p *Polygen) HistoryOfKey(key string) api.History {
	s := p.lockDashboard()
	out := s.past.History(p.clock.Now(), key, s.view)
	s.mu.Unlock()
	out.From = p.answerHead()
	return out
}
