package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// report is what one run of go test said.
type report struct {
	failures []failure // of tests, in packages whose other tests ran to their end
	broken   []string  // packages that did not build, or ended before all of their tests had run
}

// failure is a top-level test that failed.
type failure struct {
	packagePath  string
	test         string
	began, ended time.Time
	isRace       bool
}

// event is a line of go test -json; see go doc test2json.
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Output  string
}

// packageRun is what is known of a package while its tests run.
type packageRun struct {
	tests    map[string]*testRun
	failures []failure
	allRan   bool            // its tests ran to their end, well or not
	output   strings.Builder // that is of none of its tests; its last line sums up
}

// testRun is a top-level test with its subtests.
type testRun struct {
	began  time.Time
	output strings.Builder
}

// readReport reads the events of go test -json, and prints to out what go test without -json
// would: a line for each package, and all output of tests that failed.
func readReport(events io.Reader, out io.Writer) (*report, error) {
	r := &report{}
	packages := map[string]*packageRun{}
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return nil, err
		}
		if e.Package == "" { // build-output
			fmt.Fprint(out, e.Output)
			continue
		}
		p := packages[e.Package]
		if p == nil {
			p = &packageRun{tests: map[string]*testRun{}}
			packages[e.Package] = p
		}
		if e.Test != "" {
			p.add(e, out)
			continue
		}
		switch e.Action {
		case "output":
			p.allRan = p.allRan || e.Output == "FAIL\n" // printed when the last test has ended
			p.output.WriteString(e.Output)
		case "pass", "skip":
			lines := slices.Collect(strings.Lines(p.output.String()))
			fmt.Fprint(out, lines[len(lines)-1])
		case "fail":
			if p.allRan && len(p.failures) > 0 && !strings.Contains(p.output.String(), "race detected") {
				r.failures = append(r.failures, p.failures...)
			} else {
				r.broken = append(r.broken, e.Package)
			}
			for _, name := range slices.Sorted(maps.Keys(p.tests)) { // those that were running
				fmt.Fprint(out, p.tests[name].output.String())
			}
			fmt.Fprint(out, p.output.String())
		}
	}
}

// add adds an event of a test or of one of its subtests.
func (p *packageRun) add(e event, out io.Writer) {
	name, _, isSubtest := strings.Cut(e.Test, "/")
	t := p.tests[name]
	if t == nil {
		t = &testRun{began: e.Time}
		p.tests[name] = t
	}
	t.output.WriteString(e.Output)
	if isSubtest {
		return
	}
	switch e.Action {
	case "cont": // a parallel test waited for its turn until now
		t.began = e.Time
	case "pass", "skip":
		delete(p.tests, name)
	case "fail":
		output := t.output.String()
		fmt.Fprint(out, output)
		p.failures = append(p.failures, failure{
			packagePath: e.Package, test: name, began: t.began, ended: e.Time,
			isRace: strings.Contains(output, "WARNING: DATA RACE") || strings.Contains(output, "race detected during execution"),
		})
		delete(p.tests, name)
	}
}
