package bus

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueueDropsWhatDoesNotFitAndSaysSo(t *testing.T) {
	full := message{UsageChannel, strings.Repeat("x", maxQueue-messageCost)}
	small := message{PoliciesChannel, "small"}
	type put struct {
		message
		ok bool
	}
	tests := []struct {
		name string
		puts []put
		want []message
	}{
		{"what fits stays in order", []put{{small, true}, {missed, true}, {small, true}}, []message{small, missed, small}},
		{"up to the last byte", []put{{full, true}}, []message{full}},
		{"and not one more", []put{{full, true}, {small, false}}, []message{full, missed}},
		{"dropped ones in a row are told once", []put{{full, true}, {small, false}, {small, false}, {missed, true}}, []message{full, missed}},
		{"a large one does not block small ones", []put{{small, true}, {full, false}, {small, true}}, []message{small, missed, small}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := newQueue()
			for i, p := range tt.puts {
				if ok := q.put(p.message); ok != p.ok {
					t.Errorf("put number %d (%d bytes) = %v, want %v", i, len(p.payload), ok, p.ok)
				}
			}
			<-q.filled
			if got := q.take(); !cmp.Equal(got, tt.want, cmp.AllowUnexported(message{})) {
				t.Errorf("take() = %d messages, want %d", len(got), len(tt.want))
			}
			if !q.put(full) {
				t.Error("put after take() = false, want an empty queue")
			}
		})
	}
}
