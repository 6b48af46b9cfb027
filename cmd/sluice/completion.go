package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type completion struct {
	Shell string `arg:"" help:"bash, zsh or fish." enum:"bash,zsh,fish"`
}

// Help tells where the script goes.
func (*completion) Help() string {
	return `Prints the script. To load it now, and from then on put this into the shell's start-up file:

bash: source <(sluice completion bash)

zsh (after compinit): source <(sluice completion zsh)

fish: sluice completion fish | source`
}

func (c *completion) execute(stdout, stderr io.Writer) int {
	app, err := kong.New(new(commands), kong.Name("sluice"))
	if err != nil {
		return cli.Exit(stderr, "sluice completion", err)
	}
	all := listCommands(app.Model.Node, "")
	script := bashScript(all)
	switch c.Shell {
	case "zsh":
		script = zshScript(all)
	case "fish":
		script = fishScript(all)
	}
	_, err = io.WriteString(stdout, script)
	return cli.Exit(stderr, "sluice completion", err)
}

// word is a command and what can follow it.
type word struct {
	path     string // such as "import weir"; "" is sluice itself
	help     string
	commands []string // names of the commands below it
	flags    []option
	operand  option // what its arguments are
}

// option is a flag or an argument.
type option struct {
	name    string // without dashes
	short   string
	help    string
	file    bool     // its value is the path of a file
	values  []string // all that it can be
	noValue bool
}

// listCommands lists a command and all below it, each before those below it.
func listCommands(n *kong.Node, path string) []word {
	w := word{path: path, help: n.Help}
	for _, f := range n.Flags {
		if f.Hidden {
			continue
		}
		o := newOption(f.Value)
		o.name, o.noValue = f.Name, f.IsBool()
		if f.Short != 0 {
			o.short = string(f.Short)
		}
		w.flags = append(w.flags, o)
	}
	if path != "" { // kong has it in the model of sluice itself only
		w.flags = append(w.flags, option{name: "help", short: "h", help: "Show context-sensitive help.", noValue: true})
	}
	if len(n.Positional) > 0 {
		w.operand = newOption(n.Positional[len(n.Positional)-1])
	}
	all := []word{w}
	for _, child := range n.Children {
		if child.Hidden {
			continue
		}
		all[0].commands = append(all[0].commands, child.Name)
		all = append(all, listCommands(child, strings.TrimPrefix(path+" "+child.Name, " "))...)
	}
	return all
}

// newOption reads what completes a value from its tags: an enum, or complete:"file"
// or "class".
func newOption(v *kong.Value) option {
	o := option{help: v.Help}
	switch v.Tag.Get("complete") {
	case "file":
		o.file = true
	case "class":
		o.values = limits.BuiltinClasses()
	}
	if v.Enum != "" {
		o.values = strings.Split(v.Enum, ",")
	}
	return o
}

