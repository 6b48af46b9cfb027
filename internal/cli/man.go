package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// manFlag prints a command's manual page, for packages. People have --help, which says the same.
const manFlag = "--man"

// manual is the page of a command as man reads it, from what --help says. It names no date and no
// version, so that one source makes one page.
func manual(app *kong.Application) string {
	name, section, purpose := "sluice-"+app.Name, 8, "Administration"
	// The daemons are installed under names that say whose they are, and in the section of what an operator runs.
	if app.Name == "sluice" {
		name, section, purpose = app.Name, 1, "User commands"
	}
	p := &page{}
	// apropos and whatis read one line of a page: what stands before the colon of the description.
	first, rest, _ := strings.Cut(app.Help, "\n\n")
	p.request("TH", strings.ToUpper(name), fmt.Sprint(section), "", "Sluice", purpose)
	p.request("SH", "NAME")
	summary, _, _ := strings.Cut(strings.TrimSuffix(first, "."), ": ")
	p.text(escape(name) + ` \- ` + escape(summary))
	p.request("SH", "SYNOPSIS")
	p.text("\\fB" + escape(name) + "\\fR" + escape(strings.TrimPrefix(app.Summary(), app.Name)))
	p.request("SH", "DESCRIPTION")
	p.paragraphs(first + "\n\n" + rest)
	p.request("SH", "OPTIONS")
	p.flags(app.Node)
	// The daemons have none, and a title without text would stand there.
	if len(app.Children) > 0 {
		p.request("SH", "COMMANDS")
	}
	// Without hidden ones, as in --help.
	for _, command := range app.Leaves(true) {
		p.request("SS", strings.TrimSpace(command.FullPath()+strings.TrimPrefix(command.Summary(), command.Path())))
		p.paragraphs(command.Help + "\n\n" + command.Detail)
		for _, argument := range command.Positional {
			p.item(argument.Summary(), argument.Help)
		}
		p.flags(command)
	}
	return p.String()
}

// page is a manual page that is being written.
type page struct{ strings.Builder }

// request writes a macro with its arguments.
func (p *page) request(macro string, arguments ...string) {
	fmt.Fprintf(p, ".%s", macro)
	for _, a := range arguments {
		// A quote would end the argument.
		fmt.Fprintf(p, ` "%s"`, strings.ReplaceAll(escape(a), `"`, `\(dq`))
	}
	fmt.Fprintln(p)
}

// text writes a line that is roff already.
func (p *page) text(line string) {
	// man fills lines by itself, and takes a line that begins with a dot for a macro.
	fmt.Fprintln(p, strings.ReplaceAll(line, "\n", " "))
}

func (p *page) paragraphs(text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); paragraph != "" {
			p.request("PP")
			p.text(escape(paragraph))
		}
	}
}

func (p *page) item(name, help string) {
	p.request("TP")
	p.text(`\fB` + escape(name) + `\fR`)
	p.text(escape(help))
}

func (p *page) flags(n *kong.Node) {
	for _, f := range n.Flags {
		if !f.Hidden {
			p.item(f.String(), helpWithDefault(f.Value))
		}
	}
}

// escape is text without what means something to roff.
func escape(text string) string {
	// A bare - is a typographic hyphen there, and a flag that is copied from the page would not work.
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	// What stands first in a line; \& is nothing, and has no width.
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// answerMan prints the page if it is asked for.
func answerMan(args []string, app *kong.Application, stdout io.Writer) bool {
	// With anything else it is a flag that is not known, which is told as any other.
	if len(args) != 1 || args[0] != manFlag {
		return false
	}
	fmt.Fprint(stdout, manual(app))
	return true
}
