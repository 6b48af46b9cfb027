package limitfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

const (
	maxGlobs     = 100  // of users_from
	maxGlobBytes = 1000 // of each
	maxUserFiles = 1000
	wildcards    = `*?[\`
)

// Files is a limit file with those of its users_from, read but not parsed.
type Files struct {
	// Data is what Parse makes a Set of: the file, or a bundle of it and the others.
	Data []byte
	// Paths are the files, the limit file first, and Globs the patterns of users_from. Both hold
	// what is known also after an error, the limit file at least.
	Paths, Globs []string
}

// ReadFiles reads the limit file at a path, and the files of its users_from if it has any.
// It stops after MaxFileSize and one byte, which Parse then refuses. An error is about a file
// that cannot be read, or of type Errors if users_from names one that does not exist, or too
// many.
func ReadFiles(path string) (Files, error) {
	files := Files{Paths: []string{path}}
	data, err := readAtMost(path, MaxFileSize)
	if err != nil {
		return files, err
	}
	files.Data = data
	globs := usersFromOf(data)
	if globs == nil {
		return files, nil
	}
	f := newFile(path, newModel())
	sources := []source{{"", data}}
	left := MaxFileSize - len(data)
	for _, n := range globs {
		files.Globs = append(files.Globs, n.Value)
		names, err := match(path, n.Value)
		if err != nil {
			f.errorf(n, "users_from: %v", err)
		}
		for _, name := range names {
			if slices.ContainsFunc(files.Paths, func(known string) bool { return filepath.Clean(known) == filepath.Clean(name) }) {
				continue
			}
			files.Paths = append(files.Paths, name)
			if len(sources) > maxUserFiles {
				f.errorf(n, "users_from names more than %d files", maxUserFiles)
				break
			}
			// One byte more than is left shows that it is too much, and no file is read beyond that.
			data, err := readAtMost(name, left)
			if err != nil {
				return files, err
			}
			left -= len(data)
			// As seen from the limit file: the bundle, and so the version, is the same on every machine.
			if !filepath.IsAbs(n.Value) {
				name, _ = filepath.Rel(filepath.Dir(path), name) // it was found from this folder
			}
			sources = append(sources, source{name, data})
		}
	}
	if left < 0 {
		f.addError(1, 1, "the file and those of its users_from are larger than %d MiB", MaxFileSize>>20)
	}
	if len(f.found) > 0 {
		return files, f.errors()
	}
	files.Data = bundle(sources)
	return files, nil
}

// readAtMost reads a file, and stops one byte after most.
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
// are not valid, which is for Parse to report.
func usersFromOf(data []byte) []*yaml.Node {
	if len(data) > MaxFileSize || !bytes.Contains(data, []byte("users_from")) {
		return nil
	}
	f := newFile("", newModel())
	n := lookup(f.decode(data), "users_from")
	if n == nil {
		return nil
	}
	globs := f.readGlobs(n)
	if len(f.found) > 0 {
		return nil
	}
	return globs
}

// readGlobs reads the patterns of users_from: one, or a list.
func (f *file) readGlobs(n *yaml.Node) (globs []*yaml.Node) {
	where := place{field: "users_from"}
	if n.Kind == yaml.ScalarNode {
		if f.isText(n, where) && f.isGlob(n, where) {
			return []*yaml.Node{n}
		}
		return nil
	}
	for item := range f.eachItem(n, where, "[users.d/*.yaml]", maxGlobs) {
		if f.isGlob(item, where) {
			globs = append(globs, item)
		}
	}
	return globs
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

// match returns the files that a pattern of users_from means, sorted, as seen from the folder of
// the limit file. Folders and hidden files (.alice.yaml.swp) are none, unless the pattern says so.
// A pattern with wildcards may match no file.
func match(path, glob string) (names []string, err error) {
	pattern := glob
	if !filepath.IsAbs(glob) {
		// Wildcards in the folder's own name are part of the name.
		escaped := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(filepath.Dir(path))
		pattern = filepath.Join(escaped, glob)
	}
	exact := !strings.ContainsAny(glob, wildcards)
	found, err := filepath.Glob(pattern)
	if err != nil || exact && len(found) == 0 {
		return nil, fmt.Errorf("there is no file %s; a pattern such as users.d/*.yaml may match none", quote(glob))
	}
	slices.Sort(found)
	for _, name := range found {
		if strings.HasPrefix(filepath.Base(name), ".") && !strings.HasPrefix(filepath.Base(glob), ".") {
			continue
		}
		info, statErr := os.Stat(name)
		switch {
		case statErr == nil && info.IsDir() && !exact:
		case statErr == nil && !info.Mode().IsRegular():
			err = fmt.Errorf("%s is no file", quote(name))
		// A link to a missing file is found too, and reading it is the error.
		default:
			names = append(names, name)
		}
	}
	return names, err
}

// source is a file that a Set is made from.
type source struct {
	name string // as in errors; in a bundle, as seen from the folder of the limit file, which has none
	data []byte
}

// bundleMark begins a bundle: the limit file and those of its users_from in one, so that a
// process without the files can make the same Set. No limit file begins so, because it is a
// mapping. Then each file has a line with its length in bytes and its name, quoted as in Go,
// followed by its content and a newline.
const bundleMark = "sluice-limits-bundle\n"

func isBundle(data []byte) bool { return bytes.HasPrefix(data, []byte(bundleMark)) }

func bundle(sources []source) []byte {
	var b bytes.Buffer
	b.WriteString(bundleMark)
	for _, s := range sources {
		fmt.Fprintf(&b, "%d %q\n%s\n", len(s.data), s.name, s.data)
	}
	return b.Bytes()
}

// unbundle returns the files of a bundle, or the one file that data is, named as in errors.
func unbundle(path string, data []byte) (sources []source, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(bundleMark))
	if !ok {
		return []source{{path, data}}, nil
	}
	for len(rest) > 0 || len(sources) == 0 {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		length, quoted, _ := strings.Cut(string(line), " ")
		n, lengthErr := strconv.Atoi(length)
		name, nameErr := strconv.Unquote(quoted)
		if lengthErr != nil || nameErr != nil || n < 0 || n >= len(after) || after[n] != '\n' {
			return nil, fmt.Errorf("the bundle of limit files is damaged: %s is no length and name of a file", quote(string(line)))
		}
		switch {
		case len(sources) == 0:
			name = path
		case !filepath.IsAbs(name):
			name = filepath.Join(filepath.Dir(path), name)
		}
		sources, rest = append(sources, source{name, after[:n:n]}), after[n+1:]
	}
	return sources, nil
}