// bashScript returns a completion function. It also runs in zsh's emulation of bash, so
// that path, words and the like, which zsh uses itself, are not names in it, and a
// flag and its value may be one word: bash makes three words of --flag=value.
func bashScript(all []word) string {
	var s strings.Builder
	s.WriteString(`# Completion of sluice for bash.
_sluice() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= pre= i IFS=$'\n'
  COMPREPLY=()
  if [ "$cur" = = ]; then
    cur=
  elif [ "$prev" = = ]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $cur == --*=* ]]; then
    prev=${cur%%=*} pre=${cur%%=*}= cur=${cur#*=}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at/${COMP_WORDS[i]}" in
`)
	for _, w := range all[1:] {
		parent, name := "", w.path
		if i := strings.LastIndexByte(w.path, ' '); i >= 0 {
			parent, name = w.path[:i], w.path[i+1:]
		}
		fmt.Fprintf(&s, "      %s) at=%s ;;\n", shellQuote(parent+"/"+name), shellQuote(w.path))
	}
	s.WriteString("    esac\n  done\n  case \"$at/$prev\" in\n")
	for _, w := range all {
		for _, f := range w.flags {
			if f.noValue {
				continue
			}
			names := shellQuote(w.path + "/--" + f.name)
			if f.short != "" {
				names += " | " + shellQuote(w.path+"/-"+f.short)
			}
			fmt.Fprintf(&s, "    %s) %s return ;;\n", names, bashReply(f))
		}
	}
	s.WriteString("  esac\n  case \"$at/$cur\" in\n")
	for _, w := range all {
		var flags []string
		for _, f := range w.flags {
			flags = append(flags, "--"+f.name)
		}
		fmt.Fprintf(&s, "    %s-*) %s ;;\n", shellQuote(w.path+"/"), bashReply(option{values: flags}))
		if reply := bashReply(option{values: slices.Concat(w.commands, w.operand.values), file: w.operand.file}); reply != "" {
			fmt.Fprintf(&s, "    %s*) %s ;;\n", shellQuote(w.path+"/"), reply)
		}
	}
	s.WriteString("  esac\n}\ncomplete -F _sluice sluice\n")
	return s.String()
}

// whole puts the flag before its value again where they are one word.
const whole = ` COMPREPLY=("${COMPREPLY[@]/#/$pre}");`

// bashReply is the command that completes a value. PREFIX is what zsh's compgen -f
// looks for.
func bashReply(o option) string {
	switch {
	case o.file:
		return `COMPREPLY=($(PREFIX=$cur; compgen -f -- "$cur")); compopt -o filenames 2>/dev/null;` + whole
	case len(o.values) > 0:
		return `COMPREPLY=($(compgen -W $'` + strings.Join(o.values, `\n`) + `' -- "$cur"));` + whole
	}
	return ""
}

// zshScript returns the script for bash, for zsh's own emulation of it.
func zshScript(all []word) string {
	return "# Completion of sluice for zsh.\nautoload -U +X bashcompinit && bashcompinit\n" + bashScript(all)
}

func fishScript(all []word) string {
	var s strings.Builder
	s.WriteString("# Completion of sluice for fish.\ncomplete -c sluice -f\n")
	help := map[string]string{}
	for _, w := range all {
		help[w.path] = w.help
	}
	for _, w := range all {
		here := fishCondition(w)
		for _, c := range w.commands {
			fmt.Fprintf(&s, "complete -c sluice -n %s -a %s -d %s\n", shellQuote(here), c, shellQuote(help[strings.TrimPrefix(w.path+" "+c, " ")]))
		}
		for _, f := range w.flags {
			line := "complete -c sluice -n " + shellQuote(here) + " -l " + f.name
			if f.short != "" {
				line += " -s " + f.short
			}
			fmt.Fprintf(&s, "%s%s -d %s\n", line, fishValue(f), shellQuote(f.help))
		}
		if w.operand.file || len(w.operand.values) > 0 {
			fmt.Fprintf(&s, "complete -c sluice -n %s%s\n", shellQuote(here), strings.Replace(fishValue(w.operand), " -r", "", 1))
		}
	}
	return s.String()
}

// fishCondition is true where the word is the last command of the line.
func fishCondition(w word) string {
	if w.path == "" {
		return "__fish_use_subcommand"
	}
	var parts []string
	for _, name := range strings.Fields(w.path) {
		parts = append(parts, "__fish_seen_subcommand_from "+name)
	}
	if len(w.commands) > 0 {
		parts = append(parts, "not __fish_seen_subcommand_from "+strings.Join(w.commands, " "))
	}
	return strings.Join(parts, "; and ")
}

func fishValue(o option) string {
	switch {
	case o.noValue:
		return ""
	case o.file:
		return " -r -F"
	case len(o.values) > 0:
		return " -r -f -a " + shellQuote(strings.Join(o.values, " "))
	}
	return " -r -f"
}

// shellQuote writes text for a shell. All three shells read ” the same way.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
