package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// programs writes programs of every architecture, which need not run.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, architecture := range architectures {
		for _, i := range images {
			if err := os.MkdirAll(filepath.Join(dir, architecture), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, architecture, i.program), []byte(i.program+" for "+architecture), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// made returns the files of a build.
func made(t *testing.T) map[string][]byte {
	t.Helper()
	for name, value := range map[string]string{"VERSION": "1.2.3", "REVISION": "abc", "SOURCE_DATE_EPOCH": "1700000000"} {
		t.Setenv(name, value)
	}
	out := t.TempDir()
	if err := run(out, programs(t)); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, i := range images {
		b, err := os.ReadFile(filepath.Join(out, i.name+"_1.2.3.oci.tar"))
		if err != nil {
			t.Fatal(err)
		}
		files[i.name] = b
	}
	return files
}

// contents are the files of a tar, with what their headers say.
func contents(t *testing.T, from io.Reader) (files map[string]string, heads map[string]string) {
	t.Helper()
	files, heads = map[string]string{}, map[string]string{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, heads
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], heads[h.Name] = string(b), fmt.Sprintf("%o %d:%d %d", h.Mode, h.Uid, h.Gid, h.ModTime.Unix())
	}
}

func TestTwoBuildsAreEqual(t *testing.T) {
	first, second := made(t), made(t)
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("two builds of %s differ", name)
		}
	}
}

// unpack writes the files of an image layout into a folder, and compares blobs with their names.
func unpack(t *testing.T, file []byte) layout.Path {
	t.Helper()
	dir := t.TempDir()
	files, _ := contents(t, bytes.NewReader(file))
	for name, text := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(text))
		if digest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && digest != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has another digest", name)
		}
	}
	return layout.Path(dir)
}

func TestImages(t *testing.T) {
	for name, file := range made(t) {
		var top v1.IndexManifest
		dir := unpack(t, file)
		b, err := os.ReadFile(filepath.Join(string(dir), "index.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &top); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"io.containerd.image.name": "docker.io/library/" + name + ":1.2.3", "org.opencontainers.image.ref.name": "1.2.3"}
		if len(top.Manifests) != 1 || !reflect.DeepEqual(top.Manifests[0].Annotations, want) {
			t.Fatalf("%s has the index %s, want one entry with the annotations %v", name, b, want)
		}
		index, err := dir.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		if index, err = index.ImageIndex(top.Manifests[0].Digest); err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		for n, architecture := range architectures {
			if p := manifest.Manifests[n].Platform; p.String() != "linux/"+architecture {
				t.Errorf("%s: platform %d is %v, want %s", name, n, p, architecture)
			}
			one, err := index.Image(manifest.Manifests[n].Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, name, architecture, one)
		}
	}
}

func checkImage(t *testing.T, name, architecture string, one v1.Image) {
	t.Helper()
	config, err := one.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if got, want := fmt.Sprint(config.OS, config.Architecture, config.RootFS.Type, c.User, c.Entrypoint, c.Labels["org.opencontainers.image.version"]),
		fmt.Sprint("linux", architecture, "layers", "65532:65532", []string{"/usr/bin/" + name}, "1.2.3"); got != want {
		t.Errorf("the configuration of %s says %s, want %s", name, got, want)
	}
	layers, err := one.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files, heads := map[string]string{}, map[string]string{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		more, moreHeads := contents(t, r)
		for n := range more {
			files[n], heads[n] = more[n], moreHeads[n]
		}
	}
	program := strings.TrimPrefix(name, "sluice-")
	if got := files["usr/bin/"+name]; got != program+" for "+architecture {
		t.Errorf("the program of %s is %q", name, got)
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(files["etc/ssl/certs/ca-certificates.crt"])) {
		t.Errorf("%s has no authorities", name)
	}
	wanted := map[string]string{"usr/": "755 0:0", "usr/bin/" + name: "755 0:0", "etc/passwd": "644 0:0"}
	switch name {
	case "sluice-spoa":
		wanted["run/sluice/"] = "2770 65532:65532"
	case "sluice":
		wanted["var/lib/sluice-haproxy/"] = "755 65532:65532"
	}
	for path, want := range wanted {
		if want += " 1700000000"; heads[path] != want {
			t.Errorf("%s of %s is %q, want %q", path, name, heads[path], want)
		}
	}
}
