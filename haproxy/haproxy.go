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
	if env, err = c.env(); err != nil {
		return file, env, err
	}
	files, err := c.files()
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
	return filepath.Join(dir, written[0]), append(env, "SLUICE_CFG_DIR="+dir), nil
}

// Render returns haproxy.cfg as Write writes it.
func Render(c Config) (string, error) {
	v, err := c.newView()
	if err != nil {
		return "", fmt.Errorf("haproxy configuration: %w", err)
	}
	return render(haproxyTemplate, "whole", v)
}

// Foreign returns what a folder holds that Write does not write, sorted: files and
// folders, and a haproxy.cfg that is another's. A folder that is not there holds none.
func Foreign(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// As written has it, whatever the folder is called.
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil || name == "." || name == "lua" && e.IsDir():
			return err
		// A link would have the files written somewhere else.
		case !slices.Contains(written, filepath.ToSlash(name)) || !e.Type().IsRegular():
			found = append(found, name)
		case name == written[0]:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			// By its first line, which says whose file it is: another version of ours differs in the rest.
			if ours, _ := Files.ReadFile(name); firstLine(text) != firstLine(ours) {
				found = append(found, name)
			}
		}
		// What is in a folder of theirs is theirs: its name says enough.
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	// To make it is what the command is for.
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// files are the files of written by name, with what c says in place.
func (c Config) files() (map[string]string, error) {
	v, err := c.newView()
	if err != nil {
		return nil, err
	}
	return c.filesOf(v)
}

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
	if files["haproxy.cfg"], err = render(haproxyTemplate, "whole", v); err != nil {
		return nil, err
	}
	if files["spoe.cfg"], err = render(spoeTemplate, "whole", v); err != nil {
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
