// Package metriclist lists the metrics that a program registers, with their labels and
// help: a registry itself tells only of those that have a value.
package metriclist

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A Metric is one metric of a program.
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

// New is a Recorder of a registry.
func New(registry *prometheus.Registry) *Recorder { return &Recorder{Registry: registry} }

// A Recorder remembers what is registered: a registry tells only of metrics that have
// a value.
type Recorder struct {
	*prometheus.Registry
	collectors []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (r *Recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return r.Registry.Register(c)
}

// MustRegister implements prometheus.Registerer.
func (r *Recorder) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
	r.Registry.MustRegister(all...)
}

// Metrics are those that were registered, sorted by name.
func (r *Recorder) Metrics() ([]Metric, error) {
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

// GiveValues gives each metric with labels a value, without which it is not served. The
// values of its labels are their names.
func (r *Recorder) GiveValues() error {
	for _, collector := range r.collectors {
		descriptions := make(chan *prometheus.Desc, 100)
		collector.Describe(descriptions)
		metric, err := parse((<-descriptions).String())
		if err != nil {
			return err
		}
		switch vector := collector.(type) {
		case *prometheus.CounterVec:
			vector.WithLabelValues(metric.Labels...)
		case *prometheus.GaugeVec:
			vector.WithLabelValues(metric.Labels...)
		case *prometheus.HistogramVec:
			vector.WithLabelValues(metric.Labels...)
		}
	}
	return nil
}

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
