package history

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Read returns all records, by type and in the order of the lines.
func TestWrittenAndRead(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 5, time.UTC)
	want := &History{
		Run:       Run{Seed: 7, Store: "single", Instances: 3, Begin: at},
		Requests:  []Request{{User: "hot", Kind: "http2", Method: "GET", Path: "/", Instance: 2, ID: "1", Sent: at, Done: at.Add(time.Second), Status: 429, Reason: "rate", Estimate: 4}, {ID: "2", Error: "reset"}},
		Arrivals:  []Arrival{{ID: "1", User: "hot", Method: "GET", At: at, Ended: at, Up: 3, Down: 5, Cost: 2}},
		Transfers: []Transfer{{User: "wide", ID: "9", At: at, Down: 1 << 40}},
		Faults:    []Fault{{Name: "kill", Target: "spoa-1", Begin: at, End: at}},
		Limits:    []Limit{{User: "hot", Class: "*", Requests: map[string]int{"second": 50}, Costs: map[string]int{"minute": 9}, Debt: true, From: at}},
		Quiets:    []Quiet{{Begin: at, End: at}},
		Crowds:    []Crowd{{User: "hot", Method: "GET", Sent: 5, At: 6, Requests: 7}},
		Samples:   []Sample{{At: at, Part: "redis", Values: map[string]float64{"keys": 8}}},
		Problems:  []Problem{{At: at, What: "redis ended"}},
		Leaks:     []Leak{{At: at, Place: "redis", Holder: "key", What: "slots", Count: 1}},
	}
	var file bytes.Buffer
	w := NewWriter(&file)
	w.Write(want.Run)
	for _, r := range want.Requests {
		w.Write(r)
	}
	w.Write(want.Leaks[0])
	w.Write(want.Arrivals[0])
	w.Write(want.Transfers[0])
	w.Write(want.Faults[0])
	w.Write(want.Limits[0])
	w.Write(want.Quiets[0])
	w.Write(want.Crowds[0])
	w.Write(want.Samples[0])
	w.Write(want.Problems[0])
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file.WriteString(`{"later version":{}}` + "\n")
	got, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A cut line is told with its number.
func TestCutLine(t *testing.T) {
	_, err := Read(strings.NewReader("{\"run\":{}}\n{\"requ"))
	if err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("Read = %v, want an error of line 2", err)
	}
}
