package helm

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// programs are what the images run, as this machine has it.
var programs = map[string]string{
	"/usr/bin/sluice": "sluice", "/usr/bin/sluice-spoa": "spoa", "/usr/bin/sluice-polygen": "polygen", "valkey-server": "redis-server",
}

var built = sync.OnceValues(func() (string, error) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", bin+"/", "./cmd/...")
	// With the workspace, as everything else that builds into this folder.
	build.Dir, build.Env = "../..", append(os.Environ(), "GOWORK=")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

// kubelet runs the pods of a rendered chart as processes of this machine: the same commands, variables and files, but for
// the folders, which are in the test's own.
type kubelet struct {
	bin      string
	secrets  map[string]map[string]string
	objects  map[string]any
	patience string // seconds for which HAProxy waits for its agent; 90 are longer than a test waits for HAProxy
}

func newKubelet(t *testing.T, values string, secrets map[string]map[string]string) kubelet {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return kubelet{bin: bin, secrets: secrets, objects: objects(t, render(t, values)), patience: "90"}
}

// pod is one that runs.
type pod struct {
	kubelet kubelet
	spec    core.PodSpec
	folders map[string]string // of its volumes, by their names
	running map[string]*testkit.Process
}

// start starts the containers of a deployment's pod in the order in which the kubelet does.
func (k kubelet) start(t *testing.T, deployment string) *pod {
	t.Helper()
	p := &pod{kubelet: k, spec: k.objects["Deployment sluice-"+deployment].(*apps.Deployment).Spec.Template.Spec, folders: map[string]string{}, running: map[string]*testkit.Process{}}
	for _, v := range p.spec.Volumes {
		p.folders[v.Name] = t.TempDir()
		p.mount(t, v)
	}
	for _, c := range p.spec.InitContainers {
		if c.RestartPolicy == nil { // not a sidecar: it runs to its end
			if out, err := p.command(t, c, append(c.Command, c.Args...)).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c.Name, err, out)
			}
			continue
		}
		p.run(t, c)
	}
	for _, c := range p.spec.Containers {
		p.run(t, c)
	}
	return p
}

// mount writes the files of a volume, as the kubelet does: "..data" is a link to a folder with all of them.
func (p *pod) mount(t *testing.T, v core.Volume) {
	t.Helper()
	files := map[string]string{}
	secret := func(name string, items []core.KeyToPath) {
		for _, item := range items {
			content, there := p.kubelet.secrets[name][item.Key]
			if !there {
				t.Fatalf("volume %s: secret %s has no %s", v.Name, name, item.Key)
			}
			files[item.Path] = content
		}
	}
	switch {
	case v.ConfigMap != nil:
		files = p.kubelet.objects["ConfigMap "+v.ConfigMap.Name].(*core.ConfigMap).Data
	case v.Secret != nil:
		secret(v.Secret.SecretName, v.Secret.Items)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			secret(s.Secret.Name, s.Secret.Items)
		}
	case v.EmptyDir != nil:
		return
	}
	publish(t, p.folders[v.Name], files)
}

// publish puts other files into a mounted folder at once.
func publish(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	version, err := os.MkdirTemp(folder, "..")
	must(err)
	for name, content := range files {
		must(os.WriteFile(filepath.Join(version, name), []byte(content), 0o600))
		if err := os.Symlink("..data/"+name, filepath.Join(folder, name)); !os.IsExist(err) {
			must(err)
		}
	}
	before, _ := os.Readlink(filepath.Join(folder, "..data"))
	must(os.Symlink(filepath.Base(version), filepath.Join(folder, "..data_tmp")))
	must(os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
	if before != "" {
		must(os.RemoveAll(filepath.Join(folder, before)))
	}
}

// here is a text of a container with the folders and programs of this machine.
func (p *pod) here(t *testing.T, c core.Container, text string) string {
	for _, m := range c.VolumeMounts {
		text = strings.ReplaceAll(text, m.MountPath+"/", p.folders[m.Name]+"/")
	}
	return strings.NewReplacer("exec haproxy ", "exec "+testkit.HAProxyPath(t)+" ", "timeout 10 ", "timeout "+p.kubelet.patience+" ").Replace(text)
}

func (p *pod) env(t *testing.T, c core.Container) (env []string) {
	for _, e := range c.Env {
		value := e.Value
		if from := e.ValueFrom; from != nil {
			value = "127.0.0.1" // of a field: status.podIP
			if from.SecretKeyRef != nil {
				value = p.kubelet.secrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]
			}
		}
		env = append(env, e.Name+"="+p.here(t, c, strings.ReplaceAll(value, "$(POD_IP)", "127.0.0.1")))
	}
	return env
}

func (p *pod) command(t *testing.T, c core.Container, words []string) *exec.Cmd {
	t.Helper()
	var here []string
	for _, word := range words {
		here = append(here, p.here(t, c, word))
	}
	if program, ours := programs[here[0]]; ours {
		here[0] = program
		if path := filepath.Join(p.kubelet.bin, program); program != "redis-server" {
			here[0] = path
		}
	}
	cmd := exec.Command(here[0], here[1:]...)
	cmd.Env = append(os.Environ(), p.env(t, c)...)
	return cmd
}

// run starts a container and waits as its startup and readiness probes say.
func (p *pod) run(t *testing.T, c core.Container) {
	t.Helper()
	cmd := p.command(t, c, append(c.Command, c.Args...))
	running := testkit.Start(t, p.env(t, c), cmd.Path, cmd.Args[1:]...)
	p.running[c.Name] = running
	for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil {
			testkit.Eventually(t, c.Name, func() error {
				if !running.Running() {
					t.Fatalf("%s ended", c.Name)
				}
				return p.probe(t, c, probe)
			})
		}
	}
}

func (p *pod) probe(t *testing.T, c core.Container, probe *core.Probe) error {
	if probe.Exec != nil {
		if out, err := p.command(t, c, probe.Exec.Command).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	address := p.address(c, probe.TCPSocket.Port.StrVal)
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// address is where a port of a container listens here.
func (p *pod) address(c core.Container, port string) string {
	for _, e := range c.Env {
		if e.Name == map[string]string{"http": "SLUICE_BIND", "agent": "SLUICE_ADMIN", "polygen": "SLUICE_ADMIN", "haproxy": "SLUICE_METRICS"}[port] {
			return e.Value
		}
	}
	for _, have := range c.Ports {
		if have.Name == port {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(have.ContainerPort)))
		}
	}
	return ""
}

func (p *pod) container(name string) core.Container {
	for _, c := range append(p.spec.InitContainers, p.spec.Containers...) {
		if c.Name == name {
			return c
		}
	}
	return core.Container{}
}
