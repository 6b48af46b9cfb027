package flags

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// usageError is the exit code of a command line that was not understood.
const usageError = 2

// Parse reads a command line into grammar, a pointer to a struct with kong's
// tags. When nothing is left to do, because help was asked for and printed or
// the line is wrong, which it says, the context is nil and code is the
// process's exit code.
func Parse(grammar any, args []string, stdout, stderr io.Writer, name, description string) (ctx *kong.Context, code int) {
	// kong would end the process behind its help, and nobody's deferred calls would run.
	exit := -1
	parser, err := kong.New(grammar,
		kong.Name(name),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.ValueFormatter(helpWithDefault),
	)
	// A mistake in the grammar itself, which each command's tests find.
	if err != nil {
		return nil, Exit(stderr, name, err)
	}
	ctx, err = parser.Parse(args)
	switch {
	case exit >= 0: // --help
		return nil, exit
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\nSee '%s --help'.\n", name, err, name)
		return nil, usageError
	}
	return ctx, 0
}

// helpWithDefault is a flag's help with its default, which a placeholder hides,
// and its environment variable.
func helpWithDefault(v *kong.Value) string {
	help := v.Help
	// Of a switch the default is empty or says nothing.
	if v.HasDefault && v.Default != "" {
		help = fmt.Sprintf("%s Default: %s.", help, v.Default)
	}
	if len(v.Tag.Envs) > 0 {
		help = fmt.Sprintf("%s [$%s]", help, strings.Join(v.Tag.Envs, ", $"))
	}
	return help
}
