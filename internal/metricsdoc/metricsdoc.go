// Package metricsdoc lists the metrics of the daemons and of workers of background jobs, as their code has them: for
// docs/metrics.md, and for the tests that hold dashboards and alerts against it.
package metricsdoc

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/jobmetrics"
	"github.com/sluice-qos/sluice/internal/limitwatch"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/spoa"
	"github.com/sluice-qos/sluice/internal/tracing"
)

//go:generate go test -run ^TestDocumentIsCurrent$ -update .

// A Metric is one metric of a daemon.
type Metric struct {
	Name, Type, Help string
	Labels           []string // sorted
}

// Series are the names under which Prometheus keeps the metric.
func (m Metric) Series() []string {
	if m.Type != "histogram" {
		return []string{m.Name}
	}
	return []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
}

// Agent lists the metrics of spoa, sorted by name.
func Agent() ([]Metric, error) {
	r := &recorder{Registry: prometheus.NewPedanticRegistry()}
	if err := registerAgent(r); err != nil {
		return nil, err
	}
	return r.metrics()
}

// Generator lists the metrics of polygen, sorted by name.
func Generator() ([]Metric, error) {
	r := &recorder{Registry: prometheus.NewPedanticRegistry()}
	if err := registerGenerator(r); err != nil {
		return nil, err
	}
	return r.metrics()
}

// Worker lists the metrics of workers of background jobs, sorted by name.
func Worker() ([]Metric, error) {
	r := &recorder{Registry: prometheus.NewPedanticRegistry()}
	jobmetrics.New(r)
	return r.metrics()
}

// nowhere is a Redis that nobody connects to: the daemons are made and not run.
const nowhere = "127.0.0.1:1"

func registerAgent(reg prometheus.Registerer) error {
	tracing.NewMetrics(reg)
	if _, err := admin.NewGate(admin.Access{}, slog.New(slog.DiscardHandler), reg); err != nil {
		return err
	}
	b, err := bus.Open(bus.Options{Addresses: []string{nowhere}, Registerer: reg})
	if err != nil {
		return err
	}
	_, err = spoa.New(spoa.Options{Instance: "doc", Bus: b, SPOE: "unix:none", Peers: "unix:none", Registerer: reg})
	if err != nil {
		return err
	}
	return b.Close()
}

func registerGenerator(reg prometheus.Registerer) error {
	tracing.NewMetrics(reg)
	if _, err := admin.NewGate(admin.Access{}, slog.New(slog.DiscardHandler), reg); err != nil {
		return err
	}
	b, err := bus.Open(bus.Options{Addresses: []string{nowhere}, Registerer: reg})
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "sluice-metrics-")
	if err != nil {
		return fmt.Errorf("make a limit file: %w", err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "limits.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 1}}\n"), 0o600); err != nil {
		return fmt.Errorf("make a limit file: %w", err)
	}
	watcher, err := limitwatch.New(file, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		return err
	}
	_, err = polygen.New(polygen.Options{Name: "doc", Bus: b, Limits: watcher, Registerer: reg})
	if err != nil {
		return err
	}
	return b.Close()
}

// A recorder remembers what is registered: a registry tells only of metrics that have
// a value.
type recorder struct {
	*prometheus.Registry
	collectors []prometheus.Collector
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
	r.Registry.MustRegister(all...)
}

func (r *recorder) metrics() ([]Metric, error) {
	byName := map[string]Metric{}
	for _, c := range r.collectors {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m, err := parse(d.String())
			if err != nil {
				return nil, err
			}
			if m.Type, err = typeOf(c); err != nil {
				return nil, fmt.Errorf("%s: %w", m.Name, err)
			}
			byName[m.Name] = m
		}
	}
	list := make([]Metric, 0, len(byName))
	for _, m := range byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// description is how client_golang prints one; it has no other way to ask.
var description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// parse reads the name, the help and the labels of a printed description.
func parse(printed string) (m Metric, err error) {
	parts := description.FindStringSubmatch(printed)
	if parts == nil {
		return m, fmt.Errorf("description %s is not understood", printed)
	}
	if m.Name, err = strconv.Unquote(parts[1]); err != nil {
		return m, fmt.Errorf("description %s: name: %w", printed, err)
	}
	if m.Help, err = strconv.Unquote(parts[2]); err != nil {
		return m, fmt.Errorf("description %s: help: %w", printed, err)
	}
	for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(parts[3], -1) {
		m.Labels = append(m.Labels, l[1])
	}
	if parts[4] != "" {
		m.Labels = append(m.Labels, strings.Split(parts[4], ",")...)
	}
	slices.Sort(m.Labels)
	return m, nil
}

// typeOf is the type of a collector's metrics.
func typeOf(c prometheus.Collector) (string, error) {
	switch c := c.(type) {
	case interface{ MetricType() string }:
		return c.MetricType(), nil
	case *prometheus.CounterVec:
		return "counter", nil
	case *prometheus.GaugeVec:
		return "gauge", nil
	case *prometheus.HistogramVec:
		return "histogram", nil
	}
	if _, one := c.(prometheus.Metric); !one {
		return "", fmt.Errorf("collector %T has no type that is known here", c)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return "", fmt.Errorf("ask for its type: %w", err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		return "", fmt.Errorf("ask for its type: %d metrics: %w", len(families), err)
	}
	return strings.ToLower(families[0].GetType().String()), nil
}

// Series lists the names of all series of the daemons and workers, sorted.
func Series() ([]string, error) {
	agent, err := Agent()
	if err != nil {
		return nil, err
	}
	generator, err := Generator()
	if err != nil {
		return nil, err
	}
	worker, err := Worker()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range slices.Concat(agent, generator, worker) {
		names = append(names, m.Series()...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
