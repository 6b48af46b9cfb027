package api

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func askPage(t *testing.T, method, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Page().ServeHTTP(w, r)
	return w.Result()
}

func TestPagePaths(t *testing.T) {
	for _, tt := range []struct {
		name, method, path string
		status             int
		kind               string
	}{
		{"the page", "GET", "/", 200, "text/html; charset=utf-8"},
		{"the page's head", "HEAD", "/", 200, "text/html; charset=utf-8"},
		{"a module", "GET", "/page/main.js", 200, "text/javascript; charset=utf-8"},
		{"the style sheet", "GET", "/page/page.css", 200, "text/css; charset=utf-8"},
		{"the charts", "GET", "/page/uplot/uPlot.iife.min.js", 200, "text/javascript; charset=utf-8"},
		{"the charts' licence", "GET", "/page/uplot/LICENSE", 200, "text/plain; charset=utf-8"},
		{"the page by its file's name", "GET", "/page/index.html", 404, ""},
		{"a folder", "GET", "/page/uplot/", 404, ""},
		{"the folder of all", "GET", "/page/", 404, ""},
		{"this package's source", "GET", "/page/page.go", 404, ""},
		{"out of the folder", "GET", "/page/../page/main.js", 404, ""},
		{"another path", "GET", "/favicon.ico", 404, ""},
		{"another method", "POST", "/", 405, ""},
	} {
		res := askPage(t, tt.method, tt.path)
		if res.StatusCode != tt.status || tt.kind != "" && res.Header.Get("Content-Type") != tt.kind {
			t.Errorf("%s: %s %s = %d %q, want %d %q", tt.name, tt.method, tt.path, res.StatusCode, res.Header.Get("Content-Type"), tt.status, tt.kind)
		}
		if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options = %q, want nosniff", tt.name, got)
		}
	}
}

// The policy allows this server's own pageFiles, and no script or style in the markup.
func TestPagePolicy(t *testing.T) {
	got := askPage(t, "GET", "/").Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(got, want) {
			t.Errorf("Content-Security-Policy = %q, want %q in it", got, want)
		}
	}
	if strings.Contains(got, "unsafe") || strings.Contains(got, "http") {
		t.Errorf("Content-Security-Policy = %q, want nothing unsafe or elsewhere", got)
	}
}

// A browser asks each time and is sent only what has changed.
func TestNotSentTwice(t *testing.T) {
	for _, path := range []string{"/", "/page/main.js"} {
		tag := askPage(t, "GET", path).Header.Get("ETag")
		if tag == "" {
			t.Fatalf("%s has no ETag", path)
		}
		if got := askPage(t, "GET", path, "If-None-Match", tag).StatusCode; got != http.StatusNotModified {
			t.Errorf("%s with its ETag: %d, want 304", path, got)
		}
		if got := askPage(t, "GET", path, "If-None-Match", `"another"`).StatusCode; got != http.StatusOK {
			t.Errorf("%s with another ETag: %d, want 200", path, got)
		}
		if got := askPage(t, "GET", path).Header.Get("Cache-Control"); got != "no-cache" {
			t.Errorf("Cache-Control of %s = %q, want no-cache", path, got)
		}
	}
}

var (
	address = regexp.MustCompile(`(?:src|href)="([^"]*)"`)
	imports = regexp.MustCompile(`from "\./([^"]+)"`)
	markup  = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc`)
)

// Every file that the page names is served, and it names no other server.
func TestFilesAreThere(t *testing.T) {
	index, err := pageFiles.ReadFile("page/index.html")
	testkit.Must(t, err)
	named := 0
	for _, m := range address.FindAllStringSubmatch(string(index), -1) {
		switch to := m[1]; {
		case strings.HasPrefix(to, "data:"), strings.HasPrefix(to, "#"), to == "metrics", strings.HasPrefix(to, "api/"):
		case strings.HasPrefix(to, "page/"):
			named++
			if got := askPage(t, "GET", "/"+to).StatusCode; got != 200 {
				t.Errorf("the page names %s: %d, want 200", to, got)
			}
		default:
			t.Errorf("the page names %s, want only its own files", to)
		}
	}
	if named < 5 {
		t.Errorf("the page names %d files, want 5 at least", named)
	}
	if strings.Contains(string(index), "<style") || strings.Contains(string(index), " style=") || strings.Contains(string(index), "onclick") {
		t.Error("the page has style or script in its markup, which the policy forbids")
	}
}

// No module makes markup of a string, or imports what is not there.
func TestModules(t *testing.T) {
	modules, err := fs.Glob(pageFiles, "page/*.js")
	if err != nil || len(modules) < 10 {
		t.Fatalf("modules: %q, %v", modules, err)
	}
	for _, name := range modules {
		content, err := pageFiles.ReadFile(name)
		testkit.Must(t, err)
		if m := markup.Find(content); m != nil {
			t.Errorf("%s has %s: data may become markup", name, m)
		}
		for _, m := range imports.FindAllSubmatch(content, -1) {
			if got := askPage(t, "GET", "/page/"+string(m[1])).StatusCode; got != 200 {
				t.Errorf("%s imports %s: %d, want 200", name, m[1], got)
			}
		}
	}
}

// The files of uPlot are those that its README says they are.
func TestCharts(t *testing.T) {
	readme, err := pageFiles.ReadFile("page/uplot/README.md")
	testkit.Must(t, err)
	for _, name := range []string{"uPlot.iife.min.js", "uPlot.min.css"} {
		content, err := pageFiles.ReadFile("page/uplot/" + name)
		testkit.Must(t, err)
		if sum := fmt.Sprintf("%x", sha256.Sum256(content)); !strings.Contains(string(readme), sum) {
			t.Errorf("uplot/README.md does not say that %s has the sum %s", name, sum)
		}
	}
}
