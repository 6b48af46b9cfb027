package api

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestFilter(t *testing.T) {
	hashed := limits.Key("ümit")
	for _, tt := range []struct {
		name   string
		filter Filter
		event  Event
		want   bool
	}{
		{"everything", Filter{}, Event{Kind: ThrottleEvent}, true},
		{"a kind", Filter{Kinds: []EventKind{BlockEvent, ThrottleEvent}}, Event{Kind: ThrottleEvent}, true},
		{"another kind", Filter{Kinds: []EventKind{BlockEvent, ThrottleEvent}}, Event{Kind: UnblockEvent}, false},
		{"a user", Filter{User: "bob"}, Event{Kind: ThrottleEvent, Name: NameOf("bob")}, true},
		{"known by the hash", Filter{User: hashed}, Event{Kind: ThrottleEvent, Name: NameOf(hashed)}, true},
		{"another user", Filter{User: "bob"}, Event{Kind: ThrottleEvent, Name: NameOf("bobby")}, false},
		{"nobody", Filter{User: "bob"}, Event{Kind: LimitsEvent}, false},
		{"of this user, but of another kind", Filter{User: "bob", Kinds: []EventKind{BlockEvent}}, Event{Kind: ThrottleEvent, Name: NameOf("bob")}, false},
	} {
		if got := tt.filter.Passes(&tt.event); got != tt.want {
			t.Errorf("%s: Passes() = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A message is one line, whatever names are in it, and has what there is alone.
func TestMessage(t *testing.T) {
	m := &Message{Event: "block", Value: &Event{Time: time.Unix(1_800_000_000, 0).UTC(), Kind: BlockEvent, Name: NameOf("a\nb\r\xff")}}
	want := `{"time":"2027-01-15T08:00:00Z","kind":"block","user":"a\nb\r` + "\ufffd" + `","href":"/api/v1/users/a%0Ab%0D%FF?by=key"}`
	first, again := m.JSON(), m.JSON()
	got := string(first)
	if strings.ReplaceAll(got, `\ufffd`, "\ufffd") != want || &first[0] != &again[0] {
		t.Errorf("JSON() = %s, want %s, once", got, want)
	}
	if nobody := string((&Message{Value: &Event{Time: time.Unix(1_800_000_000, 0).UTC(), Kind: LostEvent, Count: 3}}).JSON()); nobody != `{"time":"2027-01-15T08:00:00Z","kind":"lost","count":3}` {
		t.Errorf("JSON() of lost = %s", nobody)
	}
}

func TestQuestionKey(t *testing.T) {
	hashed := limits.Key("ümit")
	for _, tt := range []struct {
		q    Question
		want string
	}{
		{Question{User: "bob"}, "bob"},
		{Question{User: "ümit"}, hashed},
		{Question{User: hashed, IsKey: true}, hashed},
		{Question{User: hashed}, limits.Key(hashed)},
	} {
		if got := tt.q.Key(); got != tt.want {
			t.Errorf("%+v.Key() = %s, want %s", tt.q, got, tt.want)
		}
	}
}
