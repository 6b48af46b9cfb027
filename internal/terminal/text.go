// Package terminal writes what others said so that a terminal can be given it, and fits lines
// into one.
//
// Names, errors and comments come from limit files, from clients and from other machines.
// Bytes in them that a terminal would obey, such as those of escape sequences, are written as
// Go escapes them.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable is text as a terminal may have it, its other runes escaped as Go does.
func Printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// WriteJSON writes an object as one line. What a terminal might obey is escaped, which
// encoding/json does for bytes below 0x20 alone.
func WriteJSON(w io.Writer, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	for _, r := range string(text) { // what is not printable is in a string
		switch {
		case unicode.IsPrint(r):
			line.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&line, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&line, `\u%04x`, r)
		}
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// QuoteName is a name from a file as a terminal may have it: in quotes when it is not
// plain, so that it cannot look like something else.
func QuoteName(name string) string {
	plain := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == unicode.ReplacementChar
	})
	if plain {
		return name
	}
	return strconv.Quote(name)
}

// QuoteNames are names from a file, with a comma between.
func QuoteNames(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = QuoteName(name)
	}
	return strings.Join(quoted, ", ")
}

// QuoteWord is a name as one word that a terminal may have, and that neither is the sign
// for none nor begins a comment.
func QuoteWord(name string) string {
	word := QuoteName(name)
	if word == "-" || word[0] == '#' {
		word = strconv.Quote(name)
	}
	return strings.ReplaceAll(word, " ", `\x20`) // no other blank is left by QuoteName
}

// SomeNames are the first names of a list.
func SomeNames(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
