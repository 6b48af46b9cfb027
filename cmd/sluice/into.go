package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/into"
	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// intoTheirs is what of "sluice haproxy" is about a configuration of somebody's own.
type intoTheirs struct {
	Into     string   `help:"A haproxy.cfg of your own: show the lines that limits need in it, as a diff." predictor:"file" placeholder:"FILE"`
	Frontend []string `help:"With --into: a frontend whose requests are limited; repeat it for several. The lines are taken out of all others. Default: those that have them." placeholder:"NAME"`
	Config   []string `help:"With --into: the files that HAProxy is started with (-f), in their order, if there are more than that one." predictor:"file" placeholder:"FILE"`
	Folder   string   `help:"With --into: where the files go that the lines read." default:"/etc/sluice/haproxy" predictor:"file" placeholder:"DIR"`
	HAProxy  string   `name:"haproxy" help:"With --into: the HAProxy that checks the result." default:"haproxy" predictor:"file" placeholder:"PATH"`
	Write    bool     `help:"With --into: write it." xor:"change"`
	Remove   bool     `help:"With --into: take all lines out again." xor:"change"`
}

// execute shows or writes the change. The configuration is fitted to c.
func (o *intoTheirs) execute(c haproxy.Config, stdout, stderr io.Writer) error {
	theirs, err := o.read()
	if err != nil {
		return err
	}
	wanted, files := theirs.without, map[string]string(nil)
	if !o.Remove {
		lines, err := o.lines(c, &theirs, stderr)
		if err != nil {
			return err
		}
		files = lines.Files
		if wanted, err = theirs.put(lines); err != nil {
			return fmt.Errorf("%s: %w", o.Into, err)
		}
	}
	if err := showChange(stdout, o.Into, theirs.text, wanted); err != nil {
		return err
	}
	if !o.Remove {
		fmt.Fprintf(stdout, "Files that these lines read, in %s: %s\n", o.Folder, strings.Join(slices.Sorted(keysOf(files)), ", "))
	}
	if !o.Write && !o.Remove {
		_, err := fmt.Fprintln(stdout, "Nothing is written without --write.")
		return err
	}
	if err := o.check(wanted, files, stderr); err != nil {
		return err
	}
	return o.write(theirs.text, wanted, files, stdout)
}

func keysOf(files map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range files {
			if !yield(name) {
				return
			}
		}
	}
}

// showChange prints a unified diff, or that there is none.
func showChange(w io.Writer, file, before, after string) error {
	change := unified.Diff(file, []byte(before), file+" (with Sluice)", []byte(after))
	if len(change) == 0 {
		_, err := fmt.Fprintf(w, "%s stays as it is.\n", file)
		return err
	}
	_, err := w.Write(change)
	return err
}

type configuration struct {
	into.Set             // without blocks
	text, without string // of the file that is changed: as it is, and without blocks
	frontends     []string
}

// read reads all files, and takes our lines out of them in memory.
func (o *intoTheirs) read() (configuration, error) {
	theirs := configuration{frontends: o.Frontend}
	names := o.Config
	if len(names) == 0 {
		names = []string{o.Into}
	}
	theirs.Target = slices.Index(names, o.Into)
	if theirs.Target < 0 {
		return theirs, fmt.Errorf("--config names the files that HAProxy is started with, and %s is not among them", o.Into)
	}
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return theirs, err
		}
		file := into.Parse(string(text))
		without, err := file.Without()
		if err != nil {
			return theirs, fmt.Errorf("%s: %w", name, err)
		}
		if i == theirs.Target {
			theirs.text, theirs.without = string(text), without.String()
			if len(theirs.frontends) == 0 {
				theirs.frontends = file.Blocked()
			}
		}
		theirs.Names, theirs.Files = append(theirs.Names, name), append(theirs.Files, without)
	}
	return theirs, nil
}

// lines are those that the configuration needs. What its owner has to know is told; an error if they cannot work in it.
func (o *intoTheirs) lines(c haproxy.Config, theirs *configuration, stderr io.Writer) (haproxy.Lines, error) {
	if len(theirs.frontends) == 0 {
		return haproxy.Lines{}, errors.New("which frontend? Name it with --frontend NAME")
	}
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return haproxy.Lines{}, err
	}
	// It stands in rules, between quotes.
	if strings.ContainsAny(folder, "\"'\\$ \t\n{}#") {
		return haproxy.Lines{}, fmt.Errorf("folder %q: want a path without blanks, quotes and signs that mean something to HAProxy", folder)
	}
	peer, bools := theirs.Process()
	lines, err := c.Beside(folder, haproxy.Process{LocalPeer: peer, Bools: bools})
	if err != nil {
		return lines, err
	}
	ours := into.Ours{Process: lines.Process, Frontend: lines.Frontend, Frontends: theirs.frontends, Bandwidth: !c.Fitted || c.Bandwidth, Costs: len(c.Costs) > 0}
	found := append(theirs.Find(ours), o.examineBuild(ours)...)
	fatal := 0
	for _, f := range found {
		fmt.Fprintln(stderr, f)
		if f.Fatal {
			fatal++
		}
	}
	if fatal > 0 {
		return lines, fmt.Errorf("%d thing(s) in this configuration cannot coexist with Sluice: nothing is written", fatal)
	}
	return lines, nil
}

