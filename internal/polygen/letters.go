package polygen

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
)

// maxLetters bounds the letters that wait to be read. Questions beyond that are not answered.
const maxLetters = 256

// letter is one of these, or what was decided, or asks to be sent that.
type letter struct {
	From    string
	Number  int64       `json:",omitempty"` // of the question
	Ask     *question   `json:",omitempty"`
	Reply   *reply      `json:",omitempty"`
	Events  []api.Event `json:",omitempty"`
	Lost    int         `json:",omitempty"` // events for which there was no room
	Listens bool        `json:",omitempty"`

	heard time.Time
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
	shares    int                  // in events
	lost      int                  // events that had no room
}

func (o *others) setNames(self string, polygens []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = slices.DeleteFunc(slices.Clone(polygens), func(name string) bool { return name == self })
}

// hearOthers takes the letters of other polygens until ctx ends.
func (p *Polygen) hearOthers(ctx context.Context) error {
	// A subscription of its own: should Redis refuse it, for its users are those of a version before, agents are
	// heard all the same.
	return p.options.Bus.Subscribe(ctx, []bus.Channel{bus.PolygensChannel}, func(e bus.Event) {
		if l, ok := e.(bus.Letter); ok {
			p.takeLetter(l)
		}
	})
}

// takeLetter has a letter wait to be read, if it is for this polygen.
func (p *Polygen) takeLetter(l bus.Letter) {
	// Before it is read: of many polygens most answers are for another one.
	if l.To != "" && l.To != p.candidate {
		return
	}
	var read letter
	switch err := json.Unmarshal(l.Body, &read); {
	case err != nil:
		p.others.dropped.Inc()
		return
	case read.From == p.candidate:
		// Its own question: what is published over the channel of all comes back.
		return
	}
	read.heard = time.Now()
	to := p.others.questions
	if l.To != "" {
		to = p.others.answers
	}
	// Not waited for: the subscription would fall behind, and who asks gives up after a quarter of a second anyway.
	select {
	case to <- read:
	default:
		p.others.dropped.Inc()
		p.events.miss(len(read.Events) + read.Lost)
	}
}

// awaitAnswers is how the answers to a question come, and from whom.
func (o *others) awaitAnswers() (number int64, answers chan letter, from []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.number++
	if o.waiting == nil {
		o.waiting = make(map[int64]chan letter)
	}
	// Room for all, so that who reads letters never waits for who asked.
	answers = make(chan letter, len(o.names))
	o.waiting[o.number] = answers
	return o.number, answers, slices.Clone(o.names)
}

func (o *others) answered(l letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Nobody waits any more, and the channel is nil; or one answered twice, and it is full.
	select {
	case o.waiting[l.Number] <- l:
	default:
	}
}

func (o *others) endWait(number int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, number)
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
			p.answerLetter(ctx, l)
		}
	}
}

func (p *Polygen) answerLetter(ctx context.Context, l letter) {
	if l.Listens {
		p.others.addListener(l.From, time.Now().Add(listensFor))
	}
	// Nobody waits for the answer to an older one. To work them off would keep those that follow waiting as long.
	if l.Ask != nil && time.Since(l.heard) < othersAnswerWithin {
		answer := p.answerOther(*l.Ask)
		_ = p.sendLetter(ctx, l.From, letter{Number: l.Number, Reply: &answer})
	}
}

// readAnswers takes what other polygens say, until ctx ends.
func (p *Polygen) readAnswers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-p.others.answers:
			p.readAnswer(l)
		}
	}
}

func (p *Polygen) readAnswer(l letter) {
	if l.Reply != nil {
		p.others.answered(l)
	}
	for _, e := range l.Events {
		p.events.deliver(e)
	}
	// After those that came: they are of before the gap.
	p.events.miss(l.Lost)
}

func (p *Polygen) sendLetter(ctx context.Context, to string, l letter) error {
	l.From = p.candidate
	body, err := json.Marshal(l)
	if err == nil {
		err = p.options.Bus.Send(ctx, bus.Letter{To: to, Body: body})
	}
	// At debug: the loss of Redis has a line of its own, and who asked hears what is missing.
	if err != nil && ctx.Err() == nil {
		p.options.Logger.Debug("letter to other polygens not sent", slog.Any("error", err))
	}
	return err
}
