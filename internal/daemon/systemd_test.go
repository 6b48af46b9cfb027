package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// history is what a service tells systemd in a time, each with the second it is told at. Redis is there from
// readyAt on, and away again from lostAt on; probes do not return from stuckAt on.
func history(t *testing.T, within, readyAt, lostAt, stuckAt, end time.Duration) []string {
	t.Helper()
	var heard []string
	synctest.Test(t, func(t *testing.T) {
		var told []string
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), end)
		defer cancel()
		s := Service{
			Started: func() error {
				if time.Since(began) < readyAt {
					return errors.New("not yet")
				}
				return nil
			},
			Ready: func() error {
				if at := time.Since(began); at < readyAt || at >= lostAt {
					return errors.Join(errors.New("redis cannot be reached"), errors.New("no limits"))
				}
				return nil
			},
			Probe: func() {
				if time.Since(began) >= stuckAt {
					<-t.Context().Done()
				}
			},
		}
		go s.report(ctx, within, func(state string) error {
			told = append(told, fmt.Sprintf("%.1f %s", time.Since(began).Seconds(), state))
			return nil
		})
		<-ctx.Done()
		synctest.Wait()
		heard = slices.Clone(told) // before a probe that was stuck returns, at the end of the test
	})
	return heard
}

func TestReport(t *testing.T) {
	const never = time.Hour
	for _, tt := range []struct {
		name                                  string
		within, readyAt, lostAt, stuckAt, end time.Duration
		want                                  []string
	}{
		{"ready at once, without a watchdog", 0, 0, never, never, 25 * time.Second, []string{
			"0.0 STATUS=ready", "0.0 READY=1", "25.0 STOPPING=1"}},
		{"it waits for Redis", 0, 3 * time.Second, never, never, 4 * time.Second, []string{
			"0.0 STATUS=not ready: redis cannot be reached; no limits", "3.0 STATUS=ready", "3.0 READY=1", "4.0 STOPPING=1"}},
		{"it waits for longer than HAProxy should", 0, 12 * time.Second, never, never, 13 * time.Second, []string{
			"0.0 STATUS=not ready: redis cannot be reached; no limits", "10.0 READY=1", "12.0 STATUS=ready", "13.0 STOPPING=1"}},
		{"it is not ready, and starts others all the same: HAProxy comes after it", 0, 0, 0, never, time.Second, []string{
			"0.0 STATUS=not ready: redis cannot be reached; no limits", "0.0 READY=1", "1.0 STOPPING=1"}},
		{"Redis is lost later, which is no reason to start it again", 9 * time.Second, 0, time.Second, never, 7 * time.Second, []string{
			"0.0 STATUS=ready", "0.0 READY=1", "1.0 STATUS=not ready: redis cannot be reached; no limits", "3.0 WATCHDOG=1", "6.0 WATCHDOG=1", "7.0 STOPPING=1"}},
		{"a watchdog hears of it also before it is ready", 9 * time.Second, never, never, never, 4 * time.Second, []string{
			"0.0 STATUS=not ready: redis cannot be reached; no limits", "3.0 WATCHDOG=1", "4.0 STOPPING=1"}},
		{"it is stuck", 9 * time.Second, 0, never, 5 * time.Second, 30 * time.Second, []string{
			"0.0 STATUS=ready", "0.0 READY=1", "3.0 WATCHDOG=1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := history(t, tt.within, tt.readyAt, tt.lostAt, tt.stuckAt, tt.end)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("report() told (-want +got):\n%s", diff)
			}
		})
	}
}

// systemd may not be there for a moment: the start is told again.
func TestReportRepeatsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var told []string
		fine := func() error { return nil }
		s := Service{Started: fine, Ready: fine}
		if err := s.report(ctx, 0, func(state string) error {
			if told = append(told, state); len(told) < 3 {
				return errors.New("connection refused")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"STATUS=ready", "READY=1", "READY=1", "STOPPING=1"}, told); diff != "" {
			t.Errorf("report() told (-want +got):\n%s", diff)
		}
	})
}
