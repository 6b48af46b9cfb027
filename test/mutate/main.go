// Command mutate says how many small mistakes in a package its tests find. It compiles the
// package once with all mistakes in it, of which an environment variable chooses one: a mistake
// costs a run of the tests, and no compilation.
//
// Each mistake is first shown to the tests that are fast, and only if they miss it to all of them.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// slow are the tests that are shown only what the others miss.
var slow = flag.String("slow", "^TestCluster|CatchUpInTime$|^TestRestMissesNothing$|^TestAgentReportsAreBounded$|FindsMistakes$|Invariants$|^TestPlacesOf|^TestByDefault$", "tests that run only for what the others miss")

var (
	list  = flag.Bool("list", false, "list the mistakes, and try none")
	every = flag.Int("every", 1, "try only one in so many mistakes")
	where = flag.String("where", "", "try only the mistakes in lines such as agent.go:12 that match this `pattern`")
)

func main() {
	flag.Parse()
	survived := 0
	for _, folder := range flag.Args() {
		n, err := mutate(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			os.Exit(2)
		}
		survived += n
	}
}

// mutate tries all mistakes in the package of a folder, and prints those that survive.
func mutate(folder string) (survived int, err error) {
	at, err := regexp.Compile(*where)
	if err != nil {
		return 0, err
	}
	p, err := load(folder)
	if err != nil {
		return 0, err
	}
	if *list {
		for i, m := range p.mistakes {
			fmt.Printf("%d %s: %s\n", i+1, m.at, m.what)
		}
		return 0, nil
	}
	temp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temp)
	binary, err := p.compile(temp)
	if err != nil {
		return 0, err
	}
	t := tests{folder: folder, binary: binary}
	if err := t.time(); err != nil {
		return 0, err
	}
	began := time.Now()
	n := 0
	for i, m := range p.mistakes {
		if i%*every != 0 || !at.MatchString(m.at) {
			continue
		}
		n++
		if t.find(i+1, *slow, t.fast) || t.find(i+1, "", t.all) {
			continue
		}
		survived++
		fmt.Printf("%s: %s\n", m.at, m.what)
	}
	fmt.Printf("%s: %d of %d mistakes are found, %.1f %%, in %v\n", folder, n-survived, n, 100*float64(n-survived)/float64(max(1, n)), time.Since(began).Round(time.Second))
	return survived, nil
}

// compile compiles the tests of the package with all mistakes in it.
func (p *mutated) compile(temp string) (binary string, err error) {
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for name, text := range p.files {
		replaced := filepath.Join(temp, strconv.Itoa(len(overlay.Replace))+".go")
		overlay.Replace[name] = replaced
		if err := os.WriteFile(replaced, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	file := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(temp, "tests")
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", file, "-o", binary, ".")
	build.Dir = p.folder
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
}

// tests are those of a package.
type tests struct {
	folder, binary string
	fast, all      time.Duration // how long they may take before they hang
}

// time runs the tests without a mistake.
func (t *tests) time() error {
	for _, run := range []struct {
		skip string
		took *time.Duration
	}{{*slow, &t.fast}, {"", &t.all}} {
		began := time.Now()
		if t.find(0, run.skip, 5*time.Minute) {
			return fmt.Errorf("the tests of %s fail without a mistake", t.folder)
		}
		// The machine has other work, too.
		*run.took = 10*time.Second + 5*time.Since(began)
	}
	return nil
}

// find reports whether tests fail by a mistake, or never end.
func (t *tests) find(mistake int, skip string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// A mistake may ask for memory for ever.
	run := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 6000000; exec "$@"`, "sh", t.binary,
		"-test.failfast", "-test.skip", cmp.Or(skip, "^$"), "-rapid.nofailfile")
	run.Dir = t.folder
	run.Env = append(os.Environ(), variable+"="+strconv.Itoa(mistake), "GOMAXPROCS=1", "RAPID_SEED=1")
	out, err := run.CombinedOutput()
	return err != nil || strings.Contains(string(out), "\nFAIL")
}
