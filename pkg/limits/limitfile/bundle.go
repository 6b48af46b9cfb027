package limitfile

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// source is a file that a Set is made from.
type source struct {
	name string // as in errors; in a bundle, as seen from the folder of the limit file, which has none
	data []byte
}

// A bundle is several files in one: the limit file, and those of its users_from. A
// process that gets it can make the same Set without having the files. It begins with
// bundleMark and the number of files. No limit file can begin like that, because it is a
// text in YAML and not a mapping. Then each file has a line with its length in bytes and
// its name, quoted as in Go, followed by its content and a newline:
//
//	sluice-limits-bundle 1 2
//	120 ""
//	version: 1
//	…
//	33 "users.d/a.yaml"
//	users: …
//
// A bundle of version 2 ends with one more, overridesName, which has the overrides by
// hand (see EncodeOverrides).
const bundleMark = "sluice-limits-bundle "

// overridesName is no name of a file anywhere.
const overridesName = "\x00overrides"

// splitOverrides takes the overrides off the files of a bundle; nil for none.
func splitOverrides(sources []source) (files []source, overrides []byte) {
	last := len(sources) - 1
	// They stand at the end, so that the files alone are the beginning.
	if sources[last].name != overridesName {
		return sources, nil
	}
	// At its full length, so that an append does not write into what follows.
	return sources[:last:last], sources[last].data
}

// openSources returns the files of a set's source, named as in errors, and the overrides.
func openSources(name string, data []byte) (files []source, overrides []byte, err error) {
	sources, err := unbundle(data)
	files, overrides = splitOverrides(sources)
	for i, s := range files[1:] {
		files[i+1].name = nameBeside(name, s.name)
	}
	files[0].name = name
	return files, overrides, err
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
	// The lowest that will do, so that an older agent reads all that it can understand.
	version := 1
	if _, overrides := splitOverrides(sources); overrides != nil {
		version = 2
	}
	// No archive of a library: the same files must be the same bytes, of which the version is made.
	fmt.Fprintf(&b, "%s%d %d\n", bundleMark, version, len(sources))
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
	// What is not one is a limit file, as every set's source was before there were bundles.
	if !isBundle(data) {
		return []source{{data: data}}, nil
	}
	if len(data) > MaxFileSize+2*MaxOverridesSize || len(data) > MaxFileSize && !bytes.HasPrefix(data, []byte(bundleMark+"2 ")) {
		return []source{{}}, fmt.Errorf("the file and those of its users_from are larger than %d MiB", MaxFileSize>>20)
	}
	header, rest, _ := bytes.Cut(data, []byte("\n"))
	version, count, _ := strings.Cut(strings.TrimPrefix(string(header), bundleMark), " ")
	if version != "1" && version != "2" {
		return []source{{}}, fmt.Errorf("the bundle of limit files has version %s; only 1 and 2 are known", quote(version))
	}
	n, err := strconv.Atoi(count)
	// The number is bounded before anything is made room for, and written in one way only.
	if err != nil || n < 1 || version == "2" && n < 2 || n > maxUserFiles+2 || strconv.Itoa(n) != count {
		return []source{{}}, fmt.Errorf("the bundle of limit files is damaged: %s is no number of files", quote(count))
	}
	// A bundle comes from Redis: every length and name in it is checked before it is used.
	var sources []source
	seen := map[string]bool{}
	for i := range n {
		s, after, err := nextFile(rest)
		switch {
		case err != nil:
		// The limit file has no name in it, because each process gives it its own.
		case (s.name == "") != (i == 0):
			err = fmt.Errorf("file %d has the name %s", i, quote(s.name))
		case (s.name == overridesName) != (version == "2" && i > 0 && i == n-1):
			err = fmt.Errorf("file %d has the name %s", i, quote(s.name))
		case seen[s.name]:
			err = fmt.Errorf("%s is there twice", quote(s.name))
		}
		if err != nil {
			return []source{{}}, fmt.Errorf("the bundle of limit files is damaged: %w", err)
		}
		// Two files of one name would be one place in errors.
		seen[s.name] = true
		sources, rest = append(sources, s), after
	}
	// What nobody reads must not be in what the version is made of.
	if len(rest) > 0 {
		return []source{{}}, errors.New("the bundle of limit files is damaged: something follows the last file")
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
