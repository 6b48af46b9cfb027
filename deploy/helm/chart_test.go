// Package helm tests the chart: what it renders, and that it runs.
package helm

import (
	"flag"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/sluice.yaml")

// Together they set each value to something else than values.yaml does: one for a cluster with all that the chart can use, the
// other for one without.
const rich, small = "testdata/rich.yaml", "testdata/small.yaml"

// shipped is the chart as it is in its folder.
var shipped = sync.OnceValues(func() (*chart.Chart, error) {
	log.SetOutput(io.Discard) // that files are symbolic links
	return loader.Load("sluice")
})

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

// try renders the chart as "helm install sluice" does, with a chain that its values must have.
func try(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	if values["identify"] == nil {
		values = replaced(values, []string{"identify"}, "jwt:sub,ip")
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "sluice", Namespace: "default", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

func render(t *testing.T, text string) map[string]string {
	t.Helper()
	files, err := try(t, values(t, text))
	if err != nil {
		t.Fatalf("%v, with\n%s", err, text)
	}
	return files
}

var separator = regexp.MustCompile(`(?m)^---\n`)

// documents are the objects of a rendered chart, as YAML.
func documents(files map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for _, text := range separator.Split(files[name], -1) {
			if strings.Contains(text, "apiVersion:") {
				all = append(all, strings.TrimSpace(text)+"\n")
			}
		}
	}
	return all
}

// kinds are the types of the API that the chart has objects of.
var kinds = map[string]func() any{
	"apps/v1 Deployment":                      func() any { return new(apps.Deployment) },
	"v1 Service":                              func() any { return new(core.Service) },
	"v1 ConfigMap":                            func() any { return new(core.ConfigMap) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
}

// objects decodes as the API server does that is asked to be strict: a field that it does not know, or that is
// there twice, is an error.
func objects(t *testing.T, files map[string]string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, text := range documents(files) {
		var head struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		made := kinds[head.APIVersion+" "+head.Kind]
		if made == nil {
			t.Fatalf("there is no type for %s %s", head.APIVersion, head.Kind)
		}
		object := made()
		if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
			t.Errorf("%s %s: %v\n%s", head.Kind, head.Metadata.Name, err, text)
		}
		name := head.Kind + " " + head.Metadata.Name
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = object
	}
	return all
}

// deployments are those of a rendered chart, by their names.
func deployments(t *testing.T, files map[string]string) map[string]*apps.Deployment {
	t.Helper()
	all := map[string]*apps.Deployment{}
	for name, object := range objects(t, files) {
		if d, is := object.(*apps.Deployment); is {
			all[strings.TrimPrefix(name, "Deployment sluice-")] = d
		}
	}
	return all
}

func TestLint(t *testing.T) {
	for _, text := range []string{"", readFile(t, rich), readFile(t, small)} {
		found := lint.AllWithKubeVersion("sluice", values(t, text), "default", &chartutil.KubeVersion{Version: "v1.29.0", Major: "1", Minor: "29"})
		for _, m := range found.Messages {
			// Icons are for catalogs.
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	}
}

// The chart is of the newest version of CHANGELOG.md.
func TestVersion(t *testing.T) {
	newest := regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`).FindStringSubmatch(readFile(t, "../../CHANGELOG.md"))
	if m := load(t).Metadata; m.Version != newest[1] || m.AppVersion != newest[1] {
		t.Errorf("the chart is %s of %s, want %s", m.Version, m.AppVersion, newest[1])
	}
}

// A release's archive of the chart is the chart with all that it links to, and the same bytes whoever packs it.
func TestArchive(t *testing.T) {
	pack := func(env ...string) string {
		dir := t.TempDir()
		packed := exec.Command("../../scripts/chart", dir)
		packed.Env = append(os.Environ(), append(env, "SOURCE_DATE_EPOCH=1700000000")...)
		if out, err := packed.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return filepath.Join(dir, "sluice-"+load(t).Metadata.Version+".tgz")
	}
	archive := pack()
	if readFile(t, archive) != readFile(t, pack("TZ=Asia/Tokyo", "LC_ALL=C")) {
		t.Error("packed twice, it is not the same")
	}
	got, err := loader.Load(archive)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contents(load(t)), contents(got)); diff != "" {
		t.Errorf("the folder's files, and the archive's (-want +got):\n%s", diff)
	}
}

// contents are a chart's files.
func contents(c *chart.Chart) map[string]string {
	all := map[string]string{}
	for _, f := range c.Raw {
		all[f.Name] = string(f.Data)
	}
	return all
}

func TestKinds(t *testing.T) {
	names := func(text string) string {
		return strings.Join(slices.Sorted(maps.Keys(objects(t, render(t, text)))), "\n") + "\n"
	}
	if diff := cmp.Diff(`ConfigMap sluice-limits
Deployment sluice-haproxy
Deployment sluice-polygen
Deployment sluice-redis
NetworkPolicy sluice-haproxy
NetworkPolicy sluice-polygen
NetworkPolicy sluice-redis
PodDisruptionBudget sluice-haproxy
PodDisruptionBudget sluice-polygen
Service sluice
Service sluice-redis
`, names("")); diff != "" {
		t.Errorf("with the default values (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(`ConfigMap sluice-dashboard-health
ConfigMap sluice-dashboard-overview
ConfigMap sluice-dashboard-user
Deployment sluice-haproxy
Deployment sluice-polygen
NetworkPolicy sluice-haproxy
NetworkPolicy sluice-polygen
PodDisruptionBudget sluice-haproxy
PodDisruptionBudget sluice-polygen
PrometheusRule sluice
Service sluice
Service sluice-haproxy-metrics
Service sluice-polygen-metrics
ServiceMonitor sluice
`, names(readFile(t, rich))); diff != "" {
		t.Errorf("with %s (-want +got):\n%s", rich, diff)
	}
}

// leaves are the values that somebody may set, by their paths: all but those that hold others.
func leaves(prefix string, value any) map[string]any {
	all := map[string]any{}
	inner, is := value.(map[string]any)
	if !is || len(inner) == 0 || strings.HasSuffix(prefix, ".labels") || strings.HasSuffix(prefix, ".requests") || strings.HasSuffix(prefix, ".limits") {
		all[prefix] = value
		return all
	}
	for name, v := range inner {
		maps.Copy(all, leaves(strings.TrimPrefix(prefix+"."+name, "."), v))
	}
	return all
}

// Each value changes something, and the schema knows it.
func TestEachValueIsUsed(t *testing.T) {
	used := map[string]bool{}
	defaults := leaves("", values(t, readFile(t, "sluice/values.yaml")))
	for _, file := range []string{rich, small} {
		set := values(t, readFile(t, file))
		whole := documents(render(t, readFile(t, file)))
		for path, value := range defaults {
			// Its default, beside all that the file sets.
			files, err := try(t, replaced(set, strings.Split(path, "."), value))
			used[path] = used[path] || err != nil || !slices.Equal(documents(files), whole)
		}
	}
	for path := range defaults {
		if !used[path] {
			t.Errorf("%s: another value changes nothing", path)
		}
	}
}

// replaced is a copy of values in which one is another.
func replaced(values map[string]any, path []string, value any) map[string]any {
	copied := maps.Clone(values)
	if copied == nil {
		copied = map[string]any{}
	}
	if len(path) == 1 {
		copied[path[0]] = value
		return copied
	}
	inner, _ := copied[path[0]].(map[string]any)
	copied[path[0]] = replaced(inner, path[1:], value)
	return copied
}

// A value that is misspelled, or of another kind, is refused before anything is installed.
func TestValuesThatAreRefused(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		{"identify: ''", "identify says how HAProxy finds the user"},
		{"haproxy: {replica: 3}", "additional properties 'replica' not allowed"},
		{"polygen: {replicas: 6}", "maximum: got 6, want 5"},
		{"origin: origin", "does not match pattern"},
		{"redis: {addresses: cache:6379}", "got string, want array"},
		{"redis: {shards: 0}", "minimum: got 0, want 1"},
		{"service: {type: Headless}", "value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"},
		{"agent: {env: {SLUICE_HOLD_FOR: 5}}", "got number, want string"},
		{"agent: {resources: {limits: null}}", "missing property 'limits'"},
		{"metrics: {enabled: true}", "metrics.enabled needs metrics.tlsSecret"},
		{"metrics: {enabled: true, tlsSecret: a}", "metrics.enabled needs metrics.tokenSecret"},
		{"metrics: {serviceMonitor: {enabled: true}}", "metrics.serviceMonitor needs metrics.enabled"},
		{"redis: {master: main}", "redis.master needs redis.addresses, those of its Sentinels"},
		{"redis: {tls: {enabled: true}}", "redis.tls needs redis.addresses"},
		{"redis: {passwords: {secret: a}}", "redis.passwords needs redis.addresses"},
		{"limits: {file: a, configMap: b}", "want one of them"},
	} {
		if _, err := try(t, values(t, tt.values)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.values, err, tt.want)
		}
	}
}

// The manifests for who does not use Helm are those of the default values, and how HAProxy finds the user is to be chosen.
func TestManifests(t *testing.T) {
	const file = "../kubernetes/sluice.yaml"
	want := "# Made from deploy/helm/sluice with its default values, by \"make manifests\".\n" + strings.Join(documents(render(t, "identify: CHOOSE")), "---\n")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, readFile(t, file)); diff != "" {
		t.Errorf("make manifests (-want +got):\n%s", diff)
	}
}
