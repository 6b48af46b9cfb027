package haproxy

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

func shipped(t testing.TB, name string) string {
	t.Helper()
	b, err := fs.ReadFile(Files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// check runs haproxy -c and returns what it says besides that the file is valid.
func check(t testing.TB, dir, file string, env ...string) string {
	t.Helper()
	cmd := exec.Command(testkit.HAProxyPath(t), "-c", "-f", file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("haproxy -c -f %s: %v", file, err)
	}
	return strings.TrimSpace(strings.Replace(string(out), "Configuration file is valid", "", 1))
}

func TestShippedFilesAreValid(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{
		"SLUICE_BIND=[::1]:8080", "SLUICE_ORIGIN=127.0.0.1:1", "SLUICE_SPOE=127.0.0.1:9000", "SLUICE_PEER=unix@/p.sock",
		"SLUICE_CFG_DIR=" + here, "SLUICE_USER_HEADER=X-A", "SLUICE_JWT_CLAIM=a.b", "SLUICE_REFUSE_STATUS=503",
		"SLUICE_VERDICT_TIMEOUT=1s", "SLUICE_STATS=/s.sock", "SLUICE_THREADS=2", "SLUICE_MAXCONN=100",
		"SLUICE_CHECK_TIMEOUT=1s", "SLUICE_WAIT_TIMEOUT=1s", "SLUICE_LATE_TIMEOUT=1s", "SLUICE_RETRY_JITTER=1", "SLUICE_ORIGIN_MAXCONN=5", "SLUICE_HARD_STOP=1m",
		"SLUICE_BUFSIZE=32768", "SLUICE_REFUSE_BODY=problem", "SLUICE_RATE_JITTER=5",
		"SLUICE_ACCESS_LOG=json", "SLUICE_INSTANCE=rack-1/proxy", "SLUICE_METRICS=127.0.0.1:8405", "SLUICE_UNREADABLE=deny",
		"SLUICE_BASIC_CASE=exact", "SLUICE_RUNTIME=/r.sock", "SLUICE_RUNTIME_MODE=600", "SLUICE_JWT_CASE=lower", "SLUICE_HEADER_CASE=lower",
	}
	for _, row := range []struct {
		name, dir, file string
		env             []string
	}{
		{"as it is", here, "haproxy.cfg", nil},
		{"from another folder", "/", filepath.Join(here, "haproxy.cfg"), []string{"SLUICE_CFG_DIR=" + here}},
		{"everything set", "/", filepath.Join(here, "haproxy.cfg"), all},
		{"everything set, without credit", "/", filepath.Join(here, "haproxy.cfg"), append(all, "SLUICE_CREDIT=off")},
	} {
		t.Run(row.name, func(t *testing.T) {
			if said := check(t, row.dir, row.file, row.env...); said != "" {
				t.Errorf("haproxy -c says %q, want nothing to say", said)
			}
		})
	}
}

// The table at the top of haproxy.cfg is what the file does.
func TestVariableTable(t *testing.T) {
	documented := map[string]string{}
	head, _, _ := strings.Cut(shipped(t, "haproxy.cfg"), "\nglobal\n")
	for _, m := range regexp.MustCompile(`(?m)^#   (SLUICE_[A-Z_]+) +(.+?)  `).FindAllStringSubmatch(head, -1) {
		documented[m[1]] = m[2]
	}
	used := map[string]string{}
	// Files for a limit file with costs use all of them.
	files, err := files(Config{Costs: units})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`os\.getenv\("(SLUICE_[A-Z_]+)"\) or "([^"]*)"`).FindAllStringSubmatch(files["lua/costs.lua"], -1) {
		used[m[1]] = m[2]
	}
	for _, file := range []string{"haproxy.cfg", "spoe.cfg"} {
		for _, m := range regexp.MustCompile(`\$\{(SLUICE_[A-Z_]+)-([^}]*)\}`).FindAllStringSubmatch(files[file], -1) {
			if was, ok := used[m[1]]; ok && was != m[2] && m[1] != "SLUICE_BUFSIZE" {
				t.Errorf("%s has the defaults %q and %q", m[1], was, m[2])
			}
			used[m[1]] = m[2]
		}
	}
	used["SLUICE_BUFSIZE"] = "131072" // and less before HAProxy 2.7
	// Only used when set: their defaults are HAProxy's.
	used["SLUICE_INSTANCE"], used["SLUICE_METRICS"] = "this host's name", "none"
	used["SLUICE_STATS"], used["SLUICE_THREADS"], used["SLUICE_MAXCONN"] = "none", "one per CPU", "from ulimit -n"
	if diff := cmp.Diff(used, documented); diff != "" {
		t.Errorf("variables and defaults (-used +documented):\n%s", diff)
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	file, env, err := Write(dir, Config{
		Identify: "header:X-A,ip", Env: []string{"SLUICE_BIND=127.0.0.1:1", "SLUICE_HARD_STOP=1m"},
		Classes: []limits.Class{{Name: "LIST", Any: []limits.Match{{Methods: []string{"GET"}, Query: []string{"l"}}, {PathPrefix: "/l/"}}}},
		Exempt: limits.Exempt{
			Users: []string{"not here"}, Addresses: []string{"10.0.0.0/8", "::1"},
			Paths: []string{"/a", "/b/*", "/c*d", "/*"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"SLUICE_BIND=127.0.0.1:1", "SLUICE_HARD_STOP=1m", "SLUICE_CFG_DIR=" + dir}, env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if want := filepath.Join(dir, "haproxy.cfg"); file != want {
		t.Errorf("file = %s, want %s", file, want)
	}
	more := map[string]string{
		"exempt-addresses.lst": "10.0.0.0/8\n::1\n",
		"exempt-paths.lst":     "/a\n/c*d\n",
		"exempt-prefixes.lst":  "/b/\n/\n",
	}
	for _, name := range written[1:] {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != shipped(t, name)+more[name] {
			t.Errorf("%s: %v, or not as shipped, with %q", name, err, more[name])
		}
	}
	if foreign := Foreign(dir); len(foreign) > 0 {
		t.Errorf("Foreign = %q after Write, want none", foreign)
	}
}

// Files of another version are known by these lines.
func TestFirstLines(t *testing.T) {
	for name, want := range map[string]string{
		"haproxy.cfg":             `# Sluice in HAProxy 2.6 to 3.4: finds the user and the class of each request, admits by itself users who have credit, refuses by itself`,
		"spoe.cfg":                `# Sluice's questions to the agent. One message for each request that HAProxy neither`,
		"exempt-addresses.lst":    `# Requests from these addresses are measured, as the user ~exempt, but not`,
		"exempt-paths.lst":        `# Requests for these paths are measured, as the user ~exempt, but not limited.`,
		"exempt-prefixes.lst":     `# Requests for paths that begin like this are measured, as the user ~exempt, but`,
		"lua/bandwidth.lua":       `-- Holds each user to their share of bandwidth, down (response bodies) and up (request`,
		"lua/bandwidth_clock.lua": `-- The clock that paces one user's bytes in one direction: the pure part of`,
		"lua/costs.lua":           `-- Reads what answers say their requests cost, and tells the agent by how much that differs from what was charged.`,
		"lua/cost_queue.lua":      `-- What one thread of HAProxy has to tell the agent of costs: the pure part of costs.lua.`,
		"lua/cost_scanner.lua":    `-- Finds a number in JSON as it comes, in pieces of any size: the pure part of costs.lua. It keeps where it is,`,
		"lua/local_addresses.lua": `-- Refuses addresses that other machines can reach, before HAProxy starts: neither peers`,
	} {
		if got, _, _ := strings.Cut(shipped(t, name), "\n"); got != want {
			t.Errorf("%s begins with %q, want %q: files that were written before would be somebody else's", name, got, want)
		}
	}
}

func TestForeign(t *testing.T) {
	for _, row := range []struct {
		name string
		make func(dir string) error
		want []string
	}{
		{"nothing", func(string) error { return nil }, nil},
		{"no folder", os.RemoveAll, nil},
		{"a file of another name", func(dir string) error { return os.WriteFile(filepath.Join(dir, "own.pem"), nil, 0o600) }, nil},
		{"another's Lua", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "lua"), 0o700), os.WriteFile(filepath.Join(dir, "lua", "costs.lua"), nil, 0o600))
		}, []string{"lua/costs.lua"}},
		{"a link to nowhere", func(dir string) error { return os.Symlink("nowhere", filepath.Join(dir, "exempt-paths.lst")) }, []string{"exempt-paths.lst"}},
		{"a folder with our file's name", func(dir string) error { return os.Mkdir(filepath.Join(dir, "spoe.cfg"), 0o700) }, []string{"spoe.cfg"}},
		{"another's haproxy.cfg", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte("global\n"), 0o600)
		}, []string{"haproxy.cfg"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := row.make(dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, Foreign(dir)); diff != "" {
				t.Errorf("Foreign (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWriteErrors(t *testing.T) {
	for want, c := range map[string]Config{
		`haproxy configuration: class "a": want 1 to 32 of A-Z, 0-9 and _, the first a letter`:                                                 {Classes: []limits.Class{{Name: "a"}}},
		`haproxy configuration: exempt address "10.0.0.0/33": want an address or a network such as 10.0.0.0/8`:                                 {Exempt: limits.Exempt{Addresses: []string{"10.0.0.0/33"}}},
		`haproxy configuration: exempt address "fe80::1%lo": want an address or a network such as 10.0.0.0/8`:                                  {Exempt: limits.Exempt{Addresses: []string{"fe80::1%lo"}}},
		`haproxy configuration: exempt path "/a b": want a path as clients write it, from its first / on`:                                      {Exempt: limits.Exempt{Paths: []string{"/a b"}}},
		`haproxy configuration: exempt path "/a\nb": want a path as clients write it, from its first / on`:                                     {Exempt: limits.Exempt{Paths: []string{"/a\nb"}}},
		`haproxy configuration: exempt path "*": want a path as clients write it, from its first / on`:                                         {Exempt: limits.Exempt{Paths: []string{"*"}}},
		`haproxy configuration: identify "x": no identifier "x"; valid are header:NAME, s3, jwt:CLAIM, basic, ip and auto`:                     {Identify: "x"},
		`haproxy configuration: identify "header: ": "" cannot be the parameter of header; write it like header:X-User or header:X-User:lower`: {Identify: "header: "},
	} {
		if file, _, err := Write(t.TempDir(), c); err == nil || err.Error() != want {
			t.Errorf("Write(%+v) = %q, %v, want the error %s", c, file, err, want)
		}
	}
}
