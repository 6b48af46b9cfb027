package peers

import (
	"testing"
	"time"
)

func TestSample(t *testing.T) {
	const ms = time.Millisecond
	a, b := &entry{table: 1}, &entry{table: 1}
	var (
		start  = time.Unix(1000, 0)
		follow = func(e *entry, at time.Duration) func(*sample) { return func(s *sample) { s.follow(e, start.Add(at)) } }
		sent   = func(e *entry, session uint64, update uint32) func(*sample) {
			return func(s *sample) { s.sent(e, session, update) }
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
		steps []func(*sample)
		ack   ack
		want  time.Duration // 0: it is not measured
	}{
		{"nothing is followed", nil, ack{0, 0, 0, ms}, 0},
		{"its own update", []func(*sample){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 7, 3 * ms}, 3 * ms},
		{"a later one", []func(*sample){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 9, 3 * ms}, 3 * ms},
		{"a later one, after the ids have wrapped", []func(*sample){follow(a, 0), sent(a, 1, 1<<32-1)}, ack{1, 1, 0, 3 * ms}, 3 * ms},
		{"an earlier one", []func(*sample){follow(a, 0), sent(a, 1, 7)}, ack{1, 1, 6, 3 * ms}, 0},
		{"another table's", []func(*sample){follow(a, 0), sent(a, 1, 7)}, ack{1, 2, 7, 3 * ms}, 0},
		{"another session's", []func(*sample){follow(a, 0), sent(a, 1, 7)}, ack{2, 1, 7, 3 * ms}, 0},
		{"it was not sent yet", []func(*sample){follow(a, 0), sent(b, 1, 7)}, ack{1, 1, 7, 3 * ms}, 0},
		{"sent once more, the first counts", []func(*sample){follow(a, 0), sent(a, 1, 7), sent(a, 1, 9)}, ack{1, 1, 7, 3 * ms}, 3 * ms},
		{"another one is followed already", []func(*sample){follow(a, 0), follow(b, sampleFor-1), sent(b, 1, 7)}, ack{1, 1, 7, sampleFor}, 0},
		{"another one was followed for too long", []func(*sample){follow(a, 0), follow(b, sampleFor), sent(b, 1, 7)}, ack{1, 1, 7, sampleFor + ms}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s sample
			for _, step := range tt.steps {
				step(&s)
			}
			took, ok := s.acked(tt.ack.session, tt.ack.table, tt.ack.update, start.Add(tt.ack.at))
			if took != tt.want || ok != (tt.want > 0) {
				t.Errorf("acked(%+v) = %v, %v, want %v", tt.ack, took, ok, tt.want)
			}
			if ok && s != (sample{}) {
				t.Errorf("after that %+v is followed, want none", s)
			}
		})
	}
}
