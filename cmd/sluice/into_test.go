package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
)

var update = flag.Bool("update", false, "write testdata/into/*.golden anew")

// run runs the command, and returns what it prints.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = runCommand(args, &out, &err)
	return code, out.String(), err.String()
}

// ofBlocks are the lines of our blocks in a diff.
var ofBlocks = regexp.MustCompile(`(?m)(^\+ *# sluice: begin).*\n(?:\+.*\n)*?(\+ *# sluice: end.*\n)`)

// said is what HAProxy says about a configuration with haproxy -c, and whether it takes it.
func said(t *testing.T, file string) (string, bool) {
	t.Helper()
	out, err := exec.Command(testkit.HAProxyPath(t), "-c", "-f", file).CombinedOutput()
	return string(out), err == nil
}

// What is put into configurations as people have them stands where it should, is taken by HAProxy without another word than before, does
// not change when it is put there again, and is taken out without a trace.
func TestIntoConfigurations(t *testing.T) {
	for _, row := range []struct{ file, frontend string }{
		{"debian.cfg", "web"},
		{"manual-frontend.cfg", "http-in"},
		{"manual-crlf.cfg", "http-in"},
		{"manual-listen.cfg", "http-in"},
		{"tls.cfg", "web"},
		{"peers.cfg", "web"},
		{"spoe.cfg", "web"},
	} {
		t.Run(row.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "into", row.file))
			if err != nil {
				t.Fatal(err)
			}
			putIntoAndOut(t, row.file, string(text), row.frontend)
		})
	}
}

// As an ingress controller writes them: fifty frontends, all of which are limited.
func TestIntoFiftyFrontends(t *testing.T) {
	var b strings.Builder
	b.WriteString("global\n    maxconn 1000\n\ndefaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n")
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("ns%d-svc", i))
		fmt.Fprintf(&b, "\nfrontend ns%d-svc\n    bind 127.0.0.1:%d\n    http-request set-var(txn.host) hdr(host),field(1,:)\n    acl host_%d var(txn.host) -m str -i host%d.example\n    use_backend ns%d if host_%d\n    default_backend none\n", i, 20000+i, i, i, i, i)
	}
	for i := range 50 {
		fmt.Fprintf(&b, "\nbackend ns%d\n    server s 127.0.0.1:%d\n", i, 30000+i)
	}
	b.WriteString("\nbackend none\n    http-request return status 404\n")
	putIntoAndOut(t, "", b.String(), names...)
}

// In each of these, lines of ours in the wrong place make HAProxy warn, and with zero-warning refuse, or refuse anyway.
func TestIntoOrders(t *testing.T) {
	const process = "global\n    zero-warning\ndefaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n"
	const app = "\nbackend app\n    server a 127.0.0.1:9000\n"
	for _, row := range []struct{ name, text string }{
		{"redirect", "frontend web\n    bind 127.0.0.1:8080\n    redirect scheme https code 301 if !{ path_beg /.well-known/ }\n    use_backend app if { path /b }\n    default_backend app" + app},
		{"redirect alone", "frontend web\n    bind 127.0.0.1:8080\n    redirect scheme https code 301 if !{ path_beg /.well-known/ }\n    default_backend app" + app},
		{"use-server", "listen web\n    bind 127.0.0.1:8080\n    use-server b if { path /b }\n    server a 127.0.0.1:9000\n    server b 127.0.0.1:9001\n"},
		{"default_backend above", "frontend web\n    bind 127.0.0.1:8080\n    default_backend app\n    tcp-request connection reject if { src 192.0.2.1 }\n    monitor fail if { nbsrv(app) lt 1 }" + app},
		{"cache and compression", "frontend web\n    bind 127.0.0.1:8080\n    compression algo gzip\n    http-request cache-use pictures\n    http-response cache-store pictures\n" +
			"    default_backend app" + app + "cache pictures\n    total-max-size 4\n"},
		{"http-request behind default_backend", "frontend web\n    bind 127.0.0.1:8080\n    default_backend app\n    http-request add-header Forwarded \"for=%ci\"" + app},
	} {
		t.Run(row.name, func(t *testing.T) { putIntoAndOut(t, "", process+row.text, "web") })
	}
}

