package haproxy

import (
	"fmt"
	"strings"
)

// Process is what a HAProxy with a configuration of its own says itself, or leaves to Sluice.
type Process struct {
	LocalPeer bool // it says what it calls itself among peers, or has peers, which know its name
	Bools     bool // it says how Lua's booleans are converted, or has loaded Lua before it could be said
	// FirstCounter is the first of three sticky counters that nothing else uses. HAProxy before 2.8 has no more than 0 to 2.
	FirstCounter int
}

// Lines is what an operator's own configuration needs so that Sluice's limits hold in it.
type Lines struct {
	Process  string            // a section global, and the tables and backends that all frontends share; before any defaults
	Frontend string            // of each frontend: behind its http-request rules, before its redirect rules
	Choice   string            // of each frontend: behind its redirect rules, before its use_backend rules
	Files    map[string]string // what these lines read, by their names in the folder
}

// Beside returns the lines for an operator's own configuration whose files of Sluice's are in a folder. They are
// blocks of haproxy.cfg. A frontend cannot tell which of its backends a request will go to, and a request that has
// gone to backend asked never comes back to choose one: so here the question is asked in the frontend.
func (c Config) Beside(folder string, p Process) (Lines, error) {
	v, err := c.newView()
	if err != nil {
		return Lines{}, fmt.Errorf("haproxy configuration: %w", err)
	}
	v.Into, v.Folder, v.Process = true, folder, p
	lines := Lines{}
	for block, text := range map[string]*string{"process": &lines.Process, "frontend": &lines.Frontend, "choice": &lines.Choice} {
		if *text, err = render(haproxyTemplate, "beside "+block, v, v.FirstCounter); err != nil {
			return Lines{}, err
		}
		*text = withoutComments(*text + "\n")
	}
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
