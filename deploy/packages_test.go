// Package deploy tests what the packages contain without building them. scripts/test-packages installs them.
package deploy

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// A manifest is what nfpm reads of a package. It is all that ours say: nothing has another owner than root, for one.
type manifest struct {
	Name, Arch, Platform, Version, Section, Priority   string
	Maintainer, Vendor, Homepage, License, Description string
	Contents                                           []content
	Overrides                                          map[string]override
}

type content struct {
	Src, Dst, Type, Packager string
	FileInfo                 struct{ Mode os.FileMode } `yaml:"file_info"` // 0: the source's
}

type override struct {
	Depends, Recommends []string
	Scripts             map[string]string
}

var names = []string{"sluice", "sluice-haproxy", "sluice-polygen", "sluice-spoa"}

// readManifests reads those of all packages.
func readManifests(t *testing.T) map[string]manifest {
	t.Helper()
	files, err := filepath.Glob("packages/*.yaml")
	if err != nil || len(files) != len(names) {
		t.Fatalf("packages: %q, %v, want those of %q", files, err, names)
	}
	all := map[string]manifest{}
	for _, name := range names {
		decoder := yaml.NewDecoder(bytes.NewReader(read(t, "packages/"+name+".yaml")))
		decoder.KnownFields(true)
		var m manifest
		if err := decoder.Decode(&m); err != nil || m.Name != name {
			t.Fatalf("%s.yaml: package %q, %v", name, m.Name, err)
		}
		all[name] = m
	}
	return all
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Who may read and run what, and what of it is the operator's, follows from where it is.
func TestModesOfPackages(t *testing.T) {
	for name, m := range readManifests(t) {
		for _, c := range m.Contents {
			want := content{Src: c.Src, Dst: c.Dst, Packager: c.Packager}
			switch etc := strings.HasPrefix(c.Dst, "/etc/"); {
			case strings.HasPrefix(c.Dst, "/usr/bin/"):
				want.FileInfo.Mode = 0o755
			case etc && strings.HasSuffix(c.Dst, ".secrets"):
				want.Type, want.FileInfo.Mode = "dir", 0o700
			case etc && c.Src == "":
				want.Type, want.FileInfo.Mode = "dir", 0o755
			case etc:
				// An upgrade leaves what its operator has changed.
				want.Type = "config|noreplace"
			}
			if c != want {
				t.Errorf("%s has %+v, want %+v", name, c, want)
			}
		}
	}
}

// made is what scripts/package writes of its own; all else is a file of the repository.
var made = regexp.MustCompile(`^(completions/(sluice\.(bash|zsh|fish)|_sluice)|debian/(copyright|PACKAGE/changelog\.gz)|lintian/PACKAGE)$`)

// sources are the places in the repository that scripts/package copies a folder from, and whence it builds the commands.
var sources = map[string][]string{
	"bin": {"../cmd"}, "systemd": {"systemd"}, "conf": {"packages/conf", "../config"}, "docs": {"../docs"}, "examples": {"../config/examples"},
}

// Each file that goes into a package exists, and none is left out that should.
func TestFilesOfPackages(t *testing.T) {
	used := map[string]bool{}
	for name, m := range readManifests(t) {
		for _, c := range m.Contents {
			if c.Src == "" || made.MatchString(strings.ReplaceAll(c.Src, name, "PACKAGE")) || made.MatchString(c.Src) {
				continue
			}
			folder, file := filepath.Split(c.Src)
			var found []string
			for _, place := range sources[filepath.Clean(folder)] {
				files, err := filepath.Glob(filepath.Join(place, file))
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, files...)
			}
			if len(found) == 0 {
				t.Errorf("%s: there is no %s", name, c.Src)
			}
			for _, f := range found {
				used[f] = true
				if info, err := os.Stat(f); err != nil || !info.IsDir() && info.Mode().Perm()&0o111 != 0 {
					t.Errorf("%s: %s can be run: %v", name, f, err)
				}
			}
		}
	}
	for _, pattern := range []string{"systemd/*", "packages/conf/*", "../cmd/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) != 3 {
			t.Fatalf("%s: %q, %v, want three", pattern, files, err)
		}
		for _, f := range files {
			if !used[f] {
				t.Errorf("%s is in no package", f)
			}
		}
	}
}

// ofSluice is a path of ours in a unit.
var ofSluice = regexp.MustCompile(`/(?:usr/bin|etc|usr/share/doc)/sluice[^ \n]*`)

// What a unit names is there once its package is installed, with those that it depends on or recommends.
func TestUnitsFindTheirFiles(t *testing.T) {
	all := readManifests(t)
	documents := map[string]string{"haproxy.md": "../haproxy/README.md"} // by the name that scripts/package gives them
	for _, name := range names[1:] {
		for packager, o := range all[name].Overrides {
			sure := installed(all, packager, append(o.Depends, name))
			there := installed(all, packager, append(o.Recommends, sure...))
			for _, file := range ofSluice.FindAllString(string(read(t, "systemd/"+name+".service")), -1) {
				if folder, document := filepath.Split(file); folder == "/usr/share/doc/sluice/" {
					if source, renamed := documents[document]; renamed {
						document = source
					} else {
						document = filepath.Join("../docs", document)
					}
					read(t, document)
					file = filepath.Clean(folder)
				}
				if !slices.Contains(there, file) {
					t.Errorf("%s (%s): its unit names %s, which is in no package that comes with it", name, packager, file)
				}
			}
			// dpkg has no owner of folders. What rpm has none for stays behind when the package is gone.
			if packager == "rpm" && !slices.Contains(sure, "/etc/sluice") {
				t.Errorf("%s: neither it nor what it needs has the folder /etc/sluice", name)
			}
		}
	}
}

// installed is what packages bring; a name that is none of ours brings itself.
func installed(all map[string]manifest, packager string, packages []string) (files []string) {
	for _, name := range packages {
		files = append(files, name)
		for _, c := range all[name].Contents {
			if c.Packager == "" || c.Packager == packager {
				files = append(files, c.Dst)
			}
		}
	}
	return files
}

// Each package has the scripts of its kind, from the files that scripts/package fills in for it.
func TestScriptsOfPackages(t *testing.T) {
	script := string(read(t, "../scripts/package"))
	kinds := map[string]map[string]string{
		"deb": {"postinstall": "postinst", "preremove": "prerm", "postremove": "postrm"},
		"rpm": {"postinstall": "post", "preremove": "preun", "postremove": "postun"},
	}
	all := readManifests(t)
	for _, name := range names[1:] {
		if !strings.Contains(script, "\nscript "+name+" '") {
			t.Errorf("scripts/package does not write the scripts of %s", name)
		}
		for packager, scripts := range kinds {
			for step, suffix := range scripts {
				read(t, "packages/scripts/"+suffix)
				if got, want := all[name].Overrides[packager].Scripts[step], "scripts/"+name+"."+suffix; got != want {
					t.Errorf("%s, %s, %s: script %q, want %q", name, packager, step, got, want)
				}
			}
		}
		// Its own user is made before its service is started.
		user := regexp.MustCompile(`(?m)^User=(sluice.*)$`).FindSubmatch(read(t, "systemd/"+name+".service"))
		if user != nil && !regexp.MustCompile(`script `+name+` 'adduser --system .* `+string(user[1])+`' .*\n.*useradd --system .* `+string(user[1])+`'`).MatchString(script) {
			t.Errorf("scripts/package has %s make no user %s", name, user[1])
		}
	}
}
