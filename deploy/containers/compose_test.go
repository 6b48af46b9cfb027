// Package containers tests deploy/compose.yaml and what it mounts. The images are made by the command in images.
package containers

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

const repository = "../.."

// ours are the images that images makes, and the folder of each one's program.
var ours = map[string]string{"sluice": "./cmd/sluice", "sluice-spoa": "./cmd/spoa", "sluice-polygen": "./cmd/polygen"}

// official are images of others, without their versions.
var official = []string{"docker.io/library/haproxy", "docker.io/library/redis", "docker.io/prom/prometheus", "docker.io/grafana/grafana"}

// load reads deploy/compose.yaml as docker compose does: strictly by the schema of the specification, with these variables, and the
// one that has no default.
func load(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{repository + "/deploy/compose.yaml"}, cli.WithEnv(append(env, "SLUICE_IDENTIFY=header:X-User")), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// secrets makes those that the project mounts.
func secrets(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "secrets")
	if out, err := exec.Command("./secrets", dir).CombinedOutput(); err != nil {
		t.Fatalf("secrets: %v: %s", err, out)
	}
	return dir
}

func TestEachServiceIsConfined(t *testing.T) {
	numeric := regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`)
	for name, s := range load(t).Services {
		for what, ok := range map[string]bool{
			"a user who is a number and not root":   numeric.MatchString(s.User),
			"a root that is not written to":         s.ReadOnly,
			"no capability":                         slices.Equal(s.CapDrop, []string{"ALL"}) && len(s.CapAdd) == 0,
			"no new privileges":                     slices.Contains(s.SecurityOpt, "no-new-privileges:true"),
			"a limit of memory":                     s.MemLimit > 0,
			"a limit of processors":                 s.CPUS > 0,
			"a limit of processes":                  s.PidsLimit > 0,
			"no rights of the machine":              !s.Privileged && s.NetworkMode == "" && s.Pid == "" && s.Ipc == "",
			"a health check, or an end":             s.HealthCheck != nil || s.Restart == "no",
			"nothing to write to of this machine's": writesNothing(s),
		} {
			if !ok {
				t.Errorf("%s wants %s", name, what)
			}
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("port %s of %s is published at %q", p.Published, name, p.HostIP)
			}
		}
	}
}

func writesNothing(s types.ServiceConfig) bool {
	return !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Type == types.VolumeTypeBind && !v.ReadOnly })
}

// Every image is one of ours, of the version that is built, or an official one of a fixed version.
func TestImagesOfServices(t *testing.T) {
	version := regexp.MustCompile(`(?m)^## \[([0-9][^]]*)\]`).FindStringSubmatch(read(t, repository+"/CHANGELOG.md"))[1]
	for name, s := range load(t).Services {
		image, tag, _ := strings.Cut(s.Image, ":")
		_, own := ours[image]
		switch {
		case own && (tag != version || s.PullPolicy != types.PullPolicyNever):
			t.Errorf("%s has %s (%q), want version %s, and that nobody fetches it", name, s.Image, s.PullPolicy, version)
		case !own && (!slices.Contains(official, image) || !regexp.MustCompile(`^v?\d+\.\d+`).MatchString(tag)):
			t.Errorf("%s has %s, which is none of ours, and no version of an official image", name, s.Image)
		}
	}
}

func TestMountedFilesExist(t *testing.T) {
	project := load(t, "SLUICE_SECRETS="+secrets(t))
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeVolume {
				if _, ok := project.Volumes[v.Source]; !ok {
					t.Errorf("%s mounts the volume %s, which there is not", name, v.Source)
				}
				continue
			}
			// A folder: a file that is replaced stays the old one where it is mounted by itself.
			if info, err := os.Stat(v.Source); err != nil || !info.IsDir() {
				t.Errorf("%s mounts %s, which is no folder: %v", name, v.Source, err)
			}
		}
		// What it is told to read is in something that it mounts.
		for _, file := range append(filesOf(s.Environment), filesIn(s.Command)...) {
			if source := mounted(s, file); source != "" {
				if _, err := os.Stat(source); err != nil {
					t.Errorf("%s reads %s: %v", name, file, err)
				}
			} else if !written(project, s, file) {
				t.Errorf("%s reads %s, which it does not mount", name, file)
			}
		}
	}
}

func filesOf(env types.MappingWithEquals) []string {
	var files []string
	for _, value := range env {
		if strings.HasPrefix(*value, "/") {
			files = append(files, *value)
		}
	}
	return files
}

