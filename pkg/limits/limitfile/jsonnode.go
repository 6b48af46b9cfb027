package limitfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxJSONDepth bounds mappings within each other; an override needs four.
const maxJSONDepth = 16

// jsonNode reads JSON as the nodes that the YAML library would have made of the same
// values, so that one code judges both. Numbers are as they are written. A key that is
// there twice is an error.
func jsonNode(data []byte) (*yaml.Node, error) {
	// encoding/json would put other characters in place of what is not UTF-8, and accept it.
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8 text")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	// As they are written, because errors show them, and 1e3 must not become a thousand.
	d.UseNumber()
	n, err := readNode(d, 0)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("missing, or not complete")
	case err != nil:
		return nil, err
	}
	// A decoder stops behind the first value.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows it")
	}
	return n, nil
}

func readNode(d *json.Decoder, depth int) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	// It comes from the API and from Redis, and recursion takes memory.
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := token.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		keys := map[string]bool{}
		for d.More() {
			item, err := readNode(d, depth+1)
			if err != nil {
				return nil, err
			}
			if v == '{' && len(n.Content)%2 == 0 {
				// The library would take the last one, and the operator may have meant the first.
				if keys[item.Value] {
					return nil, fmt.Errorf("%s is there twice", quote(item.Value))
				}
				keys[item.Value] = true
			}
			n.Content = append(n.Content, item)
		}
		_, err = d.Token() // the end
	case string:
		n.Tag, n.Value = "!!str", v
	case json.Number:
		// Fractions too: the reader judges what is written, and asks no more than whether it is text.
		n.Tag, n.Value = "!!int", v.String()
	case bool:
		n.Tag, n.Value = "!!bool", fmt.Sprint(v)
	default:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, err
}
