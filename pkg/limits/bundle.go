package limits

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// source is a file that a Set is made from.
type source struct {
	name string // as in errors; in a bundle, as seen from the folder of the limit file, which has none
	data []byte
}

// A bundle is several files in one, so that whoever gets it can make the same Set
// without having them: the limit file, and those of its users_from. It begins with
// bundleMark and how many files there are, which no limit file can, because that is
// YAML's text and no mapping. Then each file has a line with its length in bytes and
// its name, quoted as in Go, followed by its content and a newline:
//
//	sluice-limits-bundle 1 2
//	120 ""
//	version: 1
//	…
//	33 "users.d/a.yaml"
//	users: …
const bundleMark = "sluice-limits-bundle "

// maxUserFiles bounds the files of users_from.
const maxUserFiles = 1000

func isBundle(data []byte) bool { return bytes.HasPrefix(data, []byte(bundleMark)) }

// bundle puts files into one.
func bundle(sources []source) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s1 %d\n", bundleMark, len(sources))
	for _, s := range sources {
		fmt.Fprintf(&b, "%d %s\n", len(s.data), strconv.Quote(s.name))
		b.Write(s.data)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// unbundle takes a bundle apart, without copying. What is none is the one file that
// it holds. The result has one file at least, also with an error.
func unbundle(data []byte) ([]source, error) {
	if !isBundle(data) {
		return []source{{data: data}}, nil
	}
	if len(data) > MaxFileSize {
		return []source{{}}, fmt.Errorf("the file and those of its users_from are larger than %d MiB", MaxFileSize>>20)
	}
	header, rest, _ := bytes.Cut(data, []byte("\n"))
	version, count, _ := strings.Cut(strings.TrimPrefix(string(header), bundleMark), " ")
	if version != "1" {
		return []source{{}}, fmt.Errorf("the bundle of limit files has version %s; only 1 is known", quote(version))
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > maxUserFiles+1 || strconv.Itoa(n) != count {
		return []source{{}}, fmt.Errorf("the bundle of limit files is damaged: %s is no number of files", quote(count))
	}
	var sources []source
	seen := map[string]bool{}
	for i := range n {
		s, after, err := nextFile(rest)
		switch {
		case err != nil:
		case (s.name == "") != (i == 0):
			err = fmt.Errorf("file %d has the name %s", i, quote(s.name))
		case seen[s.name]:
			err = fmt.Errorf("%s is there twice", quote(s.name))
		}
		if err != nil {
			return []source{{}}, fmt.Errorf("the bundle of limit files is damaged: %w", err)
		}
		seen[s.name] = true
		sources, rest = append(sources, s), after
	}
	if len(rest) > 0 {
		return []source{{}}, errors.New("the bundle of limit files is damaged: something follows the last file")
	}
	return sources, nil
}

// nextFile takes the first file of what is left of a bundle.
func nextFile(data []byte) (s source, rest []byte, err error) {
	line, rest, ok := bytes.Cut(data, []byte("\n"))
	size, quoted, _ := strings.Cut(string(line), " ")
	n, sizeErr := strconv.Atoi(size)
	name, nameErr := strconv.Unquote(quoted)
	switch {
	case !ok || sizeErr != nil || nameErr != nil || n < 0 || strconv.Itoa(n) != size || strconv.Quote(name) != quoted:
		return s, nil, fmt.Errorf("%s is no length and name of a file", quote(string(line)))
	case n >= len(rest) || rest[n] != '\n':
		return s, nil, fmt.Errorf("%s has not its length of %d bytes", quote(name), n)
	}
	return source{name, rest[:n:n]}, rest[n+1:], nil
}
