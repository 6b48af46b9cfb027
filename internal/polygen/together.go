package polygen

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Each polygen knows of the users of its parts alone. Asked by somebody, it asks the others by way of Redis, for
// there they meet anyway, and puts the answers together. What is missing it says.

const (
	// othersAnswerWithin is how long the others have to answer.
	othersAnswerWithin = 250 * time.Millisecond
	// maxLetters bounds the letters that wait to be read. Questions beyond that are not answered.
	maxLetters = 256
	// sendEventsEvery is how often others are sent what was decided, while they have readers of that.
	sendEventsEvery = 100 * time.Millisecond
	// listensFor is how long others are sent it after they asked, which they do every second.
	listensFor = 3 * time.Second
)

// question is what one polygen asks all others. Users are given by wire key, which may be of any bytes.
type question struct {
	Tops     map[api.Sort]int // as for view.BeginLook; nil for none
	Now      bool             // who is throttled now, not within the last second
	Users    [][]byte         // what is known of them
	History  []byte           // "" for none
	Unknown  api.Sort         // "" for none
	UnknownN int
}

// reply is what one polygen knows of it. Of users of others it says nothing.
type reply struct {
	Totals  api.Totals
	Tops    map[api.Sort][]api.Summary
	Limited []api.Summary
	Users   map[int]api.User // by index in the question
	History *api.History
	Unknown api.UnknownUsers
}

// letter is one of these, or what was decided, or asks to be sent that.
type letter struct {
	From    string
	Number  int64       `json:",omitempty"` // of the question
	Ask     *question   `json:",omitempty"`
	Reply   *reply      `json:",omitempty"`
	Events  []api.Event `json:",omitempty"`
	Listens bool        `json:",omitempty"`
}

// others are the polygens beside this one. The zero value knows of none.
type others struct {
	questions chan letter // to all
	answers   chan letter // to this one: apart from questions, which take long to answer
	dropped   prometheus.Counter

	mu        sync.Mutex
	names     []string // as they lead: name and random part
	number    int64
	waiting   map[int64]chan letter
	listeners map[string]time.Time // who has readers of what is decided, until when
	events    []api.Event          // to send to them
}

func (o *others) set(self string, polygens []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = slices.DeleteFunc(slices.Clone(polygens), func(name string) bool { return name == self })
}

// hearOthers takes the letters of other polygens until ctx ends. Its subscription is its own: should Redis refuse it, for
// its users are those of a version before, all else works.
func (p *Polygen) hearOthers(ctx context.Context) error {
	return p.options.Bus.Subscribe(ctx, []bus.Channel{bus.PolygensChannel}, func(e bus.Event) {
		l, ok := e.(bus.Letter)
		if !ok || l.To != "" && l.To != p.candidate {
			return
		}
		var read letter
		if err := json.Unmarshal(l.Body, &read); err != nil || read.From == p.candidate {
			return
		}
		to := p.others.questions
		if l.To != "" {
			to = p.others.answers
		}
		select {
		case to <- read:
		default:
			p.others.dropped.Inc()
		}
	})
}

// await is how the answers to a question come, and from whom.
func (o *others) await() (number int64, answers chan letter, from []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.names) == 0 {
		return 0, nil, nil
	}
	o.number++
	if o.waiting == nil {
		o.waiting = make(map[int64]chan letter)
	}
	answers = make(chan letter, len(o.names))
	o.waiting[o.number] = answers
	return o.number, answers, slices.Clone(o.names)
}

func (o *others) answered(l letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.waiting[l.Number] <- l: // nobody waits any more: never
	default:
	}
}

func (o *others) endWait(number int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, number)
}

// askOthers asks all other polygens, and says which of them did not answer in time.
func (p *Polygen) askOthers(q question) (replies []*reply, missing string) {
	if p.division.KnownParts() == parts.All { // nobody knows more
		return nil, ""
	}
	number, answers, from := p.others.await()
	if len(from) == 0 {
		return nil, ""
	}
	defer p.others.endWait(number)
	ctx, cancel := context.WithTimeout(context.Background(), othersAnswerWithin)
	defer cancel()
	if p.send(ctx, "", letter{Number: number, Ask: &q}) == nil {
		for len(from) > 0 && ctx.Err() == nil {
			select {
			case l := <-answers:
				if at := slices.Index(from, l.From); at >= 0 {
					from = slices.Delete(from, at, at+1)
					replies = append(replies, l.Reply)
				}
			case <-ctx.Done():
			}
		}
	}
	if len(from) == 0 {
		return replies, ""
	}
	p.metrics.unanswered.Add(float64(len(from)))
	for i, name := range from {
		from[i] = baseName(name)
	}
	return replies, "polygen " + strings.Join(from, ", ") + " does not answer: what it knows is missing here"
}

