package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Sample is what was measured of a part at a time: a line of the file of samples.
type Sample struct {
	At     time.Time
	Part   string             // "agent-0", "redis", "clients"
	Values map[string]float64 // by the names of quantities
}

// quantity is something that is measured, and must not grow.
type quantity struct {
	name, unit string
	scale      float64 // by which values are divided
	atOnce     bool    // it is soon what it is to be; memory and latency take their time, or depend on what else the machine does
}

// neverExpire is a quantity that must be nothing in the end.
const neverExpire = "keys of Redis that never expire"

// quantities are those that are judged, in the order of the plots.
var quantities = []quantity{
	{"memory", "MiB", 1 << 20, false},
	// Of Go: at which it collects, which is in proportion to what was alive after the last time. What is in use meanwhile says less.
	{"heap", "MiB", 1 << 20, false},
	{"processes", "", 1, true},
	{"file descriptors", "", 1, true},
	{"goroutines", "", 1, true},
	{"keys", "", 1, true},
	{"median latency", "ms", 1e-3, false},
	{"latency of 99 %", "ms", 1e-3, false},
}

// maxLine bounds a line of the file.
const maxLine = 64 << 10

// ReadSamples reads a file of samples. A last line that was cut is an error.
func ReadSamples(r io.Reader) (all []Sample, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var s Sample
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, s)
	}
	return all, lines.Err()
}