func (c *configuration) put(lines haproxy.Lines) (string, error) {
	file := c.Files[c.Target]
	blocks := into.Blocks{Process: lines.Process, Sections: map[int]string{}}
	for i, s := range file.Sections {
		if (s.Kind == "frontend" || s.Kind == "listen") && slices.Contains(c.frontends, s.Name) {
			blocks.Sections[i] = lines.Frontend
		}
	}
	return file.With(blocks)
}

// examineBuild looks at HAProxy itself. One that is not on this machine is no error before something is written.
func (o *intoTheirs) examineBuild(ours into.Ours) []into.Finding {
	out, err := exec.Command(o.HAProxy, "-vv").Output()
	if err != nil {
		return []into.Finding{{File: o.HAProxy, What: fmt.Sprintf("it cannot be asked for its version (%v); Sluice needs HAProxy %s or newer, with Lua", err, haproxy.MinVersion)}}
	}
	return into.FindInBuild(o.HAProxy, string(out), ours)
}

func (o *intoTheirs) check(wanted string, files map[string]string, stderr io.Writer) error {
	folder, err := os.MkdirTemp("", "sluice")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := writeFolder(folder, files); err != nil {
		return err
	}
	// Beside the file, whose folder "default-path config" means. Hidden and without the ending .cfg, for HAProxy may be
	// started with the whole folder.
	result, err := writeTemporary(o.Into, wanted)
	if err != nil {
		return err
	}
	defer os.Remove(result)
	args := []string{"-c"}
	for _, name := range o.Config {
		if name == o.Into {
			name = result
		}
		args = append(args, "-f", name)
	}
	if len(o.Config) == 0 {
		args = append(args, "-f", result)
	}
	cmd := exec.Command(o.HAProxy, args...)
	cmd.Env = append(os.Environ(), "SLUICE_CFG_DIR="+folder)
	out, err := cmd.CombinedOutput()
	said := strings.ReplaceAll(string(out), result, o.Into)
	if err != nil {
		return fmt.Errorf("haproxy -c refuses the result, so nothing is written: %w\n%s", err, said)
	}
	_, err = io.WriteString(stderr, said)
	return err
}

// write changes the files on disk, the configuration last.
func (o *intoTheirs) write(before, wanted string, files map[string]string, stdout io.Writer) error {
	if files != nil {
		foreign, err := haproxy.Foreign(o.Folder)
		if err != nil {
			return err
		}
		if len(foreign) > 0 {
			return fmt.Errorf("%s holds other things (%s): choose another --folder", o.Folder, terminal.SomeNames(foreign))
		}
		if err := writeFolder(o.Folder, files); err != nil {
			return err
		}
	}
	if before == wanted {
		said := "The files are written anew."
		if files == nil {
			said = "There are no lines of Sluice's to take out."
		}
		_, err := fmt.Fprintln(stdout, said)
		return err
	}
	// A link stays one.
	file, err := filepath.EvalSymlinks(o.Into)
	if err != nil {
		return err
	}
	backup := file + ".before-sluice"
	if err := replaceFile(backup, file, before); err != nil {
		return err
	}
	if err := replaceFile(file, file, wanted); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s is written; as it was before it is %s. Reload HAProxy.\n", file, backup)
	return err
}

func writeFolder(folder string, files map[string]string) error {
	if err := os.MkdirAll(filepath.Join(folder, "lua"), 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts a text in place of a file at once, with the mode and the owner of another one.
func replaceFile(file, like, text string) error {
	info, err := os.Stat(like)
	if err != nil {
		return err
	}
	temporary, err := writeTemporary(file, text)
	if err != nil {
		return err
	}
	defer os.Remove(temporary) // it is not there any more if all went well
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(temporary, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	// Behind chown, which takes bits away.
	if err := os.Chmod(temporary, info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}

// writeTemporary writes a hidden file beside another one, for its owner alone.
func writeTemporary(beside, text string) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(beside), "."+filepath.Base(beside)+".")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	// On disk before it takes a file's place: a crash must not leave an empty one there.
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
