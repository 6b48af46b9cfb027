package peers

import (
	"testing"
	"time"
)

func TestSamples(t *testing.T) {
	const ms = time.Millisecond
	a, b := &entry{table: 1}, &entry{table: 1}
	var (
		start  = time.Unix(1000, 0)
		follow = func(e *entry, at time.Duration) func(*samples) {
			return func(s *samples) { s.follow(e, start.Add(at), nil) }
		}
		sent = func(e *entry, session uint64, update uint32) func(*samples) {
			return func(s *samples) { s.markSent(e, session, update) }
		}
	)
	type ack struct {
		session uint64
		table   int
		update  uint32
		at      time.Duration
	}
	for _, tt := range []struct {
		name  string
		steps []func(*samples)
		ack   ack
		want  time.Duration // 0: it is not measured
	}{
		{"nothing is followed", nil, ack{0, 0, 0, ms}, 0},
		{"its own update", []func(*samples){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 7, 3 * ms}, 3 * ms},
		{"a later one", []func(*samples){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 9, 3 * ms}, 3 * ms},
		{"a later one, after the ids have wrapped", []func(*samples){follow(a, 0), sent(a, 1, 1<<32-1)}, ack{1, 1, 0, 3 * ms}, 3 * ms},
		{"an earlier one", []func(*samples){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 6, 3 * ms}, 0},
		{"another table's", []func(*samples){follow(a, 0), sent(a, 1, 7)}, ack{1, 2, 7, 3 * ms}, 0},
		{"another session's", []func(*samples){follow(a, 0), sent(a, 1, 7)}, ack{2, 1, 7, 3 * ms}, 0},
		{"it was not sent yet", []func(*samples){follow(a, 0), sent(b, 1, 7)}, ack{1, 1, 7, 3 * ms}, 0},
		{"sent once more, the first counts", []func(*samples){follow(a, 0), sent(a, 1, 7), sent(a, 1, 9)}, ack{1, 1, 7, 3 * ms}, 3 * ms},
		{"another one is followed already", []func(*samples){follow(a, 0), follow(b, sampleFor-1), sent(b, 1, 7)}, ack{1, 1, 7, sampleFor}, 0},
		{"another one was followed for too long", []func(*samples){follow(a, 0), follow(b, sampleFor), sent(b, 1, 7)}, ack{1, 1, 7, sampleFor + ms}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s samples
			for _, step := range tt.steps {
				step(&s)
			}
			var took time.Duration
			done := s.takeAcked(tt.ack.session, tt.ack.table, tt.ack.update)
			for _, f := range done {
				took = start.Add(tt.ack.at).Sub(f.at)
			}
			if took != tt.want || len(done) > 1 {
				t.Errorf("acked(%+v) = %v of %d, want %v", tt.ack, took, len(done), tt.want)
			}
			if len(done) > 0 && len(s) > 0 {
				t.Errorf("after that %+v is followed, want none", s)
			}
		})
	}
}

// TestSamplesOfThoseWhoWantToKnow: entries are followed beside the one that is only
// measured, each until its own acknowledgement, and no more than there may be.
func TestSamplesOfThoseWhoWantToKnow(t *testing.T) {
	start := time.Unix(1000, 0)
	var s samples
	var told []int
	for i := range maxSamples + 10 {
		e := &entry{table: 1}
		s.follow(e, start, func() { told = append(told, i) })
		s.follow(&entry{table: 1}, start, nil) // finds another one followed
		s.markSent(e, 1, uint32(i))
	}
	if len(s) != maxSamples {
		t.Fatalf("%d entries are followed, want %d", len(s), maxSamples)
	}
	for _, f := range s.takeAcked(1, 1, 9) {
		f.then()
	}
	for i, got := range told {
		if i != got {
			t.Errorf("told of %v, want each once, in order", told)
			break
		}
	}
	if len(told) != 10 || len(s) != maxSamples-10 {
		t.Errorf("after update 9 %d were told and %d are followed, want 10 and %d", len(told), len(s), maxSamples-10)
	}
	s.follow(&entry{}, start.Add(sampleFor), nil)
	if len(s) != 1 {
		t.Errorf("%d are followed after %v, want the new one", len(s), sampleFor)
	}
}