func putIntoAndOut(t *testing.T, golden, before string, frontends ...string) {
	t.Helper()
	dir := t.TempDir()
	prepareFiles(t, dir)
	file, folder := filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "sluice")
	if err := os.WriteFile(file, []byte(before), 0o640); err != nil {
		t.Fatal(err)
	}
	saidBefore, valid := said(t, file)
	if !valid {
		t.Fatalf("haproxy -c refuses it as it is:\n%s", saidBefore)
	}
	args := []string{"haproxy", "--into", file, "--identify", "header,ip", "--limits", filepath.Join("..", "..", "config", "limits.yaml"), "--folder", folder, "--haproxy", testkit.HAProxyPath(t)}
	named := args
	for _, f := range frontends {
		named = append(named, "--frontend", f)
	}
	code, shown, told := run(named...)
	if code != 0 {
		t.Fatalf("code %d: %s", code, told)
	}
	if golden != "" {
		checkGolden(t, golden, strings.NewReplacer(file, golden, folder, "/etc/sluice/haproxy").Replace(told+ofBlocks.ReplaceAllString(shown, "$1 …\n$2")))
	}
	if now, _ := os.ReadFile(file); string(now) != before {
		t.Error("it is changed without --write")
	}
	if code, _, told := run(append(named, "--write")...); code != 0 {
		t.Fatalf("--write: code %d: %s", code, told)
	}
	if saidNow, valid := said(t, file); !valid || saidNow != saidBefore {
		t.Errorf("haproxy -c now says %q, valid: %t, want as before: %q", saidNow, valid, saidBefore)
	}
	checkFile(t, file+".before-sluice", before)
	// Again, and with the frontends that have the lines already.
	if code, shown, told := run(append(args, "--write")...); code != 0 || !strings.HasPrefix(shown, file+" stays as it is.\n") {
		t.Errorf("a second time: code %d, %s%s, want that it stays as it is", code, shown, told)
	}
	if code, _, told := run("haproxy", "--into", file, "--remove", "--haproxy", testkit.HAProxyPath(t)); code != 0 {
		t.Fatalf("--remove: code %d: %s", code, told)
	}
	checkFile(t, file, before)
}

