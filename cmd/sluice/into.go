package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/into"
	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// intoTheirs is what of "sluice haproxy" is about an operator's own configuration.
type intoTheirs struct {
	Into     string   `help:"A haproxy.cfg of your own, or a folder of such files: show the lines that limits need in it, as a diff." predictor:"file" placeholder:"FILE"`
	Frontend []string `help:"With --into: a frontend whose requests are limited; repeat it for several. The lines are taken out of all others. Default: those that have them." placeholder:"NAME"`
	Config   []string `help:"With --into: the files and folders that HAProxy is started with (-f), in their order, if there are more than that one. Lines go into each file that needs some." predictor:"file" placeholder:"FILE"`
	Folder   string   `help:"With --into: where the files go that the lines read." default:"/etc/sluice/haproxy" predictor:"file" placeholder:"DIR"`
	HAProxy  string   `name:"haproxy" help:"With --into: the HAProxy that checks the result." default:"haproxy" predictor:"file" placeholder:"PATH"`
	Write    bool     `help:"With --into: write it." xor:"change"`
	Check    bool     `help:"With --into: exit with 1 unless its lines are there, in their places." xor:"change"`
	Remove   bool     `help:"With --into: take all lines out again." xor:"change"`
}

// A configuration is an operator's own.
type configuration struct {
	into.Config
	names                   []string
	before, without, wanted []string // the files as they are, without our lines, and as they are to be
}

// execute shows or writes the change. The configuration is fitted to c.
func (o *intoTheirs) execute(c haproxy.Config, stdout, stderr io.Writer) error {
	theirs, err := o.read()
	if err != nil {
		return err
	}
	var files map[string]string
	if !o.Remove {
		if files, err = o.putLines(c, theirs, stderr); err != nil {
			return err
		}
	}
	theirs.wanted = theirs.Texts()
	for i, name := range theirs.names {
		change := unified.Diff(name, []byte(theirs.before[i]), name+" (with Sluice)", []byte(theirs.wanted[i]))
		if len(change) == 0 {
			change = []byte(name + " stays as it is.\n")
		}
		if _, err := stdout.Write(change); err != nil {
			return err
		}
	}
	if !o.Remove {
		fmt.Fprintf(stdout, "Files that these lines read, in %s: %s\n", o.Folder, strings.Join(slices.Sorted(maps.Keys(files)), ", "))
	}
	if o.Check && !slices.Equal(theirs.before, theirs.wanted) {
		return errors.New("the lines are not as --write would have them")
	}
	if !o.Write && !o.Remove {
		_, err := fmt.Fprintln(stdout, "Nothing is written without --write.")
		return err
	}
	if err := o.check(theirs, files, stderr); err != nil {
		return err
	}
	return o.write(theirs, files, stdout)
}

// read reads all files.
func (o *intoTheirs) read() (*configuration, error) {
	target := configFiles([]string{o.Into})
	theirs := &configuration{names: configFiles(o.Config)}
	if len(o.Config) == 0 {
		theirs.names = target
	}
	for _, name := range target {
		if !slices.Contains(theirs.names, name) {
			return nil, fmt.Errorf("--config names the files that HAProxy is started with, and %s is not among them", name)
		}
	}
	for _, name := range theirs.names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := theirs.Add(name, string(text)); err != nil {
			return nil, err
		}
		theirs.before = append(theirs.before, string(text))
	}
	theirs.without = theirs.Texts()
	return theirs, nil
}

// configFiles are the files that HAProxy reads for -f: of a folder its *.cfg, in their order.
func configFiles(paths []string) []string {
	var files []string
	for _, path := range paths {
		in, _ := fs.Glob(os.DirFS(path), "[^.]*.cfg") // an error comes again when the file is read
		if len(in) == 0 {
			files = append(files, filepath.Clean(path))
		}
		for _, name := range in {
			files = append(files, filepath.Join(path, name))
		}
	}
	return files
}

// putLines puts in the lines that the configuration needs, and returns the files that they read. Findings go to stderr; an error if the
// lines cannot work in it.
func (o *intoTheirs) putLines(c haproxy.Config, theirs *configuration, stderr io.Writer) (files map[string]string, err error) {
	if len(o.Frontend) == 0 {
		o.Frontend = theirs.Blocked
	}
	if len(o.Frontend) == 0 {
		return nil, errors.New("which frontend? Name it with --frontend NAME")
	}
	if o.Folder, err = filepath.Abs(o.Folder); err != nil {
		return nil, err
	}
	// It stands in rules, between quotes.
	if strings.ContainsAny(o.Folder, "\"'\\$ \t\n{}#") {
		return nil, fmt.Errorf("folder %q: want a path without blanks, quotes and signs that mean something to HAProxy", o.Folder)
	}
	bandwidth := !c.Fitted || c.Bandwidth
	ofBuild, moreCounters := o.examineBuild(bandwidth)
	lines, err := c.Beside(o.Folder, theirs.Process(moreCounters))
	if err != nil {
		return nil, err
	}
	ours := into.Ours{
		Process: lines.Process, Frontend: lines.Frontend, Choice: lines.Choice, Frontends: o.Frontend,
		Bandwidth: bandwidth, Costs: len(c.Costs) > 0, Paths: len(c.Classes)+len(c.Exempt.Paths) > 0,
	}
	fatal := 0
	for _, f := range append(theirs.Find(ours), ofBuild...) {
		fmt.Fprintln(stderr, f)
		if f.Fatal {
			fatal++
		}
	}
	if fatal > 0 {
		return nil, fmt.Errorf("%d thing(s) in this configuration cannot coexist with Sluice: nothing is written", fatal)
	}
	return lines.Files, theirs.With(ours)
}

