package cluster

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Metric is the value of one of the agent's metrics, as "name" or
// `name{label="value"}`; 0 if it is not there.
func (in *Instance) Metric(t testing.TB, name string) float64 {
	t.Helper()
	return Metric(t, in.Admin, name)
}

// Metric reads one value from an admin address.
func Metric(t testing.TB, admin, name string) float64 {
	t.Helper()
	v, err := ReadMetric(admin, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ReadMetric is Metric for an address that may not answer.
func ReadMetric(admin, name string) (float64, error) {
	text, err := Get(admin, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, fmt.Errorf("metric %q: %w", line, err)
			}
			return v, nil
		}
	}
	return 0, nil
}

// Get reads a path of an admin address; a status other than 200 is an error.
func Get(address, path string) (string, error) {
	client := http.Client{Timeout: testkit.Patience}
	res, err := client.Get("http://" + address + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, res.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// Tell sends one command to HAProxy's stats socket and returns the answer.
func (in *Instance) Tell(command string) (string, error) {
	return testkit.AskHAProxy(in.Stats, command)
}
