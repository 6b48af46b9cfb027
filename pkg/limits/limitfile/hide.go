package limitfile

import (
	"bytes"
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Hide returns the set in which users are known by the keys that the secrets make of
// their names, for a cluster whose HAProxies have one of these secrets. Neither its Source
// nor what it says of users has a name, a comment, or the name of a file of users_from;
// only Key, Keys, Origin and OriginAt take names. The Source can be parsed without a
// secret.
//
// Keys match no pattern, so a file with patterns of users is refused: the error is of
// type Errors and names no user. The set must have no overrides. It takes as long
// as Parse, some times over.
func Hide(s *limits.Set, secrets *limits.Secrets) (*limits.Set, error) {
	source, err := hiddenSource(s, secrets)
	if err != nil {
		return nil, err
	}
	// Agents would refuse it, all of it.
	if len(source) > MaxFileSize {
		return nil, fmt.Errorf("with the keys of %d secret(s) in place of %d users' names the limits are larger than %d MiB: remove a secret that no HAProxy uses any more, or name fewer users", len(secrets.IDs()), s.UserCount(), MaxFileSize>>20)
	}
	// By the text and not by the set: agents parse the text, and both must be the same.
	hidden, err := parseHidden(s.Name(), source, secrets, s)
	if err != nil {
		// What is wrong is about keys, and on lines that no file has.
		return nil, fmt.Errorf("%s with users' keys in place of their names is not valid, as when a user is named by name and by key: %w", s.Name(), err)
	}
	return hidden.At(s.Time()), nil
}

// hiddenSource is the text of the file and those of its users_from as one file, with users'
// keys in place of their names, and without comments.
func hiddenSource(s *limits.Set, secrets *limits.Secrets) ([]byte, error) {
	files, _, err := openSources(s.Name(), s.Source())
	if err != nil {
		return nil, err // cannot be: Parse has read it
	}
	// Of the text once more, because the set does not keep how entries are written.
	h := hiding{secrets: secrets}
	var top *yaml.Node
	for i, file := range files {
		h.openSource(i, file.name)
		if i > 0 && file.isFlat() {
			h.hideFlatFile(file.data)
			continue
		}
		root := h.decode(file.data)
		if i == 0 {
			top = root
			h.hideExempt(lookup(lookup(root, "exempt"), "users"))
		}
		h.hideUsers(lookup(root, "users"))
	}
	if h.hasErrors() {
		return nil, h.errors()
	}
	var out bytes.Buffer
	// Users follow behind the rest, by key. Whoever parses it has no other files.
	removeEntries(top, "users", "users_from")
	// A queue has the user's name in it, which nobody could make of a key: workers that follow Redis
	// know of those for tiers alone.
	if workers := lookup(top, "workers"); workers != nil {
		removeEntries(workers, workersForUsers)
	}
	// Free text of people, who may have written for whom the tier is.
	for _, tier := range children(lookup(top, "tiers")) {
		removeEntries(tier, "comment")
	}
	if err := writeNode(&out, uncommented(top)); err != nil {
		return nil, err
	}
	if h.lines.Len() > 0 {
		out.WriteString("users:\n")
		out.Write(h.lines.Bytes())
	}
	// In one file if that will do, which an agent reads that knows no bundles.
	if h.flatLines.Len() == 0 {
		return out.Bytes(), nil
	}
	return bundle([]source{{data: out.Bytes()}, {name: "users" + flatExtension, data: h.flatLines.Bytes()}}), nil
}

// hiding is a file while its users' names are taken out of it.
type hiding struct {
	problems
	secrets   *limits.Secrets
	lines     bytes.Buffer // of users, two blanks in front of each
	flatLines bytes.Buffer // of users from flat files: an agent that knows no such files has been told of none
}

// noPatterns says what a pattern is refused with. It does not quote it: it may be most of a
// user's name, and the error is for the log.
const noPatterns = "a pattern cannot match users whose names are hidden (--key-secret-file): " +
	"a key tells nothing of the name; name each of these users, or give them the tier of all who are not named (default_tier)"

// isOneUser reports whether a node names a user, and is no pattern.
func (h *hiding) isOneUser(n *yaml.Node, field string) bool {
	if limits.IsPattern(n.Value) {
		h.addError(n.Line, n.Column, "%s: %s", field, noPatterns)
		return false
	}
	return true
}

// hideExempt puts keys in place of the names in exempt.users.
func (h *hiding) hideExempt(n *yaml.Node) {
	if n == nil {
		return
	}
	var keys []*yaml.Node
	for _, item := range n.Content {
		// Under the keys of all secrets, like other users, while HAProxies change over one by one.
		if h.isOneUser(item, "exempt.users") {
			for _, key := range h.secrets.Keys(item.Value) {
				keys = append(keys, textNode(key))
			}
		}
	}
	n.Content = keys
}

// hideFlatFile adds the users of a flat file, each under the keys of all secrets.
func (h *hiding) hideFlatFile(data []byte) {
	for l := range flatLines(string(data)) {
		if key, _ := l.asNodes(); !h.isOneUser(key, "users") {
			continue
		}
		for _, key := range h.secrets.Keys(l.name) {
			// Neither the line's comment nor what else the file has: a name may be anywhere in it.
			fmt.Fprintf(&h.flatLines, "%s %s\n", key, l.tier)
		}
	}
}

// hideUsers adds the entries of users, each under the keys of all secrets.
func (h *hiding) hideUsers(n *yaml.Node) {
	for key, value := range children(n) {
		if !h.isOneUser(key, "users") {
			continue
		}
		removeEntries(value, "comment")
		// One line a user: the keys of all secrets repeat it.
		value.Style = 0
		if value.Kind == yaml.MappingNode {
			value.Style = yaml.FlowStyle
		}
		var line bytes.Buffer
		// The encoder writes a newline behind it, and quotes what needs it.
		if err := writeNode(&line, uncommented(value)); err != nil {
			h.addError(key.Line, key.Column, "users: %v", err)
			continue
		}
		for _, key := range h.secrets.Keys(key.Value) {
			fmt.Fprintf(&h.lines, "  %s: %s", key, line.Bytes())
		}
	}
}

// removeEntries removes entries of a mapping.
func removeEntries(n *yaml.Node, names ...string) {
	// A user may be the name of a tier.
	if n.Kind != yaml.MappingNode {
		return
	}
	var kept []*yaml.Node
	for key, value := range children(n) {
		if !slices.Contains(names, key.Value) {
			kept = append(kept, key, value)
		}
	}
	n.Content = kept
}

// uncommented is a node without what follows a # in it.
func uncommented(n *yaml.Node) *yaml.Node {
	// The library keeps comments, in which people write names.
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for _, child := range n.Content {
		uncommented(child)
	}
	return n
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: yaml.DoubleQuotedStyle}
}

// writeNode writes a node and a newline.
func writeNode(out *bytes.Buffer, n *yaml.Node) error {
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return err
	}
	return e.Close()
}
