package polygen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// Questions that nobody has time to answer wait in a bounded queue.
func TestQuestionsAreBounded(t *testing.T) {
	addr := redis(t)
	g, asker := newGenerator(t, addr, "slow", nil), newGenerator(t, addr, "asker", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.hearOthers(ctx) // and nobody answers
	}()
	defer func() { cancel(); <-done }()
	proctest.Eventually(t, "one is too many", func() error {
		for range maxLetters {
			if err := asker.sendLetter(t.Context(), "", letter{Ask: &question{}}); err != nil {
				return err
			}
		}
		if testutil.ToFloat64(g.metrics.lettersDropped) == 0 {
			return errors.New("none is dropped")
		}
		return nil
	})
	if n := len(g.others.questions); n != maxLetters {
		t.Errorf("%d wait, want %d", n, maxLetters)
	}
	asker.takeLetter(bus.Letter{Body: []byte("{")})
	if n := testutil.ToFloat64(asker.metrics.lettersDropped); n != 1 {
		t.Errorf("of a message that is none %v are dropped, want 1", n)
	}
}

// A question that waited for longer than the one who asked does is passed over.
func TestOldQuestionsAreNotAnswered(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "slow", nil)
	g.decideAll(true)
	ask := letter{From: "asker#1", Ask: &question{Users: [][]byte{[]byte("alice")}}}
	for _, tt := range []struct {
		waited     time.Duration
		remembered int
	}{{othersAnswerWithin, 0}, {0, 1}} {
		ask.heard = time.Now().Add(-tt.waited)
		g.answerLetter(t.Context(), ask)
		if n := g.dashboard.past.Len(); n != tt.remembered {
			t.Errorf("after %v it has looked up %d users, want %d", tt.waited, n, tt.remembered)
		}
	}
}

