package polygen

import (
	"cmp"

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
	// Before the lock is taken: who decides must not wait a quarter of a second for others' answers.
	replies, missing := p.askOthers(p.partsOf([]byte(key)), question{History: []byte(key)})
	out, known := historyIn(replies)
	// Not of a user of another polygen: the histories here would remember zeros from then on.
	if !known {
		s := p.lockDashboard()
		out = s.past.History(p.clock.Now(), key, s.view)
		s.mu.Unlock()
	}
	out.From = p.answerHead()
	out.Degraded = cmp.Or(out.Degraded, missing)
	return out
}
