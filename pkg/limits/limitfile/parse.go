// Package limitfile reads limit files, and writes their JSON Schema.
//
// Parse turns a file into a limits.Set, or says everything that is wrong with it, each error
// with its line, its column and what would be valid. WithOverrides puts in force what an
// operator set over it, and OriginOf tells which lines
// say what a user may do. Only ReadFiles and Load open files.
//
// To read it, begin here: files.go finds the files and bundle.go makes one source of them; yaml.go
// makes nodes of a source and root.go takes the top of it apart. entry.go reads tiers, users and
// overrides by the tables of limitfields.go, which table.go goes through, over the drafts of
// draft.go; users.go reads who has them. lines.go notes where all of it stands.
package limitfile

import (
	"bytes"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxFileSize is the largest limit file that is read, in bytes, with all files of
// its users_from: room for more than a million users.
const MaxFileSize = 64 << 20

// Load reads and parses a limit file and those of its users_from. The error is that
// of ReadFiles or of Parse.
func Load(path string) (*limits.Set, error) {
	files, err := ReadFiles(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, files.Data)
}

// Parse makes a Set of a limit file, of the bundle that ReadFiles makes of one with
// users_from, or of what JoinSource makes of either. The name stands for
// the file in errors, and its folder for that of the other files. The error is of
// type Errors, and tells everything that is wrong. An empty file is an error. Parse
// keeps a copy of data.
//
// The Set is that of all times: nothing in it has expired (see Set.At).
func Parse(name string, data []byte) (*limits.Set, error) {
	f := parseSources(name, data)
	// Whoever parses did not ask for overrides: they come from a polygen, and all of them were in force there.
	for _, r := range f.refused {
		f.addError(1, 1, "override of user %s: %v", quote(r.User), r.Why)
	}
	if f.hasErrors() {
		return nil, f.errors()
	}
	return f.set, nil
}

// parseSources reads a file and those of its users_from.
func parseSources(name string, data []byte) *file {
	f := newFile(name)
	files, overrides, err := SplitSource(data)
	if err == nil {
		f.bundled = isBundle(files)
		f.sources, err = openFiles(name, files)
	}
	if err != nil {
		// No place in it means anything to people: they have written no bundle.
		f.addError(1, 1, "%v", err)
		return f
	}
	// Before the users, of whom those with overrides are kept as they are written.
	if overrides != nil {
		f.readOverrides(overrides)
	}
	f.readSources()
	f.makeSet(data)
	return f
}

// file is a limit file, and those of its users_from, while they are read.
type file struct {
	problems
	content limits.Content
	set     *limits.Set // of the content, when all sources are read without an error
	sources []source    // the limit file, then those of users_from
	bundled bool        // whether the files of users_from are there

	drafts
	tiers      map[string]layer    // those with errors, too
	tierNames  []string            // sorted
	classNames []string            // what requests may name: verbs and operation classes
	units      map[string]costUnit // by name, those with errors, too; nil if the file declares none
	odd        int                 // patterns of users that are neither prefix* nor *suffix

	recorder
	overrideState

	// One of each for all users, because the reader of a field keeps it from the stack.
	entry entry
	rate  rateDraft
	cost  costDraft
}

func newFile(name string) *file {
	return &file{
		problems: problems{file: name},
		content: limits.Content{
			Name: name, Tiers: map[string]*limits.Entry{}, Users: map[string]limits.Named{}, Names: map[string]string{},
		},
		drafts:     newDrafts(),
		tiers:      map[string]layer{},
		classNames: classes,
		recorder:   newRecorder(),
	}
}

// readSources reads all sources.
func (f *file) readSources() {
	lines := 0 // of the sources before
	for i, s := range f.sources {
		f.openSource(i, s.name)
		// Also for a file that turns out to be bad: the lines of the others count from it.
		f.beginFile(s.name, lines)
		// One more than it has newlines, for the last line.
		lines += bytes.Count(s.data, []byte("\n")) + 1
		root := f.decode(s.data)
		switch {
		case root == nil:
		case i == 0:
			f.readRoot(root)
		default:
			f.readUsersFile(root)
		}
	}
}

// makeSet makes the set when all sources are read.
func (f *file) makeSet(data []byte) {
	// Of all files together, so that it can be known only now.
	if most := len(f.content.Patterns) + f.countExemptPatterns(); most > maxPatterns {
		f.openSource(0, f.sources[0].name)
		f.addError(1, 1, "the file has %d patterns of users; at most %d are possible", most, maxPatterns)
	}
	if f.hasErrors() {
		return
	}
	// A clone: the caller may write into data.
	f.content.Source, f.content.Origins = bytes.Clone(data), f.origins
	f.set = limits.NewSet(f.content)
	if len(f.overrides) > 0 {
		f.applyOverrides()
	}
}
