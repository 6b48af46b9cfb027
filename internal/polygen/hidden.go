package polygen

import (
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Where users' names are hidden (see limits.Secrets) the cluster knows users by their keys
// alone. Operators may ask by name. Only the key goes further than this file: into answers, the audit and Redis.

// mismatchEvery is how often the log tells of keys of a secret that polygen does not have,
// at most.
const mismatchEvery = 10 * time.Minute

// hidesName reports whether the cluster knows a user who is asked for by name by a hidden key.
func hidesName(set *limits.Set, name string) bool {
	// What has the form of a hidden key is taken for one, also without secrets: HAProxies may hide names from a
	// polygen that has none.
	return set.Secrets() != nil || limits.IsHidden(name)
}

// overrideNames is how overrides by hand name a user who is asked for: by the name, or by the
// hidden keys, that of the current secret first.
func overrideNames(set *limits.Set, name string) []string {
	if hidesName(set, name) {
		return set.Keys(name)
	}
	return []string{name}
}

// findKey returns the key of a user who is asked for by name, and the other keys by which
// there were reports.
func (p *Polygen) findKey(set *limits.Set, name, endpoint string) (key string, others []string) {
	keys := set.Keys(name)
	// Nearly always: there are more only while HAProxies change over to another secret.
	if len(keys) == 1 {
		return keys[0], nil
	}
	// By each of the keys the user may be in another part, and so known to another polygen.
	var wires [][]byte
	for _, k := range keys {
		wires = append(wires, []byte(limits.EndpointKey(endpoint, k)))
	}
	replies, _ := p.askOthers(p.partsOf(wires...), question{Users: wires})
	p.dashboard.mu.Lock()
	defer p.dashboard.mu.Unlock()
	for i, k := range keys {
		u, _ := userIn(replies, i)
		switch {
		case u.Seen == nil && !p.dashboard.view.HasReport(string(wires[i])):
			// No HAProxy has this secret yet, or any more.
		case key == "":
			// The first by which there were reports, the current secret before the others.
			key = k
		default:
			others = append(others, k)
		}
	}
	if key == "" {
		key = keys[0]
	}
	return key, others
}

// hideName returns the request with the user's key in place of the name, where names are hidden.
func (p *Polygen) hideName(a api.OverrideRequest) api.OverrideRequest {
	if set := p.set.Load(); !a.IsKey && hidesName(set, a.User) {
		a.User, a.IsKey = set.Key(a.User), true
	}
	return a
}

// errHidden stands for what was wrong with a request, whose text may have a name.
var errHidden = errors.New("what was asked for was not valid; its text is left out, because it may have a name")

// hidden is the state with users' keys in place of names, where names are hidden. There are some
// names that were set before. What is hidden here, Redis is told in place of them.
func (s overrideState) hidden(set *limits.Set) overrideState {
	if set.Secrets() == nil {
		return s
	}
	// By the keys of all secrets: which of them a HAProxy uses, nobody knows here.
	hide := func(list []limits.Override) (hidden []limits.Override) {
		for _, o := range list {
			if !limits.IsHidden(o.User) {
				keys := set.Keys(o.User)
				o.User, o.Also = keys[0], keys[1:]
			}
			hidden = append(hidden, o)
		}
		return hidden
	}
	return overrideState{hide(s.list), hide(s.removed)}
}

// tellSecrets counts, by secret, the keys that instances reported, and logs those of a
// secret that polygen does not have. Only decide calls it.
func (p *Polygen) tellSecrets(now time.Time, reports map[limits.SecretOf]uint64) {
	var foreign uint64
	for secret, n := range reports {
		more := n - p.dashboard.reports[secret]
		p.metrics.reports.WithLabelValues(string(secret)).Add(float64(more))
		p.dashboard.reports[secret] = n
		if secret == limits.UnknownSecret || secret == limits.NoSecret {
			foreign += more
		}
	}
	// A HAProxy with a wrong secret may report thousands of users a second, and one line says what is to be done.
	if foreign == 0 || !p.dashboard.toldSecrets.IsZero() && now.Sub(p.dashboard.toldSecrets) < mismatchEvery {
		return
	}
	p.dashboard.toldSecrets = now
	p.options.Logger.Warn("instances report users by keys of a secret that polygen does not have, or by names although it has one: they count as users whom the limit file does not name; "+
		"SLUICE_KEY_SECRET of each HAProxy must be in polygen's key secret file", slog.Uint64("reports", foreign))
}