func (p *Polygen) send(ctx context.Context, to string, l letter) error {
	l.From = p.candidate
	body, err := json.Marshal(l)
	if err == nil {
		err = p.options.Bus.Send(ctx, bus.Letter{To: to, Body: body})
	}
	if err != nil && ctx.Err() == nil {
		p.options.Logger.Debug("letter to other polygens not sent", slog.Any("error", err))
	}
	return err
}

// answerOthers answers other polygens, and sends them what their readers want, until ctx ends.
func (p *Polygen) answerOthers(ctx context.Context) error {
	ticker := time.NewTicker(sendEventsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.sendEvents(ctx)
		case l := <-p.others.questions:
			if l.Listens {
				p.others.addListener(l.From, time.Now().Add(listensFor))
			}
			if l.Ask != nil {
				answer := p.answerOther(*l.Ask)
				_ = p.send(ctx, l.From, letter{Number: l.Number, Reply: &answer})
			}
		}
	}
}

// readAnswers takes what other polygens say, until ctx ends.
func (p *Polygen) readAnswers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-p.others.answers:
			if l.Reply != nil {
				p.others.answered(l)
			}
			for _, e := range l.Events {
				p.events.deliver(e)
			}
		}
	}
}

// answerOther says what this polygen knows.
func (p *Polygen) answerOther(q question) (out reply) {
	now, kept := p.clock.Now(), p.division.KnownParts()
	if q.Tops != nil {
		out = p.lookOwn(now, q)
	}
	p.dashboard.mu.Lock()
	defer p.dashboard.mu.Unlock()
	p.dashboard.adoptLimits(p.set.Load())
	for i, key := range q.Users {
		if !kept.HasUser(string(key)) {
			continue
		}
		if out.Users == nil {
			out.Users = make(map[int]api.User)
		}
		if q.Now {
			out.Users[i] = p.dashboard.view.User(now, string(key))
		} else {
			out.Users[i] = p.dashboard.view.UserLately(now, string(key))
			p.dashboard.past.Remember(now, string(key))
		}
	}
	if len(q.History) > 0 && kept.HasUser(string(q.History)) {
		h := p.dashboard.past.History(now, string(q.History), p.dashboard.view)
		out.History = &h
	}
	if q.Unknown != "" {
		out.Unknown = p.dashboard.view.Unknown(q.Unknown, q.UnknownN)
	}
	return out
}

// lookOwn looks at the users of this polygen for another one, and keeps histories of those who are shown there.
func (p *Polygen) lookOwn(now time.Time, q question) reply {
	s := p.dashboard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adoptLimits(p.set.Load())
	begin := s.view.BeginLook
	if q.Now {
		begin = s.view.BeginLookNow
	}
	look := begin(now, q.Tops)
	s.finish(look)
	o := look.Overview()
	if !q.Now {
		s.rememberShown(now, o)
	}
	return reply{Totals: o.Totals, Tops: o.Tops, Limited: o.Limited}
}

// askOthersOf asks the other polygens what is known of a user by wire key, unless it is this one that knows.
func (p *Polygen) askOthersOf(wire string, q question) (replies []*reply, missing string) {
	if p.division.KnownParts().HasUser(wire) {
		return nil, ""
	}
	return p.askOthers(q)
}

// addListener notes that another polygen has readers of what is decided.
func (o *others) addListener(name string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listeners == nil {
		o.listeners = make(map[string]time.Time)
	}
	if len(o.listeners) < parts.Count {
		o.listeners[name] = until
	}
}

// tell keeps an event for the other polygens that have readers, who are sent it soon.
func (o *others) tell(e api.Event) (lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.listeners) == 0 {
		return false
	}
	if len(o.events) >= maxUnread {
		return true
	}
	o.events = append(o.events, e)
	return false
}

// takeEvents is what to send, and to whom.
func (o *others) takeEvents(now time.Time) (to []string, events []api.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, until := range o.listeners {
		if now.After(until) {
			delete(o.listeners, name)
			continue
		}
		to = append(to, name)
	}
	events, o.events = o.events, nil
	return to, events
}

func (p *Polygen) sendEvents(ctx context.Context) {
	to, events := p.others.takeEvents(time.Now())
	for _, name := range to {
		if len(events) > 0 {
			_ = p.send(ctx, name, letter{Events: events})
		}
	}
}

// listenToOthers has the others send what they decide, while somebody reads that here.
func (p *Polygen) listenToOthers() {
	if !p.events.any.Load() || p.others.alone() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), othersAnswerWithin)
	defer cancel()
	_ = p.send(ctx, "", letter{Listens: true})
}

// haveReaders reports whether other polygens have readers of what is decided.
func (o *others) haveReaders() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.listeners) > 0
}

func (o *others) alone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.names) == 0
}

// wireOf is a key as questions have it.
func wireOf(endpoint, key string) []byte { return []byte(limits.EndpointKey(endpoint, key)) }
