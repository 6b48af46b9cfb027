//go:build images

package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// patience is how long anything may take on a machine that is busy with something else.
const patience = time.Minute

// machine does what a container engine does with a project: each container is a process with a root, a network and a
// process table of its own. It makes mounts and networks, which end with the namespaces that scripts/test-images runs
// it in, and leaves its folder to that script: removing it from within would remove what is mounted.
type machine struct {
	t          *testing.T
	project    *types.Project
	dir        string // of everything that it makes
	images     string // folder of the images' files
	addresses  map[string]string
	containers map[string]*container
}

type container struct {
	types.ServiceConfig
	command, env []string // entry point and environment, with those of its image
	chain        []string // what a process goes through before it is in the container
	process      *exec.Cmd
	output       *output
	ended        chan struct{}
	err          error // after ended
}

// output is what a process has printed.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (m *machine) run(program string, args ...string) {
	m.t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// write writes a file, and the folders above it.
func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

// connect gives each service an address on one network, and its name to all.
func (m *machine) connect() {
	m.run("ip", "link", "add", "engine", "type", "bridge")
	m.run("ip", "address", "add", "10.77.0.1/24", "dev", "engine")
	m.run("ip", "link", "set", "engine", "up")
	for n, name := range m.project.ServiceNames() {
		host := fmt.Sprintf("host%d", n)
		m.addresses[name] = fmt.Sprintf("10.77.0.%d", 10+n)
		m.run("ip", "netns", "add", name)
		m.run("ip", "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", name)
		m.run("ip", "link", "set", host, "master", "engine", "up")
		m.run("ip", "-n", name, "address", "add", m.addresses[name]+"/24", "dev", "eth0")
		m.run("ip", "-n", name, "link", "set", "eth0", "up")
		m.run("ip", "-n", name, "link", "set", "lo", "up")
	}
}

// start starts a service once those that it depends on are as it wants them.
func (m *machine) start(name string) *container {
	m.t.Helper()
	if c := m.containers[name]; c != nil {
		return c
	}
	s := m.project.Services[name]
	for other, dependency := range s.DependsOn {
		c := m.start(other)
		switch dependency.Condition {
		case types.ServiceConditionHealthy:
			m.awaitHealthy(c)
		case types.ServiceConditionCompletedSuccessfully:
			if err := c.await(patience); err != nil {
				m.t.Fatalf("%s: %v: %s", other, err, c.output)
			}
		}
	}
	c := m.create(s)
	m.containers[name] = c
	c.process, c.output = c.enter(context.Background(), c.command...), &output{}
	c.process.Stdout, c.process.Stderr = c.output, c.output
	if err := c.process.Start(); err != nil {
		m.t.Fatalf("%s: %v", name, err)
	}
	go func() {
		c.err = c.process.Wait()
		close(c.ended)
	}()
	m.t.Cleanup(func() {
		_ = c.process.Process.Kill()
		<-c.ended
		if m.t.Failed() {
			m.t.Logf("%s: %s", name, c.output)
		}
	})
	return c
}

