package api

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// The page is files without a build step. They ask the API that the same address serves, and nothing else: the headers
// forbid a browser to load or run anything from elsewhere, or to make markup of data.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy allows what the page needs. The charts set styles by the object model, which
// needs no 'unsafe-inline'; no script of the page makes markup of a string.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// pageTypes of the files, by their endings; whatever the machine's own table says.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".md":   "text/plain; charset=utf-8",
	"":      "text/plain; charset=utf-8",
}

type pageFile struct {
	content   []byte
	kind, tag string
}

// Page serves the page at "/" and its files below /page/. Any other path is 404,
// any method but GET and HEAD 405.
func Page() http.Handler {
	served := make(map[string]pageFile)
	err := fs.WalkDir(pageFiles, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := pageFiles.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		at := "/" + name
		if name == "page/index.html" {
			at = "/"
		}
		served[at] = pageFile{content, pageTypes[path.Ext(name)], `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		panic(err) // the files are in the program
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := served[r.URL.Path]
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		switch {
		case !ok:
			http.Error(w, "no such path (the page is at /, the API at /api/v1/)", http.StatusNotFound)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method "+strings.ToUpper(r.Method)+" is not allowed: use GET", http.StatusMethodNotAllowed)
			return
		}
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache") // asked about each time, and not sent again unless it is another one
		h.Set("Content-Type", f.kind)
		h.Set("ETag", f.tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}
