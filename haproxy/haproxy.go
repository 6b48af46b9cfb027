// Package haproxy renders the configuration files that HAProxy runs with, for a chain of
// identifiers and a limit file: *.tmpl are their sources. haproxy.cfg and spoe.cfg in this folder
// are what they render without either. Everything else that can be set is an environment
// variable; the table at the top of haproxy.cfg says which.
//
// Nothing that a caller sets is pasted into a file unchecked: header and claim
// names, exempt addresses and paths are validated, what a class looks for is escaped,
// and the rest travels in the environment.
package haproxy

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files holds haproxy.cfg, spoe.cfg, *.lst, lua/*.lua and classify/*.cfg.
//
//go:embed haproxy.cfg spoe.cfg *.lst lua/bandwidth.lua lua/bandwidth_clock.lua lua/costs.lua lua/cost_queue.lua lua/cost_scanner.lua lua/local_addresses.lua classify/*.cfg
var Files embed.FS

// written are the files that Write writes, haproxy.cfg first.
var written = []string{
	"haproxy.cfg", "spoe.cfg", "exempt-addresses.lst", "exempt-paths.lst", "exempt-prefixes.lst",
	"lua/bandwidth.lua", "lua/bandwidth_clock.lua", "lua/costs.lua", "lua/cost_queue.lua", "lua/cost_scanner.lua", "lua/local_addresses.lua",
}

// Names of the peers as haproxy.cfg declares them. The agent dials LocalPeer
// and introduces itself as AgentPeer.
const (
	LocalPeer = "haproxy"
	AgentPeer = "agent"
)

// MinVersion is the oldest HAProxy that the files run on.
const MinVersion = "2.6"

// Write renders the files into dir, which it creates if need be. It returns the
// path of haproxy.cfg and the environment that HAProxy needs besides its own.
// An error names the field of c, or the file, that is wrong.
func Write(dir string, c Config) (file string, env []string, err error) {
	defer func() {
		if err != nil {
			file, env, err = "", nil, fmt.Errorf("haproxy configuration: %w", err)
		}
	}()
	// Everything is rendered before anything is written: what is wrong leaves the folder as it was.
	v, err := c.newView()
	if err != nil {
		return file, env, err
	}
	files, err := c.filesOf(v)
	if err != nil {
		return file, env, err
	}
	// The path stands in front of every file that haproxy.cfg reads, wherever HAProxy is started.
	if dir, err = filepath.Abs(dir); err != nil {
		return file, env, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "lua"), 0o755); err != nil {
		return file, env, err
	}
	for _, name := range written {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(files[name]), 0o644); err != nil {
			return file, env, err
		}
	}
	return filepath.Join(dir, written[0]), append(slices.Clone(c.Env), "SLUICE_CFG_DIR="+dir), nil
}

// Render returns haproxy.cfg as Write writes it.
func Render(c Config) (string, error) {
	v, err := c.newView()
	if err != nil {
		return "", fmt.Errorf("haproxy configuration: %w", err)
	}
	return render(haproxyTemplate, "whole", v, v.FirstCounter)
}

// Foreign returns which files of a folder Write would overwrite although they are somebody else's, but for some: they are
// links or the like, or their first line is another one.
func Foreign(dir string, but ...string) (found []string) {
	firstLine := func(text []byte, _ error) string { return strings.SplitN(string(text), "\n", 2)[0] }
	for _, name := range written {
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || slices.Contains(but, name) {
			continue
		}
		// Another version of ours differs in the rest.
		if err != nil || !info.Mode().IsRegular() || firstLine(os.ReadFile(path)) != firstLine(Files.ReadFile(name)) {
			found = append(found, name)
		}
	}
	return found
}

// filesOf are the files of written by name, with what c says in place.
func (c Config) filesOf(v view) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range written[2:] {
		text, err := fs.ReadFile(Files, name)
		if err != nil {
			return nil, err
		}
		files[name] = string(text)
	}
	var err error
	if files["haproxy.cfg"], err = render(haproxyTemplate, "whole", v, v.FirstCounter); err != nil {
		return nil, err
	}
	if files["spoe.cfg"], err = render(spoeTemplate, "whole", v, v.FirstCounter); err != nil {
		return nil, err
	}
	// Added to what the lists have as they are shipped.
	lists, err := exemptLists(c.Exempt)
	if err != nil {
		return nil, err
	}
	for name, lines := range lists {
		files[name] += lines
	}
	return files, nil
}
