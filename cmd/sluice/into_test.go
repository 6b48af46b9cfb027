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
	for _, want := range []string{"is written; as it was before it is", "There are no lines of Sluice's to take out."} {
		if code, shown, told := run(append(args, "--remove")...); code != 0 || !strings.Contains(shown, want) {
			t.Errorf("--remove: code %d, %s%s, want %q", code, shown, told, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("hidden files are left: %q, %v", left, err)
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