func filesIn(command []string) []string {
	var files []string
	for _, word := range command {
		if _, value, ok := strings.Cut(word, "="); ok {
			word = value
		}
		if strings.HasPrefix(word, "/") {
			files = append(files, word)
		}
	}
	return files
}

// mounted is where a file of a container is on this machine, or "".
func mounted(s types.ServiceConfig, file string) string {
	for _, v := range s.Volumes {
		if rest, ok := strings.CutPrefix(file, v.Target+"/"); ok && v.Type == types.VolumeTypeBind {
			return filepath.Join(v.Source, rest)
		}
	}
	return ""
}

// written reports whether a file is in a volume or a tmpfs, which somebody fills.
func written(project *types.Project, s types.ServiceConfig, file string) bool {
	for _, v := range s.Volumes {
		if _, ok := project.Volumes[v.Source]; ok && (file == v.Target || strings.HasPrefix(file, v.Target+"/")) {
			return true
		}
	}
	return slices.ContainsFunc(s.Tmpfs, func(mount string) bool {
		target, _, _ := strings.Cut(mount, ":")
		return file == target || strings.HasPrefix(file, target+"/")
	})
}

// help is what a command says about itself, of all its flags and variables.
func help(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := exec.Command("go", append([]string{"run", "-trimpath", program}, append(args, "--help")...)...)
	command.Dir = repository
	command.Env = append(os.Environ(), "GOWORK=off")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	return string(out)
}

// What a service is told is something that its program knows.
func TestSettingsAreKnown(t *testing.T) {
	helps := map[string]string{"haproxy": read(t, repository+"/haproxy/haproxy.cfg")}
	for image, program := range ours {
		args := []string{}
		if image == "sluice" {
			args = append(args, "haproxy")
		}
		helps[image] = help(t, program, args...)
	}
	for name, s := range load(t).Services {
		image, _, _ := strings.Cut(filepath.Base(s.Image), ":")
		known, ok := helps[image]
		if !ok || name == "origin" {
			continue
		}
		for variable := range s.Environment {
			if strings.HasPrefix(variable, "SLUICE_") && !regexp.MustCompile(`\b`+variable+`\b`).MatchString(known) {
				t.Errorf("%s has %s, which %s does not know", name, variable, image)
			}
		}
		words := s.Command
		if s.HealthCheck != nil && image != "haproxy" {
			words = append(slices.Clone(words), s.HealthCheck.Test...)
		}
		for _, word := range words {
			if strings.HasPrefix(word, "--") && !strings.Contains(known, word+"=") {
				t.Errorf("%s has %s, which %s does not know", name, word, image)
			}
		}
	}
}

// Prometheus scrapes services at ports that they have, under the names that alerts go by; Grafana asks Prometheus and
// finds the dashboards where they are mounted.
func TestWatchers(t *testing.T) {
	project := load(t)
	var prometheus struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	decode(t, "prometheus/prometheus.yml", &prometheus)
	var scraped, jobs []string
	for _, c := range prometheus.ScrapeConfigs {
		jobs = append(jobs, c.JobName)
		for _, s := range c.StaticConfigs {
			scraped = append(scraped, s.Targets...)
		}
	}
	if want := []string{"agent-1:9091", "agent-2:9091", "polygen-1:9090", "polygen-2:9090", "haproxy-1:8405", "haproxy-2:8405"}; !slices.Equal(scraped, want) {
		t.Errorf("Prometheus scrapes %v, want %v", scraped, want)
	}
	if want := []string{"sluice-spoa", "sluice-polygen", "haproxy"}; !slices.Equal(jobs, want) {
		t.Errorf("Prometheus has the jobs %v, want %v", jobs, want)
	}
	for _, file := range prometheus.RuleFiles {
		if source := mounted(project.Services["prometheus"], file); read(t, source) == "" {
			t.Errorf("%s is empty", file)
		}
	}
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	decode(t, "grafana/datasources/prometheus.yml", &sources)
	asked, err := url.Parse(sources.Datasources[0].URL)
	if err != nil || asked.Hostname() != "prometheus" || project.Services["prometheus"].Name == "" {
		t.Errorf("Grafana asks %v, want Prometheus", sources.Datasources)
	}
	var dashboards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	decode(t, "grafana/dashboards/sluice.yml", &dashboards)
	if path := dashboards.Providers[0].Options.Path; read(t, mounted(project.Services["grafana"], path+"/overview.json")) == "" {
		t.Errorf("there is no dashboard in %s", path)
	}
}

func decode(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
