// Package metricsdoc lists the metrics of the daemons and of workers of background jobs, as their code has them: for
// docs/metrics.md, and for the tests that hold dashboards and alerts against it.
package metricsdoc

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/limitwatch"
	"github.com/sluice-qos/sluice/internal/metriclist"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/spoa"
	"github.com/sluice-qos/sluice/pkg/jobs/redislimits"
)

//go:generate go test -run ^TestDocumentIsCurrent$ -update .

// A daemon registers its metrics, as it does when it is made. It is not run.
type daemon func(prometheus.Registerer, *bus.Bus) error

// Agent lists the metrics of spoa, sorted by name.
func Agent() ([]metriclist.Metric, error) { return daemon(registerAgent).list() }

// Generator lists the metrics of polygen, sorted by name.
func Generator() ([]metriclist.Metric, error) { return daemon(registerGenerator).list() }

func (d daemon) list() ([]metriclist.Metric, error) {
	r := metriclist.New(prometheus.NewPedanticRegistry())
	if err := d.register(r); err != nil {
		return nil, err
	}
	return r.Metrics()
}

// register also registers what all daemons have.
func (d daemon) register(reg prometheus.Registerer) error {
	if _, err := admin.NewGate(admin.Access{}, slog.New(slog.DiscardHandler), reg); err != nil {
		return err
	}
	b, err := bus.Open(bus.Options{Addresses: []string{"127.0.0.1:1"}, Registerer: reg}) // nobody connects to it
	if err != nil {
		return err
	}
	return errors.Join(d(reg, b), b.Close())
}

// workerMetrics are those of jobs/riverqos, a module that this one does not know. A test
// there fails when they are not current.
//
//go:embed worker.json
var workerMetrics []byte

// Worker lists the metrics of workers of background jobs, sorted by name.
func Worker() (metrics []metriclist.Metric, err error) {
	if err := json.Unmarshal(workerMetrics, &metrics); err != nil {
		return nil, fmt.Errorf("worker.json: %w", err)
	}
	reg := metriclist.New(prometheus.NewPedanticRegistry())
	redislimits.New(nil, redislimits.Config{Registry: reg})
	limits, err := reg.Metrics()
	metrics = append(metrics, limits...)
	slices.SortFunc(metrics, func(a, b metriclist.Metric) int { return cmp.Compare(a.Name, b.Name) })
	return metrics, err
}

func registerAgent(reg prometheus.Registerer, b *bus.Bus) error {
	_, err := spoa.New(spoa.Options{Instance: "doc", Bus: b, SPOE: "unix:none", Peers: "unix:none", Registerer: reg})
	return err
}

func registerGenerator(reg prometheus.Registerer, b *bus.Bus) error {
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
	return err
}

// Series lists the names of all series of the daemons and workers, sorted.
func Series() ([]string, error) {
	var names []string
	for _, list := range []func() ([]metriclist.Metric, error){Agent, Generator, Worker} {
		metrics, err := list()
		if err != nil {
			return nil, err
		}
		for _, m := range metrics {
			names = append(names, m.Series()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