// Paths of "default-path config" begin in the folder of the file, also while the result is checked. What is not there is not taken out.
func TestIntoWithPathsFromItsFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "haproxy.cfg")
	for name, text := range map[string]string{
		file: "global\n    default-path config\ndefaults\n    mode http\n    errorfile 503 503.http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n" +
			"frontend web\n    bind 127.0.0.1:20000\n",
		filepath.Join(dir, "503.http"): "HTTP/1.0 503 Full\r\nContent-Length: 0\r\n\r\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"haproxy", "--into", file, "--identify", "ip", "--haproxy", testkit.HAProxyPath(t)}
	if code, _, told := run(append(args, "--frontend", "web", "--write", "--folder", filepath.Join(dir, "sluice"))...); code != 0 {
		t.Errorf("--write: code %d: %s", code, told)
	}
	for _, want := range []string{"is written; as it was before Sluice it is", "There are no lines of Sluice's to take out."} {
		if code, shown, told := run(append(args, "--remove")...); code != 0 || !strings.Contains(shown, want) {
			t.Errorf("--remove: code %d, %s%s, want %q", code, shown, told, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("hidden files are left: %q, %v", left, err)
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
}

// Frontends of several files are limited at once. Defaults of the first file do not hold for backends of ours, which would not work
// with these.
func TestIntoSeveralFiles(t *testing.T) {
	dir, folder := t.TempDir(), filepath.Join(t.TempDir(), "sluice")
	files := map[string]string{
		"00-global.cfg":   "global\n    zero-warning\n",
		"10-defaults.cfg": "defaults\n    mode http\n    option forwardfor\n    default-server check inter 5s\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n",
		"20-web.cfg":      "frontend web\n    bind 127.0.0.1:8080\n    default_backend app\nbackend app\n    server a 127.0.0.1:9000\n",
		"30-api.cfg":      "frontend api\n    bind 127.0.0.1:8180\n    default_backend app\n",
		"40-other.text":   "no configuration",
	}
	writeFiles(t, dir, files)
	args := []string{"haproxy", "--identify", "ip", "--into", dir + "/./20-web.cfg", "--config", dir + "/", "--folder", folder, "--haproxy", testkit.HAProxyPath(t)}
	code, shown, told := run(append(args, "--frontend", "web", "--frontend", "api", "--write")...)
	if code != 0 || !strings.Contains(shown, "\nHAProxy does not start without /run/sluice: ") {
		t.Fatalf("--write: code %d: %s%s, want that it tells about the folder of sockets", code, told, shown)
	}
	if said, valid := said(t, dir); !valid {
		t.Errorf("haproxy -c refuses the result: %s", said)
	}
	for name, text := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if changed, want := string(got) != text, name >= "10" && name < "40"; changed != want {
			t.Errorf("%s is changed: %t, want %t", name, changed, want)
		}
	}
	// Without --frontend: those of all files that have lines.
	if code, shown, told := run(append(args, "--write")...); code != 0 || strings.Count(shown, " stays as it is.\n") != 4 {
		t.Errorf("a second time: code %d, %s%s, want that all stay as they are", code, shown, told)
	}
	if code, _, told := run(append(args, "--remove")...); code != 0 {
		t.Fatalf("--remove: code %d: %s", code, told)
	}
	for name, text := range files {
		checkFile(t, filepath.Join(dir, name), text)
	}
}

// Sticky counters that a configuration uses itself. HAProxy has more than three from 2.8 on.
func TestIntoTakenCounters(t *testing.T) {
	const text = "global\n    zero-warning\ndefaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n" +
		"frontend web\n    bind 127.0.0.1:8080\n    http-request track-sc0 src table rates\n    http-request deny deny_status 403 if { sc0_http_req_rate gt 20 }\n" +
		"backend rates\n    stick-table type ip size 100k expire 30s store http_req_rate(10s)\n"
	if v := testkit.HAProxyVersion(t); v != "2.6" && !strings.HasPrefix(v, "2.6.") {
		putIntoAndOut(t, "", text, "web")
		return
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"haproxy.cfg": text})
	file := filepath.Join(dir, "haproxy.cfg")
	code, _, told := run("haproxy", "--identify", "ip", "--into", file, "--frontend", "web", "--write", "--folder", filepath.Join(dir, "sluice"), "--haproxy", testkit.HAProxyPath(t))
	if want := file + ":10: cannot coexist: sticky counter 0 is Sluice's"; code != 1 || !strings.HasPrefix(told, want) {
		t.Errorf("code %d, told %q, want 1, %q", code, told, want)
	}
}

// What HAProxy refuses without the lines as well is not blamed on them, and only what it says of them is shown.
func TestIntoWhatHAProxySays(t *testing.T) {
	const rest = "defaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\nfrontend web\n    bind 127.0.0.1:8080\n"
	for _, row := range []struct {
		name, text, haproxy string
		code                int
		want                string
	}{
		{"refused as it is", "global\n    nonsense\n" + rest, "", 1, "without Sluice's lines, so nothing is written. It may want the environment"},
		{"warnings as before", "global\n" + rest + "    redirect prefix /a if FALSE\n    http-request set-header A b\n", "", 1, "this http-request rule stands behind redirect"},
		{"a warning as before", "global\n" + rest + "    use_backend b if FALSE\n    redirect prefix /a if FALSE\nbackend b\n", "", 0, ""},
		{"environment forgotten", "global\n    resetenv PATH\n" + rest, "", 0, ""},
		{"a table of ours in their rules", "global\n" + rest + "    http-request deny if { src,table_gpt0(sluice/block) gt 0 }\n", "", 0, ""},
		{"no program", "global\n" + rest, "/nonexistent/haproxy", 1, "sluice haproxy: fork/exec /nonexistent/haproxy: no such file or directory"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"haproxy.cfg": row.text})
			if row.haproxy == "" {
				row.haproxy = testkit.HAProxyPath(t)
			}
			code, _, told := run("haproxy", "--identify", "ip", "--into", filepath.Join(dir, "haproxy.cfg"), "--frontend", "web", "--write", "--folder", filepath.Join(dir, "sluice"), "--haproxy", row.haproxy)
			if code != row.code || !strings.Contains(told, row.want) || strings.Contains(told, "[WARNING]") {
				t.Errorf("code %d, want %d; told %q, want %q and no warning of HAProxy", code, row.code, told, row.want)
			}
		})
	}
}

