package runtimeapi

import (
	"fmt"
	"strconv"
)

// inLines sends a command about each key of a table, in their order, in as few lines as HAProxy
// takes. It ends with the first line that fails; send gets the keys of its line.
func inLines(table string, keys []string, command func(line []byte, key string) []byte, send func(line []byte, some []string) error) error {
	// All are looked at before the first is sent: of a wrong call nothing has happened.
	if !validWord(table) {
		return fmt.Errorf("haproxy's table %q: not a name", table)
	}
	for _, key := range keys {
		if err := expressible(key); err != nil {
			return err
		}
	}
	buffer := make([]byte, 0, maxLine+len(askProcess))
	for len(keys) > 0 {
		line, n := append(buffer[:0], askProcess...), 0
		for ; n < len(keys); n++ {
			longer := command(line, keys[n])
			// One command always fits: a key has maxKey bytes at most, and each two when it is escaped.
			if n > 0 && len(longer) >= maxLine {
				break
			}
			line = longer
		}
		if err := send(append(line, ";"+askProcess...), keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// appendKeyed appends a command about one entry of a table, behind those before it.
func appendKeyed(line []byte, verb, table, key string) []byte {
	line = append(append(append(line, ';'), verb...), " table "...)
	return appendKey(append(append(line, table...), " key "...), key)
}

func appendWithdrawal(line []byte, table, key string, second uint32) []byte {
	// In a table with an array of gpt, data.gpt is element 0, and the only one that the
	// runtime API can set.
	line = append(appendKeyed(line, "set", table, key), " data.gpt 0"...)
	// server_id, which HAProxy has no other use for there, says when it was withdrawn: without
	// it HAProxy could take the entry for one that is just being made by a request, and write
	// credit into it that was given before.
	return strconv.AppendUint(append(line, " data.server_id "...), uint64(second), 10)
}

// expressible reports why a key cannot be put into a command. A line break ends a
// command, whatever stands before it, and a NUL the key.
func expressible(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("key of %d bytes: haproxy's runtime API takes 1 to %d", len(key), maxKey)
	}
	for i := range len(key) {
		// haproxy.cfg replaces names with such bytes by their hash, so that no user has one. It fills keys with 0x7f.
		if c := key[i]; c < 0x20 {
			return fmt.Errorf("key %q: control bytes cannot be given to haproxy's runtime API", key)
		}
	}
	return nil
}

// appendKey appends a key as one word of a command. HAProxy takes a backslash in front
// of any character, and the character as it is; "<<" at the end of a line would
// begin a payload, so even that is escaped. Bytes of UTF-8 mean nothing to it.
func appendKey(line []byte, key string) []byte {
	for i := range len(key) {
		c := key[i]
		// Everything that is not known to be harmless: a blank would end the word, and a semicolon the
		// command, so that a user could run commands by their name.
		if !needsNoEscape(c) && c < 0x80 {
			line = append(line, '\\')
		}
		line = append(line, c)
	}
	return line
}

func needsNoEscape(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '-' || c == '_' || c == '.' || c == '/' || c == ':'
}

// validWord reports whether a name of a table or variable needs no escaping.
func validWord(name string) bool {
	for i := range len(name) {
		if !needsNoEscape(name[i]) {
			return false
		}
	}
	return name != ""
}
