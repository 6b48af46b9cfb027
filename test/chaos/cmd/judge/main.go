// Command judge says of histories of chaos runs whether everything was as it should be: in its last line, and by its exit status.
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/chaos/judge"
)

type options struct {
	Markdown string   `help:"Write the reports to this file, too, as Markdown."`
	Files    []string `arg:"" help:"Histories: history.jsonl in the folders of runs."`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	kong.Parse(&o, kong.Name("judge"), kong.Description("Judge what chaos runs wrote down."))
	var markdown bytes.Buffer
	verdict, passed := "", true
	for _, name := range o.Files {
		report, err := judged(name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "judge: %s: %v\n", name, err)
			return 1
		}
		fmt.Printf("%s\n\n", name)
		if err := report.WriteText(os.Stdout); err != nil {
			return 1
		}
		_ = report.WriteMarkdown(&markdown) // a buffer takes everything
		if passed = passed && report.Passed(); verdict == "" || !report.Passed() {
			verdict = report.Verdict()
		}
	}
	if o.Markdown != "" {
		if err := os.WriteFile(o.Markdown, markdown.Bytes(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "judge:", err)
			return 1
		}
	}
	if len(o.Files) > 1 {
		fmt.Printf("\n%d histories; %s\n", len(o.Files), verdict)
	}
	if !passed {
		return 1
	}
	return 0
}

func judged(name string) (*judge.Report, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h, err := history.Read(file)
	if err != nil {
		return nil, err
	}
	return judge.Judge(h, judge.Options{})
}