// create makes what a container has before its process starts.
func (m *machine) create(s types.ServiceConfig) *container {
	m.t.Helper()
	c := &container{ServiceConfig: s, ended: make(chan struct{})}
	root := filepath.Join(m.dir, "roots", s.Name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.run("mount", "--bind", root, root) // so that it can be read-only in the end
	c.chain = []string{"ip", "netns", "exec", s.Name}
	if name, _, _ := strings.Cut(s.Image, ":"); ours[name] != "" {
		config := m.unpack(name, root)
		c.command, c.env = append(config.Entrypoint, s.Command...), config.Env
		// Go reserves far more addresses than it uses; this limits what it may write to.
		c.chain = append(c.chain, "prlimit", fmt.Sprintf("--data=%d", s.MemLimit))
	} else {
		m.borrow(root)
		c.command, c.env = s.Command, []string{"PATH=/usr/sbin:/usr/bin"}
		if strings.HasPrefix(s.Command[0], "-") { // the image's entry point is the program
			c.command = append([]string{filepath.Base(name)}, s.Command...)
		}
	}
	for name, value := range s.Environment {
		c.env = append(c.env, name+"="+*value)
	}
	// By its path, because PATH is already the container's.
	c.chain = append(c.chain, "setpriv", "--no-new-privs", "/usr/sbin/chroot", "--userspec="+s.User, "--groups=", root)
	var hosts strings.Builder
	for name, address := range m.addresses {
		fmt.Fprintf(&hosts, "%s %s\n", address, name)
	}
	m.write(filepath.Join(root, "etc/hosts"), "127.0.0.1 localhost\n"+hosts.String())
	m.mount(s, root)
	return c
}

// mount mounts what a service has, over a root that is not written to.
func (m *machine) mount(s types.ServiceConfig, root string) {
	m.t.Helper()
	at := func(target string) string {
		target = filepath.Join(root, target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			m.t.Fatal(err)
		}
		return target
	}
	m.run("mount", "--rbind", "/dev", at("dev"))
	m.run("mount", "-t", "proc", "proc", at("proc"))
	for _, v := range s.Volumes {
		source, target := v.Source, at(v.Target)
		if v.Type == types.VolumeTypeVolume {
			source = m.volume(v.Source, target)
		}
		m.run("mount", "--bind", source, target)
		if v.ReadOnly {
			m.run("mount", "-o", "remount,bind,ro", target)
		}
	}
	for _, mount := range s.Tmpfs {
		target, options, _ := strings.Cut(mount, ":")
		m.run("mount", "-t", "tmpfs", "-o", options+",mode=1777", "tmpfs", at(target))
	}
	m.run("mount", "-o", "remount,bind,ro", root)
}

// volume is the folder of a volume. A new one is as its options say, or gets owner and mode of what is in the image at the place.
func (m *machine) volume(name, target string) string {
	m.t.Helper()
	dir := filepath.Join(m.dir, "volumes", name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if options := m.project.Volumes[name].DriverOpts; options != nil {
		m.run("mount", "-t", options["type"], "-o", options["o"], options["device"], dir)
		return dir
	}
	m.run("chown", "--reference", target, dir)
	m.run("chmod", "--reference", target, dir)
	return dir
}

// unpack writes the files of an image of this machine's architecture, and returns how it is run.
func (m *machine) unpack(name, root string) v1.Config {
	m.t.Helper()
	dir := filepath.Join(m.dir, "layouts", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(m.images, name+"_*.oci.tar"))
	if err != nil || len(files) != 1 {
		m.t.Fatalf("images of %s: %v, %v", name, files, err)
	}
	m.run("tar", "-x", "-C", dir, "-f", files[0])
	image := m.imageOf(dir)
	config, err := image.ConfigFile()
	if err != nil {
		m.t.Fatal(err)
	}
	extract := exec.Command("tar", "-x", "-p", "--numeric-owner", "-C", root)
	extract.Stdin = mutate.Extract(image)
	if out, err := extract.CombinedOutput(); err != nil {
		m.t.Fatalf("tar: %v: %s", err, out)
	}
	return config.Config
}

// imageOf is the image of this machine's architecture in a layout.
func (m *machine) imageOf(dir string) v1.Image {
	m.t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		m.t.Fatal(err)
	}
	outer, err := index.IndexManifest()
	if err != nil {
		m.t.Fatal(err)
	}
	if index, err = index.ImageIndex(outer.Manifests[0].Digest); err != nil {
		m.t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, d := range inner.Manifests {
		if d.Platform.Architecture == runtime.GOARCH {
			image, err := index.Image(d.Digest)
			if err != nil {
				m.t.Fatal(err)
			}
			return image
		}
	}
	m.t.Fatalf("no image for %s", runtime.GOARCH)
	return nil
}

// borrow makes a root of this machine's programs, in place of an official image.
func (m *machine) borrow(root string) {
	m.t.Helper()
	usr := filepath.Join(root, "usr")
	if err := os.MkdirAll(usr, 0o755); err != nil {
		m.t.Fatal(err)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			m.t.Fatal(err)
		}
	}
	m.run("mount", "--bind", "/usr", usr)
	m.run("mount", "-o", "remount,bind,ro", usr)
	m.write(filepath.Join(root, "etc/nsswitch.conf"), "hosts: files\n")
	m.write(filepath.Join(root, "etc/passwd"), "root:x:0:0::/:/bin/sh\n")
}

// enter is a process in the container.
func (c *container) enter(ctx context.Context, command ...string) *exec.Cmd {
	words := append(append([]string{}, c.chain...), command...)
	process := exec.CommandContext(ctx, words[0], words[1:]...)
	process.Env = c.env
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return process
}

// probe makes the health check of a container.
func (m *machine) probe(c *container) (output string, err error) {
	m.t.Helper()
	command := []string(c.HealthCheck.Test)
	if command[0] == "CMD-SHELL" {
		command = []string{"CMD", "sh", "-c", command[1]}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := c.enter(ctx, command[1:]...).CombinedOutput()
	return string(out), err
}

func (m *machine) awaitHealthy(c *container) {
	m.t.Helper()
	var out string
	await(m.t, c.Name+" is healthy", func() (err error) {
		out, err = m.probe(c)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// await waits for what is to come about.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %v: %v", what, patience, err)
}

// await waits for the process's end, and returns how it ended.
func (c *container) await(limit time.Duration) error {
	select {
	case <-c.ended:
		return c.err
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended within %v", c.Name, limit)
	}
}
