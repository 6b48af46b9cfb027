package haproxy

import (
	"fmt"
	"strings"
)

// Process is what a HAProxy with a configuration of its own says itself, or leaves to Sluice.
type Process struct {
	// LocalPeer is what it calls itself among peers; empty: it says nothing, and is called LocalPeer. It may be a variable of
	// HAProxy's environment.
	LocalPeer string
	// Bools is that it says how Lua's booleans are converted, or has loaded Lua before it could be said.
	Bools bool
}

// Lines is what a configuration of somebody's own needs so that Sluice's limits hold in it.
type Lines struct {
	Process  string            // a section global, and the tables and backends that all frontends share; before any defaults
	Frontend string            // of each frontend: behind its http-request rules, before its use_backend rules
	Files    map[string]string // what these lines read, by their names in the folder
}

// Beside returns the lines for a configuration of somebody's own whose files of Sluice's are in a folder. They are
// blocks of haproxy.cfg. A frontend cannot tell which of its backends a request will go to, and a request that has
// gone to backend asked never comes back to choose one: so here the question is asked in the frontend.
func (c Config) Beside(folder string, p Process) (Lines, error) {
	v, err := c.newView()
	if err != nil {
		return Lines{}, fmt.Errorf("haproxy configuration: %w", err)
	}
	v.Into, v.Folder, v.Bools = true, folder, p.Bools
	if p.LocalPeer != "" {
		v.LocalPeer, v.TheirPeer = p.LocalPeer, true
	}
	lines := Lines{}
	if lines.Process, err = render(haproxyTemplate, "beside process", v); err != nil {
		return Lines{}, err
	}
	if lines.Frontend, err = render(haproxyTemplate, "beside frontend", v); err != nil {
		return Lines{}, err
	}
	lines.Process, lines.Frontend = withoutComments(lines.Process), withoutComments(lines.Frontend)
	if lines.Files, err = c.filesOf(v); err != nil {
		return Lines{}, fmt.Errorf("haproxy configuration: %w", err)
	}
	delete(lines.Files, written[0]) // theirs is in its place
	return lines, nil
}

// withoutComments is the text without comments and empty lines.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			b.WriteString(line)
		}
	}
	return b.String()
}
