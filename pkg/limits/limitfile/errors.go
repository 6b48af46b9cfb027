package limitfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

const (
	// maxErrors bounds the errors that are reported of one file.
	maxErrors = 20
	// maxCollected bounds the errors that are collected before they are sorted
	// by line; the rest are only counted.
	maxCollected = 1000
)

// Error is one thing that is wrong with a limit file.
type Error struct {
	File    string
	Line    int // from 1
	Column  int // in characters, from 1
	Message string
}

// Error returns "file:line:column: message".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are the things that are wrong with a limit file, in its order: at least
// one, at most the first 20 and one more that tells how many follow.
type Errors []*Error

// Error returns one line for each error.
func (e Errors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap lets errors.As find an *Error.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

type problems struct {
	file  string
	found Errors // the first maxCollected
	more  int    // found after those
}

// report adds an error, whose text is made only if it can be reported.
func (p *problems) report(at at, format string, args ...any) {
	if len(p.found) == maxCollected {
		p.more++
		return
	}
	p.found = append(p.found, &Error{p.file, int(at.line), int(at.column), fmt.Sprintf(format, args...)})
}

func (p *problems) refuseUnknown(at at, where place, what, got string, valid []string) {
	p.report(at, "%s: unknown %s %s", where, what, choices{got, valid})
}

func (p *problems) errors() Errors {
	slices.SortStableFunc(p.found, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(p.found) <= maxErrors {
		return p.found
	}
	next := p.found[maxErrors]
	text := "and 1 more error"
	if more := len(p.found) + p.more - maxErrors; more > 1 {
		text = fmt.Sprintf("and %d more errors", more)
	}
	return append(p.found[:maxErrors:maxErrors], &Error{next.File, next.Line, next.Column, text})
}

// place begins an error with its subject: a field of a tier or a user, or something that has
// no name.
type place struct{ of, field string }

// theFile is the place of what is at the top, whose names say enough.
const theFile = "the file"

func (p place) below(field string) place {
	switch {
	case p.field != "":
		field = p.field + "." + field
	case p.of == theFile:
		p.of = ""
	}
	p.field = field
	return p
}

func (p place) String() string {
	if p.of == "" || p.field == "" {
		return p.of + p.field
	}
	return p.of + ": " + p.field
}
