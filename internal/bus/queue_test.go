package bus

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueueDropsWhatDoesNotFitAndSaysSo(t *testing.T) {
	full := message{UsageChannel, strings.Repeat("x", maxQueue-messageCost), 1}
	small := message{PoliciesChannel, "small", 1}
	gapMarker, other, lost := gapOf(1), gapOf(2), lossOf(1)
	type put struct {
		message
		ok bool
	}
	tests := []struct {
		name string
		puts []put
		want []message
	}{
		{"what fits stays in order", []put{{small, true}, {gapMarker, true}, {small, true}}, []message{small, gapMarker, small}},
		{"up to the last byte", []put{{full, true}}, []message{full}},
		{"and not one more", []put{{full, true}, {small, false}}, []message{full, gapMarker}},
		{"dropped ones in a row are told once", []put{{full, true}, {small, false}, {small, false}, {gapMarker, true}}, []message{full, gapMarker}},
		{"those of two shards are told by shard", []put{{full, true}, {small, false}, {message{shard: 2, payload: "x", channel: UsageChannel}, false}, {small, false}}, []message{full, gapMarker, other}},
		{"a lost shard is told however full it is", []put{{full, true}, {lost, true}}, []message{full, lost}},
		{"the last word about a shard counts", []put{{full, true}, {small, false}, {lost, true}, {other, true}, {gapMarker, true}, {lost, true}}, []message{full, lost, other}},
		{"a shard that was lost and is heard again", []put{{lost, true}, {gapMarker, true}, {small, true}}, []message{gapMarker, small}},
		{"a late one of a lost shard does not call it heard", []put{{other, true}, {full, false}, {lost, true}, {full, false}}, []message{other, lost}},
		{"a large one does not block small ones", []put{{small, true}, {full, false}, {small, true}}, []message{small, gapMarker, small}},
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