// Others are asked for what they decide by those alone who do not know of all users themselves.
func TestWhoListens(t *testing.T) {
	addr := redis(t)
	g, other := newGenerator(t, addr, "one", nil), newGenerator(t, addr, "two", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = other.hearOthers(ctx)
	}()
	defer func() { cancel(); <-done }()
	heard := func() letter { // the first one that came
		proctest.Eventually(t, "a letter", func() error {
			if err := g.sendLetter(t.Context(), "", letter{Number: 7}); err != nil || len(other.others.questions) == 0 {
				return errors.Join(errors.New("none yet"), err)
			}
			return nil
		})
		first := <-other.others.questions
		for len(other.others.questions) > 0 {
			<-other.others.questions
		}
		return first
	}
	heard()
	_, stop, err := g.Policies(api.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	g.listenToOthers()
	if l := heard(); l.Listens {
		t.Error("one that knows of all users asks for what others decide")
	}
	g.decideAll(false)
	g.division.TakeAnswer(time.Now(), parts.Answer{Held: parts.SetOf(1)})
	proctest.Eventually(t, "one that knows of some asks", func() error {
		g.listenToOthers()
		if l := heard(); !l.Listens {
			return errors.New("it does not")
		}
		return nil
	})
}

// However many listen, one of them goes on when it asks again, and no more are taken.
func TestListenersAreBoundedAndRenewed(t *testing.T) {
	var o others
	now := time.Now()
	for i := range parts.Count + 1 {
		o.addListener(fmt.Sprint("p", i), now.Add(listensFor))
	}
	o.addListener("p7", now.Add(2*listensFor))
	if to, _ := o.takeEvents(now); len(to) != parts.Count {
		t.Errorf("%d listen, want %d", len(to), parts.Count)
	}
	if to, _ := o.takeEvents(now.Add(listensFor + 1)); !slices.Equal(to, []string{"p7"}) {
		t.Errorf("then %q listen, want p7, which asked again", to)
	}
}

// What does not fit into a letter the readers at the other polygen are told to have lost, and so they are of a
// letter that came too fast.
func TestEventsLostBetweenPolygens(t *testing.T) {
	g, other := newGenerator(t, "127.0.0.1:1", "one", nil), newGenerator(t, "127.0.0.1:1", "two", nil)
	g.others.addListener(other.candidate, time.Now().Add(listensFor))
	stream, stop, err := other.Policies(api.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	lost := func() (n int) {
		other.events.tellLost(time.Now())
		for len(stream) > 0 {
			if e := (<-stream).Value.(*api.Event); e.Kind == api.LostEvent {
				n += e.Count
			}
		}
		other.events.tellLost(time.Now())
		for len(stream) > 0 {
			n += (<-stream).Value.(*api.Event).Count
		}
		return n
	}

	g.publishEvent(api.Event{Kind: api.ShareEvent, Shares: make([]api.EventShare, maxToldShares+1)})
	for range maxUnread + 5 {
		g.publishEvent(api.Event{Kind: api.HotEvent})
	}
	to, said := g.others.takeEvents(time.Now())
	if len(to) != 1 || len(said.Events) != maxUnread {
		t.Fatalf("%d events for %q, want %d for two", len(said.Events), to, maxUnread)
	}
	other.readAnswer(said)
	if n := lost(); n != 6 {
		t.Errorf("readers are told of %d lost events, want 6", n)
	}
	if _, again := g.others.takeEvents(time.Now()); again.Lost != 0 || len(again.Events) != 0 {
		t.Errorf("then %+v, want nothing", again)
	}

	body, err := json.Marshal(letter{From: "one#1", Events: []api.Event{{Kind: api.HotEvent}}, Lost: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range maxLetters + 1 {
		other.takeLetter(bus.Letter{To: other.candidate, Body: body})
	}
	if n := lost(); n != 3 {
		t.Errorf("readers are told of %d lost events, want 3", n)
	}
}

// Whatever is sent to a polygen, it goes on, and what it answers is bounded.
func FuzzLetter(f *testing.F) {
	for _, l := range []letter{
		{Ask: &question{Tops: map[api.Sort]int{api.ByRate: 1 << 40, "x": -1, api.ByRecent: 3}, Now: true, Users: [][]byte{[]byte("alice"), {0xff}, nil}}},
		{Ask: &question{History: []byte("@up/bob"), Unknown: api.ByActive, UnknownN: -5}},
		{Number: 1, Reply: &reply{Parts: parts.All, History: &api.History{}}},
		{Events: []api.Event{{Kind: api.HotEvent}, {Kind: api.BlockEvent, Name: api.NameOf("bob")}}, Lost: -1},
		{Listens: true},
	} {
		l.From = "other#1"
		body, err := json.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(`{"From":"a","Ask":{"Users":[` + strings.Repeat(`"",`, 2*maxAskedUsers) + `""]}}`))
	f.Add([]byte(`{"From":"a","Reply":{"Tops":{"rate":null},"Users":{"0":null},"Unknown":null},"Number":1}`))
	g := newGenerator(f, "127.0.0.1:1", "fuzzed", nil)
	g.decideAll(true)
	g.others.setNames("", []string{"other#1"})
	if _, _, err := g.Policies(api.Filter{User: "bob"}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		number, answers, _ := g.others.awaitAnswers()
		defer g.others.endWait(number)
		g.takeLetter(bus.Letter{Body: body})
		g.takeLetter(bus.Letter{To: g.candidate, Body: body})
		for len(g.others.answers) > 0 {
			l := <-g.others.answers
			l.Number = number
			g.readAnswer(l)
		}
		for len(answers) > 0 {
			o, unknown := g.lookTop(time.Now(), api.ByRate, 10), api.UnknownUsers{Sort: api.ByActive}
			replies := []*reply{(<-answers).Reply}
			mergeOverview(&o, replies, map[api.Sort]int{api.ByRate: 10})
			mergeUnknown(&unknown, replies, 10)
			if len(o.Tops[api.ByRate]) > 10 || len(unknown.Users) > 10 {
				t.Errorf("%d and %d users, want 10", len(o.Tops[api.ByRate]), len(unknown.Users))
			}
			userIn(replies, 0)
			historyIn(replies)
		}
		for len(g.others.questions) > 0 {
			l := <-g.others.questions
			if l.Listens {
				g.others.addListener(l.From, time.Now())
			}
			if l.Ask == nil {
				continue
			}
			if out := g.answerOther(*l.Ask); len(out.Users) > maxAskedUsers || len(out.Unknown.Users) > api.MaxTop {
				t.Errorf("it answers about %d users, and %d unknown ones", len(out.Users), len(out.Unknown.Users))
			}
		}
		if n := len(g.others.listeners); n > parts.Count {
			t.Errorf("%d listeners, want %d at most", n, parts.Count)
		}
	})
}
