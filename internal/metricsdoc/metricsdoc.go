// Package metricsdoc lists the metrics of the daemons and of workers of background jobs, as their code has them: for
// docs/metrics.md, and for the tests that hold dashboards and alerts against it.
package metricsdoc

import (
	_ "embed"
	"encoding/json"
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
	"github.com/sluice-qos/sluice/internal/tracing"
)

//go:generate go test -run ^TestDocumentIsCurrent$ -update .

// Agent lists the metrics of spoa, sorted by name.
func Agent() ([]metriclist.Metric, error) {
	r := metriclist.New(prometheus.NewPedanticRegistry())
	if err := registerAgent(r); err != nil {
		return nil, err
	}
	return r.Metrics()
}

// Generator lists the metrics of polygen, sorted by name.
func Generator() ([]metriclist.Metric, error) {
	r := metriclist.New(prometheus.NewPedanticRegistry())
	if err := registerGenerator(r); err != nil {
		return nil, err
	}
	return r.Metrics()
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
	return metrics, nil
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
