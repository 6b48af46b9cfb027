package limitfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

const (
	maxGlobs     = 100  // of users_from
	maxGlobBytes = 1000 // of each
)

// Files is a limit file with those of its users_from, read but not parsed.
type Files struct {
	// Data is what Parse makes a Set of: the file, or a bundle of it and the others.
	Data []byte

	// Paths are the files, the limit file first, and Folders, sorted, those in which
	// something must change for other files of users_from to belong to it. Both hold
	// what is known also after an error, the limit file at least.
	Paths, Folders []string
}

// ReadFiles reads the limit file at a path, and the files of its users_from if it has any.
// What is wrong with the file itself is for Parse to say. It stops after MaxFileSize and one
// byte, which Parse then refuses. An error is about a file that cannot be read, or of type Errors
// if users_from names one that is not there, or too many.
func ReadFiles(path string) (Files, error) {
	files := Files{Paths: []string{path}}
	data, err := readAtMost(path, MaxFileSize)
	if err != nil {
		return files, err
	}
	files.Data = data
	globs := usersFromOf(data)
	// The file alone, without a bundle around it: its version is that of the file.
	if globs == nil {
		return files, nil
	}
	f := newFile(path)
	sources := []source{{"", data}}
	// All of them together, because all of them are published as one.
	left := MaxFileSize - len(data)
	for _, n := range globs {
		files.Folders = append(files.Folders, foldersOf(path, n.Value)...)
		for _, found := range f.filesOf(path, n, files.Paths) {
			files.Paths = append(files.Paths, found.name)
			// The names after it are not looked at: one error says it all.
			if len(sources) > maxUserFiles {
				f.errorf(n, "users_from names more than %d files", maxUserFiles)
				break
			}
			// One byte more than is left shows that it is too much, and no file is read beyond that.
			if found.data, err = readAtMost(found.name, left); err != nil {
				return files, err
			}
			left -= len(found.data)
			// As seen from the limit file: the bundle, and so the version, is the same on every machine.
			if !filepath.IsAbs(n.Value) {
				found.name, _ = filepath.Rel(filepath.Dir(path), found.name) // it was found from this folder
			}
			sources = append(sources, found)
		}
	}
	slices.Sort(files.Folders)
	files.Folders = slices.Compact(files.Folders)
	if left < 0 {
		f.addError(1, 1, "the file and those of its users_from are larger than %d MiB", MaxFileSize>>20)
	}
	if f.hasErrors() {
		return files, f.errors()
	}
	files.Data = bundle(sources)
	return files, nil
}

// readAtMost reads a file, at most so many bytes and one.
func readAtMost(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read limit file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, int64(max(most, 0))+1))
	if err != nil {
		return nil, fmt.Errorf("read limit file: %w", err)
	}
	return data, nil
}

// usersFromOf returns the patterns of users_from, or nil if there are none or they
// are not valid, which is for Parse to say.
func usersFromOf(data []byte) []*yaml.Node {
	// Most files have none, and need not be parsed to see that.
	if len(data) > MaxFileSize || !bytes.Contains(data, []byte("users_from")) {
		return nil
	}
	f := newFile("")
	n := lookup(f.decode(data), "users_from")
	if n == nil {
		return nil
	}
	globs := []*yaml.Node{}
	// Judged by the same code as in Parse, so that both agree on what is valid.
	for glob := range f.eachGlob(n) {
		globs = append(globs, glob)
	}
	if f.hasErrors() {
		return nil
	}
	return globs
}

// eachGlob yields the patterns of users_from.
func (f *file) eachGlob(n *yaml.Node) func(yield func(*yaml.Node) bool) {
	return func(yield func(*yaml.Node) bool) {
		where := place{field: "users_from"}
		if n.Kind == yaml.ScalarNode {
			// One alone needs no list around it.
			if f.isText(n, where) && f.isGlob(n, where) {
				yield(n)
			}
			return
		}
		for item := range f.eachItem(n, where, "[users.d/*.yaml]", maxGlobs) {
			if f.isGlob(item, where) && !yield(item) {
				return
			}
		}
	}
}

// isGlob checks a pattern of users_from.
func (f *file) isGlob(n *yaml.Node, where place) bool {
	_, err := filepath.Match(n.Value, "")
	switch {
	case errors.Is(err, filepath.ErrBadPattern):
		f.errorf(n, "%s: %s is no pattern of files: is a bracket or a letter behind \\ missing?", where, quote(n.Value))
	case strings.Contains(n.Value, "**"):
		f.errorf(n, "%s: ** is not supported, got %s; write a * for each folder", where, quote(n.Value))
	case len(n.Value) > maxGlobBytes:
		f.errorf(n, "%s: each must have at most %d bytes, got %d", where, maxGlobBytes, len(n.Value))
	default:
		return true
	}
	return false
}

// filesOf returns the names of the files that a pattern means, sorted, but for those
// that are known already. Folders and hidden files (.alice.yaml.swp) are none,
// unless the pattern says so.
func (f *file) filesOf(path string, glob *yaml.Node, known []string) (found []source) {
	names, err := filepath.Glob(inFolder(filepath.Dir(path), glob.Value))
	// A name without a file is a slip of somebody; a folder for further users may be empty.
	exact := !strings.ContainsAny(glob.Value, wildcards)
	// A pattern that matches nothing is for users who are still to come.
	if err != nil || exact && len(names) == 0 {
		f.errorf(glob, "users_from: there is no file %s; a pattern such as users.d/*.yaml may match none", quote(glob.Value))
		return nil
	}
	slices.Sort(names)
	for _, name := range names {
		// What an editor leaves beside a file must not become users.
		hidden := strings.HasPrefix(filepath.Base(name), ".") && !strings.HasPrefix(filepath.Base(glob.Value), ".")
		if hidden || slices.ContainsFunc(known, func(k string) bool { return filepath.Clean(k) == filepath.Clean(name) }) {
			continue
		}
		info, err := os.Stat(name)
		switch {
		// A pattern may match folders as well as files, and means the files.
		case err == nil && info.IsDir() && !exact:
		case err == nil && !info.Mode().IsRegular():
			f.errorf(glob, "users_from: %s is no file", quote(name))
		// A link that leads nowhere is found too, and reading it is the error.
		default:
			found = append(found, source{name: name})
		}
	}
	return found
}

// inFolder is a pattern as seen from a folder, whose own name is no pattern.
func inFolder(folder, glob string) string {
	if filepath.IsAbs(glob) {
		return glob
	}
	// A folder called a[1] would else match another one.
	plain := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(folder)
	return filepath.Join(plain, glob)
}

// foldersOf returns the folders in which a new file or folder could match a pattern.
func foldersOf(path, glob string) (folders []string) {
	dir := filepath.Dir(glob)
	for ; strings.ContainsAny(dir, wildcards); dir = filepath.Dir(dir) {
		// The pattern was checked, so that there is no error. A file that matches does no harm here.
		found, _ := filepath.Glob(inFolder(filepath.Dir(path), dir))
		folders = append(folders, found...)
	}
	// Whether it is there or not: it may come.
	return append(folders, nameBeside(path, dir))
}

// wildcards make a pattern of a name.
const wildcards = `*?[\`
