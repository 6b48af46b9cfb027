// Steady runs go test, and runs again what failed while the machine did not keep up.
//
// The tests start whole clusters, whose parts give up on each other after as little as
// 100 milliseconds. A shared machine may take its processors away for longer than that.
// What is seen then is the behaviour for a part that has died, and a test that wants
// something else of it fails although nothing is wrong. So the machine is watched, and a
// failure counts only if the machine kept up for as long as the test ran. Else the test
// runs again, alone, when the machine is calm. A data race, a panic, a build that fails and
// a failure on a machine that keeps up are never repeated.
//
//	steady [flags of go test] -- packages
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"
)

const (
	maxRepeats      = 2 // of one test
	maxRepeatTests  = 8 // of one run: more than that is not the machine's fault
	calmDuration    = 2 * time.Second
	maxWaitForCalm  = time.Minute
	failureExitCode = 1
)

func main() {
	separator := slices.Index(os.Args, "--")
	if separator < 0 || separator == len(os.Args)-1 {
		fmt.Fprintln(os.Stderr, "usage: steady [flags of go test] -- packages")
		os.Exit(2)
	}
	// Ctrl-C reaches go test as well, which ends its tests: wait for that.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)

	watch := startWatch()
	run := func(flags, packages []string) (*report, error) {
		return goTest(os.Stdout, flags, packages)
	}
	err := runSteadily(os.Stdout, watch, run, os.Args[1:separator], os.Args[separator+1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "steady:", err)
		os.Exit(failureExitCode)
	}
}

// machine tells whether the machine kept up. Its zero times do not occur.
type machine interface {
	// worstStall is the longest stall that overlaps the time between the two.
	worstStall(from, to time.Time) stall
	waitForCalm()
}

// runSteadily runs the packages' tests, and those again whose failure proves nothing. The
// error says what failed.
func runSteadily(out io.Writer, m machine, run func(flags, packages []string) (*report, error), flags, packages []string) error {
	first, err := run(flags, packages)
	if err != nil {
		return err
	}
	if len(first.broken) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(first.broken, ", "))
	}
	if len(first.failures) > maxRepeatTests {
		return fmt.Errorf("%d tests failed", len(first.failures))
	}
	var failed []string
	for _, f := range first.failures {
		if err := repeat(out, m, run, flags, f); err != nil {
			failed = append(failed, err.Error())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// repeat runs a test that failed again for as long as its failures prove nothing.
func repeat(out io.Writer, m machine, run func(flags, packages []string) (*report, error), flags []string, f failure) error {
	for range maxRepeats {
		worst := m.worstStall(f.began, f.ended)
		if worst.length == 0 || f.isRace {
			return errors.New(f.test)
		}
		fmt.Fprintf(out, "steady: %s failed, but %v; once more, alone\n", f.test, worst)
		m.waitForCalm()
		// The last one of two equal flags is in force.
		again, err := run(append(slices.Clone(flags), "-count=1", "-parallel=1", "-run=^"+f.test+"$"), []string{f.packagePath})
		if err != nil {
			return err
		}
		if len(again.broken) > 0 {
			return errors.New(strings.Join(again.broken, ", "))
		}
		if len(again.failures) == 0 {
			return nil
		}
		f = again.failures[0]
	}
	return errors.New(f.test)
}

// goTest runs the tests and prints what go test would print.
func goTest(out io.Writer, flags, packages []string) (*report, error) {
	command := exec.Command("go", slices.Concat([]string{"test", "-json"}, flags, packages)...)
	var complaints bytes.Buffer
	command.Stderr = &complaints
	events, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	r, err := readReport(events, out)
	if err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return nil, fmt.Errorf("output of go test: %w", err)
	}
	err = command.Wait()
	if _, err := out.Write(complaints.Bytes()); err != nil {
		return nil, err
	}
	if err != nil && len(r.failures)+len(r.broken) == 0 {
		return nil, fmt.Errorf("go test: %w", err) // it could not even begin
	}
	return r, nil
}
