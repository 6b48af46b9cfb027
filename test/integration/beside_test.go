package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// Limits that `sluice haproxy --into` puts into somebody's own configuration are as exact as in ours, HAProxy admits by credit
// there, requests go where its own rules send them, and it goes on without its agent.
func TestBesideYourOwn(t *testing.T) {
	t.Parallel()
	o := cluster.Options{
		Instances: 2, Limits: faultLimits, SPOAArgs: []string{"--local-peer", "edge-1"},
		// It has a name among its peers, which the agent is told.
		Beside: strings.Replace(testkit.Theirs, "global\n", "global\n    localpeer edge-1\n", 1),
	}
	s := scene.Start(t, o, "busy")
	in := s.Instances[0]
	routes := func() {
		t.Helper()
		for range 3 {
			for path, want := range map[string]string{"/": "200 app", "/files/a": "200 files", "/private": "403 "} {
				res, _ := scene.Get(t, in.Address+path, "calm")
				if got := fmt.Sprint(res.StatusCode, " ", res.Header.Get("X-Backend")); got != want || res.Header.Get("Sluice-Reason") != "" {
					t.Errorf("%s: %s by %q, want %s", path, got, res.Header.Get("Sluice-Reason"), want)
				}
			}
		}
	}
	routes()
	s.Settle()
	var bytes transfer.Report
	side(
		func() {
			r := s.Offer(t, "even", 204, 4*time.Second, scene.GETs(append(repeat("wild", 50), "calm")...))
			scene.CheckAnswered(t, r)
			scene.CheckLimit(t, r, "wild", 20, 0.9)
			scene.CheckLimit(t, r, "calm", 20, 0.9)
		},
		func() { scene.CheckRuns(t, closed.Run(t.Context(), s.Closed("busy", 40, 4*time.Second))) },
		func() {
			streams := append(s.Streams("mover", 4, false), s.Streams("other", 1, true)...)
			bytes = transfer.Run(t.Context(), s.Bytes, streams, 4*time.Second)
		},
	)
	if most := s.Runs["busy"].Counts().Most; most != 10 {
		t.Errorf("at most %d requests ran at once, want 10", most)
	}
	scene.CheckRate(t, bytes.Of(0, 4), "mover", time.Second, 4*time.Second, 1)
	s.AwaitNothingInProgress(t)

	defer s.Hold(t, "busy", 10)()
	res, body := scene.Get(t, in.Address, "busy")
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Sluice-Reason") != "concurrent-requests" || !strings.Contains(body, "Retry after") {
		t.Errorf("refused with %d %v %q, want 429 and why", res.StatusCode, res.Header, body)
	}
	const question = `sluice_requests_total{limit="",verdict="allowed"}`
	testkit.Eventually(t, "HAProxy admits calm by itself", func() error {
		before := in.Metric(t, question)
		for range 20 {
			scene.Get(t, in.Address, "calm")
		}
		if asked := in.Metric(t, question) - before; asked > 2 {
			return fmt.Errorf("the agent was asked about %v of 20 requests", asked)
		}
		return nil
	})

	o.MaxWait = scene.ShortWait
	s = scene.Start(t, o)
	in = s.Instances[0]
	s.Settle()
	for _, in := range s.Instances {
		testkit.Eventually(t, in.Name+"'s HAProxy knows what it may admit without its agent", func() error {
			table, err := in.Tell("show table sluice/credit")
			if err == nil && !strings.Contains(table, "key=~ ") {
				err = fmt.Errorf("the table is %s", table)
			}
			return err
		})
		in.Agent.Kill()
	}
	r := s.Offer(t, "even", 204, 4*time.Second, scene.GETs(append(repeat("wild", 50), "calm")...))
	scene.CheckAnswered(t, r)
	scene.CheckSeconds(t, r, "wild", r.Start.Add(time.Second), r.Start.Add(r.Duration), 20, 23)
	routes()
}
