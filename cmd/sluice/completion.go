package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

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
	var line struct {
		Completion kongcompletion.Completion `cmd:""`
	}
	app, err := kong.New(&line, kong.Name("sluice"), kong.Writers(stdout, stderr), kong.Exit(func(int) {}))
	if err != nil {
		return cli.Exit(stderr, "sluice completion", err)
	}
	ctx, err := app.Parse([]string{"completion", "--code", c.Shell})
	if err != nil {
		return cli.Exit(stderr, "sluice completion", err)
	}
	return cli.Exit(stderr, "sluice completion", ctx.Run())
}

// answerShell prints what can stand at the cursor of a command line, if a shell asks: its
// script runs this program with the line in COMP_LINE.
func answerShell(stdout io.Writer) (asked bool, err error) {
	line := os.Getenv("COMP_LINE")
	if line == "" {
		return false, nil
	}
	// Words behind the cursor complete nothing: without this the word at the cursor would be taken for another one.
	if point, err := strconv.Atoi(os.Getenv("COMP_POINT")); err == nil && 0 <= point && point < len(line) {
		line = line[:point]
	}
	// The last word of --flag=value; to bash, which alone says for which key it asks, these are
	// two words, because = divides words there (COMP_WORDBREAKS).
	flag, _, together := strings.Cut(line[strings.LastIndexByte(line, ' ')+1:], "=")
	together = together && os.Getenv("COMP_KEY") == ""
	app, err := kong.New(new(commands), kong.Name("sluice"))
	if err != nil {
		return true, err
	}
	var files complete.Predictor
	if together || os.Getenv("COMP_POINT") == "" {
		// Elsewhere bash and zsh find files themselves when they hear of nothing else: they know
		// how to quote names. Fish says nothing of the cursor, and wants to hear of files.
		files = complete.PredictFiles("*")
	}
	command, err := kongcompletion.Command(app,
		kongcompletion.WithPredictor("file", files),
		kongcompletion.WithPredictor("class", complete.PredictSet(limits.BuiltinClasses()...)))
	if err != nil {
		return true, err
	}
	var words bytes.Buffer
	answer := complete.New("sluice", command)
	answer.Out = &words
	answer.Complete()
	for word := range strings.Lines(words.String()) {
		if together {
			word = flag + "=" + word
		}
		fmt.Fprint(stdout, word)
	}
	return true, nil
}
