package limits

import "slices"

// Secrets are those that the set was hidden with, or nil.
func (s *Set) Secrets() *Secrets { return s.content.Secrets }

// NamedSet is the set that this one is the hidden form of: what the file says of names. It is
// nil unless the set was hidden here.
func (s *Set) NamedSet() *Set { return s.content.Named }

// Key returns the wire key of a user by their name, without endpoint: that of Keys which
// is of the current secret.
func (s *Set) Key(name string) string {
	return s.Keys(name)[0]
}

// Keys returns all keys by which the cluster may know a user of this name. A key that is
// hidden is its own, with secrets and without.
func (s *Set) Keys(name string) []string {
	switch {
	// It stands for many requests and is no name, so that there is nothing to hide.
	case name == UnreadableKey:
		return []string{name}
	case s.content.Secrets == nil:
		return []string{FileKey(name)}
	}
	return s.content.Secrets.Keys(name)
}

// FileKey is the key of what a file, or somebody who asks, calls a user: their name, or
// their hidden key.
func FileKey(name string) string {
	// A file may name a user by key, when its author must not know the name.
	if IsHidden(name) {
		return name
	}
	return Key(name)
}

// NameOf returns what the file calls the user of a hidden key, or the key. It looks at
// all users: it is for people's questions.
func (s *Set) NameOf(key string) string {
	named := s.content.Named
	// Only who is named has a name to be found; for others all keys would be made for nothing.
	if _, ok := s.content.Users[key]; !ok || named == nil || !IsHidden(key) {
		return key
	}
	// A key tells nothing of its name: the keys of all names are made until one is this key.
	for wire := range named.content.Users {
		name := wire
		if other, ok := named.content.Names[wire]; ok {
			name = other
		}
		if slices.Contains(s.content.Secrets.Keys(name), key) {
			return name
		}
	}
	return key
}
