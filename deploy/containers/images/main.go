// Command images makes the OCI images of one version, without a daemon and from nothing but programs that are built already:
//
//	images OUT PROGRAMS     PROGRAMS/ARCHITECTURE/{sluice,spoa,polygen}; OUT gets a tar of each image, for all architectures
//
// VERSION, REVISION and SOURCE_DATE_EPOCH are in the environment. The same programs make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the number that programs run as. It has no name outside the images, and no rights.
const user = 65532

type image struct {
	name, program, title string
	// A volume that is mounted at folder, and is new, gets the folder's owner and mode.
	folder string
	mode   int64
}

var images = []image{
	{"sluice-spoa", "spoa", "Sluice's agent beside a HAProxy", "run/sluice", 0o2770},
	{"sluice-polygen", "polygen", "Sluice's policy generator", "", 0},
	{"sluice", "sluice", "The command sluice, which checks limit files and writes HAProxy's configuration", "var/lib/sluice-haproxy", 0o755},
}

var architectures = []string{"amd64", "arm64"}

// version is what all images of a build have in common.
type version struct {
	number, revision string
	time             time.Time
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: images OUT PROGRAMS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(out, programs string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	v := version{os.Getenv("VERSION"), os.Getenv("REVISION"), time.Unix(seconds, 0).UTC()}
	for _, i := range images {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, architecture := range architectures {
			program, err := os.ReadFile(filepath.Join(programs, architecture, i.program))
			if err != nil {
				return err
			}
			one, err := v.build(i, architecture, program)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", i.name, architecture, err)
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
		}
		if err := v.write(filepath.Join(out, fmt.Sprintf("%s_%s.oci.tar", i.name, v.number)), i.name, index); err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
	}
	return nil
}

// build makes the image of one architecture.
func (v version) build(i image, architecture string, program []byte) (v1.Image, error) {
	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		// What limits the others cannot be said in the file.
		if root.Constraint == nil {
			_ = pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	passwd := fmt.Appendf(nil, "sluice:x:%d:%d::/nonexistent:/sbin/nologin\n", user, user)
	base := []entry{
		{"etc/passwd", 0o644, 0, passwd},
		{"etc/group", 0o644, 0, fmt.Appendf(nil, "sluice:x:%d:\n", user)},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, certificates.Bytes()},
	}
	if i.folder != "" {
		base = append(base, entry{i.folder, i.mode, user, nil})
	}
	adds := []mutate.Addendum{}
	for _, part := range []struct {
		comment string
		entries []entry
	}{{"user and authorities of TLS", base}, {"the program", []entry{{"usr/bin/" + i.name, 0o755, 0, program}}}} {
		layer, err := v.layer(part.entries)
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: v.time}, CreatedBy: "images", Comment: part.comment}})
	}
	config := &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Created: v1.Time{Time: v.time}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{"/usr/bin/" + i.name},
			Env: []string{"PATH=/usr/bin"}, WorkingDir: "/", StopSignal: "SIGTERM", Labels: v.labels(i),
		},
	}
	made, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), config)
	if err != nil {
		return nil, err
	}
	return mutate.Append(made, adds...)
}

// labels are those of the OCI image specification, annotations.md.
func (v version) labels(i image) map[string]string {
	labels := map[string]string{}
	for name, value := range map[string]string{
		"title": i.name, "description": i.title, "version": v.number, "revision": v.revision, "created": v.time.Format(time.RFC3339),
		"source": "https://github.com/sluice-qos/sluice", "url": "https://github.com/sluice-qos/sluice", "vendor": "Sluice authors", "licenses": "Apache-2.0",
	} {
		labels["org.opencontainers.image."+name] = value
	}
	return labels
}

// entry is a file of a layer, or a folder if it has no content.
type entry struct {
	name    string
	mode    int64
	owner   int
	content []byte
}

func (v version) layer(entries []entry) (v1.Layer, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	made := map[string]bool{".": true}
	for _, e := range entries {
		// The folders above it, which are root's.
		parts := strings.Split(filepath.Dir(e.name), "/")
		for n := range parts {
			if folder := strings.Join(parts[:n+1], "/"); !made[folder] {
				made[folder] = true
				if err := v.add(w, entry{folder, 0o755, 0, nil}); err != nil {
					return nil, err
				}
			}
		}
		if err := v.add(w, e); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
}

func (v version) add(w *tar.Writer, e entry) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)), ModTime: v.time, Format: tar.FormatUSTAR}
	if e.content == nil {
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(e.content)
	return err
}

// write writes an image layout as a tar. It names the index by itself and once more within, as container engines want it.
func (v version) write(file, name string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// Docker, containerd and Podman go by the first, Skopeo by the second.
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          "docker.io/library/" + name + ":" + v.number,
		"org.opencontainers.image.ref.name": v.number,
	})); err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	// In the order of names.
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		e := entry{strings.TrimPrefix(path, dir+"/"), 0o755, 0, nil}
		if !d.IsDir() {
			e.mode = 0o644
			if e.content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		return v.add(w, e)
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
