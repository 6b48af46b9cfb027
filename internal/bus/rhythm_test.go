package bus

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		instances int
		every     time.Duration
		lapse     time.Duration
		fraction  string
	}{
		{0, 250 * time.Millisecond, 1500 * time.Millisecond, ".0625"},
		{1, 250 * time.Millisecond, 1500 * time.Millisecond, ".0625"},
		{250, 250 * time.Millisecond, 1500 * time.Millisecond, ".0625"},
		{251, 500 * time.Millisecond, 3 * time.Second, ".1250"},
		{500, 500 * time.Millisecond, 3 * time.Second, ".1250"},
		{1000, time.Second, 6 * time.Second, ".2500"},
		{1750, 1750 * time.Millisecond, 10500 * time.Millisecond, ".4375"},
		{2000, 2 * time.Second, 12 * time.Second, ".5000"},
		{100_000, 2 * time.Second, 12 * time.Second, ".5000"},
	} {
		if every, lapse, fraction := HeartbeatEvery(tt.instances), Lapse(tt.instances), paceAmong(tt.instances).fraction(); every != tt.every || lapse != tt.lapse || fraction != tt.fraction {
			t.Errorf("%d instances beat every %v, lapse after %v, fraction %s, want %v, %v, %s", tt.instances, every, lapse, fraction, tt.every, tt.lapse, tt.fraction)
		}
		// Together they beat a thousand times a second at most, as long as they beat more seldom the more they are.
		if beats := float64(tt.instances) / tt.every.Seconds(); beats > 1000 && tt.instances <= 2000 {
			t.Errorf("%d instances beat %.0f times a second", tt.instances, beats)
		}
	}
}

func TestPaceOfEpochs(t *testing.T) {
	for epoch, want := range map[string]pace{
		"": 1, "17-ABCDEFGH.1f": 1, "17-ABCDEFGH.1f~4": 4,
		// Nobody else writes these: they must not let anybody fall silent, or beat all the time.
		"17-x~0": 1, "17-x~-1": 1, "17-x~": 1, "17-x~999999999999": 8, "17-x~4~4": 1, "17-x~9": 8,
	} {
		if got := paceOf(epoch); got != want {
			t.Errorf("paceOf(%q) = %d, want %d", epoch, got, want)
		}
	}
}

// One of many instances registers when the rhythm says so, and before when Redis or it has news.
func TestHeartbeatDue(t *testing.T) {
	start, said := time.Now(), newStatus("v", "")
	for _, tt := range []struct {
		name   string
		epoch  string
		after  time.Duration // since the last heartbeat
		change func(*membership)
		want   bool
	}{
		{"a small cluster: each time", "1-x", time.Millisecond, nil, true},
		{"a large one: not yet", "1-x~4", 750 * time.Millisecond, nil, false},
		{"a large one: now", "1-x~4", 999 * time.Millisecond, nil, true},
		{"the largest one: not yet", "1-x~8", 1750 * time.Millisecond, nil, false},
		{"the largest one: now", "1-x~8", 2 * time.Second, nil, true},
		{"the last one was not answered", "1-x~4", 0, func(m *membership) { m.heard("a", said, start, time.Time{}, ErrUnavailable) }, true},
		{"it has left", "1-x~4", 0, func(m *membership) { m.leave("a") }, true},
		{"another status", "1-x~4", 0, func(m *membership) { m.own["a"].status.problem = "ill" }, true},
		{"the others take it for gone", "1-x~4", 0, func(m *membership) {
			m.take(change{from: "1-x~4", epoch: "2-x~4", left: []string{"a"}})
		}, true},
		{"another one has joined", "1-x~4", 0, func(m *membership) {
			m.take(change{from: "1-x~4", epoch: "2-x~5", joined: []string{"c"}})
		}, false},
		{"the others have left", "1-x~4", 250 * time.Millisecond, func(m *membership) {
			m.take(change{from: "1-x~4", epoch: "2-x", left: []string{"b"}})
		}, true},
		{"it has missed a change", "1-x~4", 0, func(m *membership) {
			m.take(change{from: "2-x~5", epoch: "3-x~5", joined: []string{"c"}})
		}, true},
		{"it had missed one, and has asked", "1-x~4", 0, func(m *membership) {
			m.take(change{from: "2-x~5", epoch: "3-x~5", joined: []string{"c"}})
			m.heard("a", said, start, start, nil)
		}, false},
		{"it may have missed some", "1-x~4", 0, func(m *membership) { m.missed() }, true},
		{"and has asked", "1-x~4", 0, func(m *membership) { m.missed(); m.heard("a", said, start, start, nil) }, false},
		{"it has to ask for all, and has not", "1-x~4", 0, func(m *membership) { m.askForAll(); m.heard("a", said, start, start, nil) }, true},
		{"Redis was emptied", "1-x~4", 0, func(m *membership) { m.take(change{epoch: "1-x", joined: []string{"a"}}) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &membership{}
			m.replace(members{tt.epoch, []string{"a", "b"}}, time.Time{})
			m.heard("a", said, start, time.Time{}, nil)
			if tt.change != nil {
				tt.change(m)
			}
			if got := m.due("a", said, start.Add(tt.after)); got != tt.want {
				t.Errorf("due after %v = %v, want %v", tt.after, got, tt.want)
			}
			if !m.due("new", said, start) {
				t.Error("one that has never registered is not due")
			}
		})
	}
}
