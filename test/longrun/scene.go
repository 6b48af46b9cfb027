package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Scene stands in for a test, so that packages that start processes for tests do so for this command.
type Scene struct {
	testing.TB // nil: methods that Scene has not are never called

	dir string
	ctx context.Context

	mu       sync.Mutex
	cleanups []func()
	dirs     int
	errors   []string
}

// failure is the panic of Fatal, which attempt turns into an error.
type failure string

// attempt returns why f failed in a Scene; nil if it did not.
func attempt(f func()) (err error) {
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

// Close runs all cleanups, the last first.
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