// examineBuild looks at HAProxy itself. One that is not on this machine is no error before something is written.
func (o *intoTheirs) examineBuild(bandwidth bool) (found []into.Finding, moreCounters bool) {
	out, err := exec.Command(o.HAProxy, "-vv").Output()
	if err != nil {
		return []into.Finding{{File: o.HAProxy, What: fmt.Sprintf("it cannot be asked for its version (%v); Sluice needs HAProxy %s or newer, with Lua", err, haproxy.MinVersion)}}, false
	}
	return into.FindInBuild(o.HAProxy, string(out), bandwidth)
}

// check has HAProxy read the configuration without our lines and with them, and shows its new warnings.
func (o *intoTheirs) check(theirs *configuration, files map[string]string, stderr io.Writer) error {
	folder, err := os.MkdirTemp("", "sluice")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := writeFolder(folder, files); err != nil {
		return err
	}
	// Not by the environment: a configuration may have HAProxy forget it.
	there := slices.Clone(theirs.wanted)
	for i := range there {
		there[i] = strings.ReplaceAll(there[i], "${SLUICE_CFG_DIR-"+o.Folder+"}", folder)
	}
	before, refused := o.ask(theirs, theirs.without)
	after, err := o.ask(theirs, there)
	_, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err != nil && !exited:
		return err
	case err != nil && refused != nil:
		return fmt.Errorf("haproxy -c refuses the configuration without Sluice's lines, so nothing is written. It may want the environment of its service, another folder, or another --haproxy: %w\n%s", err, before)
	case err != nil:
		return fmt.Errorf("haproxy -c refuses the result, so nothing is written: %w\n%s", err, after)
	}
	_, err = io.WriteString(stderr, newLines(before, after))
	return err
}

// ask is what haproxy -c says about the configuration with these texts.
func (o *intoTheirs) ask(theirs *configuration, texts []string) (said string, err error) {
	args := []string{"-c"}
	var names []string
	for i, name := range theirs.names {
		if texts[i] != theirs.before[i] {
			// Next to the file, whose folder "default-path config" means. Hidden and without the ending .cfg, because HAProxy may be
			// started with the whole folder.
			temporary, err := writeTemporary(name, texts[i])
			if err != nil {
				return "", err
			}
			defer os.Remove(temporary)
			names = append(names, temporary, name)
			name = temporary
		}
		args = append(args, "-f", name)
	}
	out, err := exec.Command(o.HAProxy, args...).CombinedOutput()
	return strings.NewReplacer(names...).Replace(string(out)), err
}

var digits = regexp.MustCompile(`[0-9]+`)

// newLines are the lines of what HAProxy says now that it did not say before. Its process and the numbers of lines are others.
func newLines(before, now string) string {
	said := map[string]int{}
	for line := range strings.Lines(before) {
		said[digits.ReplaceAllString(line, "")]++
	}
	var b strings.Builder
	for line := range strings.Lines(now) {
		key := digits.ReplaceAllString(line, "")
		if said[key]--; said[key] < 0 {
			b.WriteString(line)
		}
	}
	return b.String()
}

// write changes the files on disk, the configuration last.
func (o *intoTheirs) write(theirs *configuration, files map[string]string, stdout io.Writer) error {
	if !o.Remove {
		if foreign := haproxy.Foreign(o.Folder, "haproxy.cfg"); len(foreign) > 0 {
			return fmt.Errorf("%s has files of somebody else's (%s): choose another --folder", o.Folder, terminal.SomeNames(foreign))
		}
		if err := writeFolder(o.Folder, files); err != nil {
			return err
		}
	}
	if slices.Equal(theirs.before, theirs.wanted) {
		said := "The files are written anew."
		if o.Remove {
			said = "There are no lines of Sluice's to take out."
		}
		_, err := fmt.Fprintln(stdout, said)
		return err
	}
	for i, name := range theirs.names {
		before, wanted := theirs.before[i], theirs.wanted[i]
		if before == wanted {
			continue
		}
		// A link stays one.
		file, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		// The first one stays: it is the file before Sluice.
		backup := file + ".before-sluice"
		if _, err := os.Stat(backup); err != nil || !strings.Contains(before, into.BeginMark) {
			if err := replaceFile(backup, file, theirs.without[i]); err != nil {
				return err
			}
		}
		if err := replaceFile(file, file, wanted); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s is written; as it was before Sluice it is %s.\n", file, backup)
	}
	next := "Reload HAProxy."
	if !o.Remove {
		// haproxy -c binds no sockets.
		fmt.Fprintln(stdout, "HAProxy does not start without /run/sluice: have it made at each boot (tmpfiles.d), or set SLUICE_PEER and SLUICE_RUNTIME.")
		if _, err := os.Stat("/run/sluice"); err != nil {
			next = "It is NOT there now: install -d -m 2770 -g haproxy /run/sluice. Reload HAProxy then."
		}
	}
	_, err := fmt.Fprintln(stdout, next)
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

// writeTemporary writes a hidden file next to another one, for its owner alone.
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
