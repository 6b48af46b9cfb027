package limitfile

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source is a file that a Set is made from.
type source struct {
	name string // as in errors; in a bundle, as seen from the folder of the limit file, which has none
	data []byte
}

// A bundle is several files in one: the limit file, and those of its users_from. A
// process can make the same Set of it without the files. It begins with
// bundleMark, with which no limit file can begin, because it is a text in YAML and not a
// mapping. Then each file has a line with its length in bytes and its name, quoted as in Go,
// followed by its content and a newline:
//
//	sluice-limits-bundle
//	120 ""
//	version: 1
//	…
//	33 "users.d/a.yaml"
//	users: …
const bundleMark = "sluice-limits-bundle\n"

// A source with overrides by hand begins with overridesMark and their length in bytes. They
// follow as EncodeOverrides writes them, and after a newline the file, or the bundle.
const overridesMark = "sluice-limits-overrides "

// JoinSource puts overrides, as EncodeOverrides writes them, before a limit file or a bundle:
// the result is what Parse makes a Set of. With none of them it is the file.
func JoinSource(file, overrides []byte) []byte {
	if len(overrides) == 0 {
		return file
	}
	header := fmt.Sprintf("%s%d\n", overridesMark, len(overrides))
	return slices.Concat([]byte(header), overrides, []byte("\n"), file)
}

// SplitSource takes the source of a Set apart, as JoinSource has put it together, without
// copying. The overrides are nil for none.
func SplitSource(source []byte) (file, overrides []byte, err error) {
	rest, ok := bytes.CutPrefix(source, []byte(overridesMark))
	if !ok {
		return source, nil, nil
	}
	header, rest, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.Atoi(string(header))
	// Written in one way only: the same set must have the same source, and so one version.
	if err != nil || n < 1 || n >= len(rest) || rest[n] != '\n' || strconv.Itoa(n) != string(header) {
		return nil, nil, fmt.Errorf("the overrides are damaged: %s is not their length", quote(string(header)))
	}
	return rest[n+1:], rest[:n:n], nil
}

// openFiles returns the files of a limit file or a bundle, named as in errors.
func openFiles(name string, data []byte) ([]source, error) {
	files, err := unbundle(data)
	for i, s := range files[1:] {
		files[i+1].name = nameBeside(name, s.name)
	}
	files[0].name = name
	return files, err
}

// nameBeside is the name of a file that is named as seen from the folder of another.
func nameBeside(name, other string) string {
	if filepath.IsAbs(other) {
		return other
	}
	return filepath.Join(filepath.Dir(name), other)
}

// maxUserFiles bounds the files of users_from.
const maxUserFiles = 1000

func isBundle(data []byte) bool { return bytes.HasPrefix(data, []byte(bundleMark)) }

// bundle puts files into one.
func bundle(sources []source) []byte {
	var b bytes.Buffer
	// No archive of a library: the same files must be the same bytes, of which the version is made.
	b.WriteString(bundleMark)
	for _, s := range sources {
		fmt.Fprintf(&b, "%d %s\n", len(s.data), strconv.Quote(s.name))
		// As it is: lines and columns in errors are those of the file.
		b.Write(s.data)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// unbundle takes a bundle apart, without copying. What is none is the one file that
// it holds. The result has one file at least, also with an error.
func unbundle(data []byte) ([]source, error) {
	rest, ok := bytes.CutPrefix(data, []byte(bundleMark))
	if !ok {
		return []source{{data: data}}, nil
	}
	// A bundle comes from Redis: every length and name in it is checked before it is used.
	var sources []source
	left := MaxFileSize
	seen := map[string]bool{}
	for i := 0; i == 0 || len(rest) > 0; i++ {
		s, after, err := nextFile(rest)
		left -= len(s.data)
		switch {
		case err != nil:
		// The limit file has no name in it, because each process gives it its own.
		case (s.name == "") != (i == 0):
			err = fmt.Errorf("file %d has the name %s", i, quote(s.name))
		// Two files of one name would be one place in errors.
		case seen[s.name]:
			err = fmt.Errorf("%s is there twice", quote(s.name))
		case i > maxUserFiles:
			err = fmt.Errorf("more than %d files", maxUserFiles)
		case left < 0:
			err = fmt.Errorf("more than %d MiB", MaxFileSize>>20)
		}
		if err != nil {
			return []source{{}}, fmt.Errorf("the bundle of limit files is damaged: %w", err)
		}
		seen[s.name] = true
		sources, rest = append(sources, s), after
	}
	return sources, nil
}

// nextFile takes the first file of what is left of a bundle.
func nextFile(data []byte) (s source, rest []byte, err error) {
	line, rest, ok := bytes.Cut(data, []byte("\n"))
	size, quoted, _ := strings.Cut(string(line), " ")
	// All must read back as it was written: the same set must have the same source, and so one version.
	n, sizeErr := strconv.Atoi(size)
	name, nameErr := strconv.Unquote(quoted)
	switch {
	case !ok || sizeErr != nil || nameErr != nil || n < 0 || strconv.Itoa(n) != size || strconv.Quote(name) != quoted:
		return s, nil, fmt.Errorf("%s is no length and name of a file", quote(string(line)))
	// The newline behind it shows a wrong length, which would shift all that follows.
	case n >= len(rest) || rest[n] != '\n':
		return s, nil, fmt.Errorf("%s has not its length of %d bytes", quote(name), n)
	}
	return source{name, rest[:n:n]}, rest[n+1:], nil
}