// The backup is the file before the first lines, however often they are changed.
func TestIntoKeepsTheFirstBackup(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "haproxy.cfg")
	const text = "defaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\nfrontend web\n    bind 127.0.0.1:8080\nfrontend api\n    bind 127.0.0.1:8180\n"
	writeFiles(t, dir, map[string]string{"haproxy.cfg": text})
	for _, change := range [][]string{{"--write", "--frontend", "web"}, {"--write", "--frontend", "web", "--frontend", "api"}, {"--remove"}} {
		if code, _, told := run(append([]string{"haproxy", "--identify", "ip", "--into", file, "--folder", filepath.Join(dir, "sluice"), "--haproxy", testkit.HAProxyPath(t)}, change...)...); code != 0 {
			t.Fatalf("%q: code %d: %s", change, code, told)
		}
		checkFile(t, file+".before-sluice", text)
	}
	// Another one is not before Sluice.
	writeFiles(t, dir, map[string]string{"haproxy.cfg": text + "backend b\n"})
	if code, _, told := run("haproxy", "--identify", "ip", "--into", file, "--folder", filepath.Join(dir, "sluice"), "--haproxy", testkit.HAProxyPath(t), "--write", "--frontend", "web"); code != 0 {
		t.Fatalf("code %d: %s", code, told)
	}
	checkFile(t, file+".before-sluice", text+"backend b\n")
}

// A rule below the block is found, and the block moves.
func TestIntoCheck(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"haproxy.cfg": "defaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\nfrontend web\n    bind 127.0.0.1:8080\n"})
	file := filepath.Join(dir, "haproxy.cfg")
	args := []string{"haproxy", "--identify", "ip", "--into", file, "--folder", filepath.Join(dir, "sluice"), "--haproxy", testkit.HAProxyPath(t)}
	for _, step := range []struct {
		flags []string
		rule  string
		code  int
	}{
		{[]string{"--check", "--frontend", "web"}, "", 1},
		{[]string{"--write", "--frontend", "web"}, "", 0},
		{[]string{"--check"}, "", 0},
		{[]string{"--check"}, "    http-request deny if { path /admin }\n", 1},
		{[]string{"--write"}, "", 0},
		{[]string{"--check"}, "", 0},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		writeFiles(t, dir, map[string]string{"haproxy.cfg": string(text) + step.rule})
		if code, _, told := run(append(args, step.flags...)...); code != step.code {
			t.Errorf("%q, after the rule %q: code %d, want %d: %s", step.flags, step.rule, code, step.code, told)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "bind 127.0.0.1:8080\n    http-request deny if { path /admin }\n    # sluice: begin") || !strings.Contains(string(text), "http-request rules belong above") {
		t.Errorf("want the rule above the block, and a mark that says so:\n%s", text)
	}
}

// prepareFiles writes what some of the configurations read.
func prepareFiles(t *testing.T, dir string) {
	t.Helper()
	cert, key := testkit.NewAuthority(t, dir).Issue(t, dir, time.Now().Add(time.Hour), "127.0.0.1")
	spoe, err := os.ReadFile(filepath.Join("testdata", "into", "coraza.spoe"))
	if err != nil {
		t.Fatal(err)
	}
	var pem []byte
	for _, name := range []string{cert, key} {
		part, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pem = append(pem, part...)
	}
	for name, text := range map[string][]byte{"cert.pem": pem, "coraza.spoe": spoe} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CERT", filepath.Join(dir, "cert.pem"))
	t.Setenv("DIR", dir)
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	// What is said of HAProxy itself is another thing for each one.
	got = regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(testkit.HAProxyPath(t))+`: .*\n`).ReplaceAllString(got, "")
	// How long a block is changes with its rules.
	got = regexp.MustCompile(`(?m)^@@ -(\d+),.*$`).ReplaceAllString(got, "@@ line $1 @@")
	file := filepath.Join("testdata", "into", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func checkFile(t *testing.T, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o640 {
		t.Errorf("%s has mode %o, want that of the first one, 640", file, info.Mode().Perm())
	}
}

// What cannot be beside Sluice's lines is named with its line, and nothing is written.
func TestIntoWhatCannotCoexist(t *testing.T) {
	file := filepath.Join("testdata", "into", "clashes.cfg")
	code, shown, told := run("haproxy", "--into", file, "--identify", "ip", "--frontend", "web", "--frontend", "mail", "--frontend", "none", "--frontend", "nowhere",
		"--write", "--folder", t.TempDir(), "--haproxy", testkit.HAProxyPath(t))
	if code != 1 || shown != "" {
		t.Errorf("code %d, shown %q, want 1 and nothing", code, shown)
	}
	checkGolden(t, "clashes.cfg", told)
}
