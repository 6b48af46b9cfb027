package polygen

import (
	"context"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/parts"
)

// What is decided here is sent to the other polygens that have readers of it.

const (
	// sendEventsEvery is how often others are sent what was decided, while they have readers of that.
	sendEventsEvery = 100 * time.Millisecond
	// listensFor is how long others are sent it after they asked, which they do every second.
	listensFor = 3 * time.Second
	// maxToldShares bounds the shares in the events of one letter, which would else have megabytes where there are
	// many instances.
	maxToldShares = 16_384
)

// addListener notes that another polygen has readers of what is decided.
func (o *others) addListener(name string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listeners == nil {
		o.listeners = make(map[string]time.Time)
	}
	// No more polygens than there are parts have work: names that somebody made up fill no memory.
	if _, known := o.listeners[name]; known || len(o.listeners) < parts.Count {
		o.listeners[name] = until
	}
}

// queueEvent keeps an event for the other polygens that have readers, who are sent it soon, or are told that it is lost.
func (o *others) queueEvent(e api.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.listeners) == 0:
	case len(o.events) >= maxUnread, o.shares+len(e.Shares) > maxToldShares:
		// Redis is away, or more is decided than anybody can read. Who decides does not wait.
		o.lost++
	default:
		o.events, o.shares = append(o.events, e), o.shares+len(e.Shares)
	}
}

// takeEvents is what to send, and to whom.
func (o *others) takeEvents(now time.Time) (to []string, said letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, until := range o.listeners {
		// Its last reader has gone, or it has: nobody says goodbye, for that could be lost.
		if now.After(until) {
			delete(o.listeners, name)
			continue
		}
		to = append(to, name)
	}
	said = letter{Events: o.events, Lost: o.lost}
	o.events, o.shares, o.lost = nil, 0, 0
	return to, said
}

func (p *Polygen) sendEvents(ctx context.Context) {
	to, said := p.others.takeEvents(time.Now())
	if len(said.Events)+said.Lost == 0 {
		return
	}
	for _, name := range to {
		_ = p.sendLetter(ctx, name, said)
	}
}

// listenToOthers has the others send what they decide, while somebody reads that here.
func (p *Polygen) listenToOthers() {
	// Sent to those alone who ask for it: mostly nobody reads events, anywhere.
	if !p.events.any.Load() || p.division.KnownParts() == parts.All {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), othersAnswerWithin)
	defer cancel()
	_ = p.sendLetter(ctx, "", letter{Listens: true})
}

// haveReaders reports whether other polygens have readers of what is decided.
func (o *others) haveReaders() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.listeners) > 0
}
