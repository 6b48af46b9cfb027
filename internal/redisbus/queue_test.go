package redisbus

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueueDropsWhatDoesNotFitAndSaysSo(t *testing.T) {
	full := message{UsageChannel, strings.Repeat("x", maxQueue-messageCost)}
	small, gap := message{PoliciesChannel, "small"}, message{}
	one, other := message{payload: "one"}, message{payload: "other"}
	type put struct {
		message
		ok bool
	}
	tests := []struct {
		name string
		puts []put
		want []message
	}{
		{"what fits stays in order", []put{{small, true}, {gap, true}, {small, true}}, []message{small, gap, small}},
		{"up to the last byte", []put{{full, true}}, []message{full}},
		{"and not one more", []put{{full, true}, {small, false}}, []message{full, gap}},
		{"dropped ones in a row are told once", []put{{full, true}, {small, false}, {small, false}, {gap, true}}, []message{full, gap}},
		{"a gap is told however full it is", []put{{full, true}, {gap, true}}, []message{full, gap}},
		{"those of two connections are told, each once in a row", []put{{one, true}, {one, true}, {other, true}, {small, true}, {other, true}}, []message{one, other, small, other}},
		{"of a full queue once", []put{{full, true}, {one, true}, {other, true}, {one, true}}, []message{full, one}},
		{"a large one does not block small ones", []put{{small, true}, {full, false}, {small, true}}, []message{small, gap, small}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := newQueue()
			for i, p := range tt.puts {
				if ok := q.enqueue(p.message); ok != p.ok {
					t.Errorf("put number %d (%d bytes) = %v, want %v", i, len(p.payload), ok, p.ok)
				}
			}
			<-q.filled
			if got := q.takeAll(); !cmp.Equal(got, tt.want, cmp.AllowUnexported(message{})) {
				t.Errorf("take() = %d messages, want %d", len(got), len(tt.want))
			}
			if !q.enqueue(full) {
				t.Error("put after take() = false, want an empty queue")
			}
		})
	}
}
