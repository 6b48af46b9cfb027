// Package chaos runs a cluster of real processes under load while faults happen, and writes down what the origin and
// the clients saw. It judges nothing but that no process ends by itself: see test/chaos/judge.
package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Scene stands in for a test where there is none, so that what starts processes for tests does so for a command. Its
// folder keeps what is left for people: the processes' output and the history.
type Scene struct {
	testing.TB // what tests have and this has not is never called

	dir string
	ctx context.Context

	mu       sync.Mutex
	cleanups []func()
	dirs     int
	errors   []string
}

// failure is what ends what has failed, up to Attempt.
type failure string

// NewScene makes a scene whose processes are ended by Close.
func NewScene(ctx context.Context, dir string) *Scene { return &Scene{dir: dir, ctx: ctx} }

// Attempt returns why f failed in a Scene, nil if it did not.
func Attempt(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s", string(r))
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// Close undoes everything, the last first.
func (s *Scene) Close() {
	for {
		s.mu.Lock()
		n := len(s.cleanups)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		last := s.cleanups[n-1]
		s.cleanups = s.cleanups[:n-1]
		s.mu.Unlock()
		last()
	}
}

// Errors are what has failed without ending anything.
func (s *Scene) Errors() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errors
}

// Helper is testing.TB's.
func (s *Scene) Helper() {}

// Failed is testing.TB's.
func (s *Scene) Failed() bool { return false }

// Context is testing.TB's.
func (s *Scene) Context() context.Context { return s.ctx }

// Cleanup is testing.TB's.
func (s *Scene) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir is testing.TB's.
func (s *Scene) TempDir() string {
	s.mu.Lock()
	s.dirs++
	dir := filepath.Join(s.dir, fmt.Sprint("dir", s.dirs))
	s.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.Fatal(err)
	}
	return dir
}

// Logf is testing.TB's.
func (s *Scene) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Errorf is testing.TB's.
func (s *Scene) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, fmt.Sprintf(format, args...))
}

// Fatal is testing.TB's.
func (s *Scene) Fatal(args ...any) { panic(failure(strings.TrimSpace(fmt.Sprintln(args...)))) }

// Fatalf is testing.TB's.
func (s *Scene) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
