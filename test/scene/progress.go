package scene

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Short is work of 50 to 250 ms: requests end often enough for a test to see much in a few seconds.
func Short(r *rand.Rand) time.Duration {
	return 50*time.Millisecond + time.Duration(r.Int64N(int64(200*time.Millisecond)))
}

// Closed is a load of clients of one user, who come back when they are refused.
func (s *Scene) Closed(user string, clients int, d time.Duration) closed.Spec {
	return closed.Spec{Addresses: s.Addresses(), User: user, Clients: clients, Work: Short, Duration: d, Seed: 1}
}

// AwaitNothingInProgress waits until every count of requests in progress is 0: in HAProxy, in the agents and in Redis.
func (s *Scene) AwaitNothingInProgress(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "every count is 0", func() error {
		for _, in := range s.Instances {
			if n := in.Metric(t, "sluice_requests_in_progress"); n != 0 {
				return fmt.Errorf("%s: the agent counts %v requests in progress", in.Name, n)
			}
			table, err := in.Tell("show table sluice/active")
			if err != nil {
				return err
			}
			if !strings.Contains(table, "# table: sluice/active") {
				return fmt.Errorf("no table: %q", table)
			}
			for line := range strings.Lines(table) {
				if strings.Contains(line, "conn_cur=") && !strings.Contains(line+" ", "conn_cur=0 ") && !strings.HasSuffix(strings.TrimSpace(line), "conn_cur=0") {
					return fmt.Errorf("%s: HAProxy counts %s", in.Name, line)
				}
			}
		}
		return s.checkSlots(t)
	})
}

// checkSlots fails if an instance has a request in progress in Redis, or holds more slots than those it need not ask for.
func (s *Scene) checkSlots(t testing.TB) error {
	set, err := limitfile.Load(s.LimitsFile)
	if err != nil {
		return err
	}
	for line := range strings.Lines(s.SlotsInRedis(t)) {
		var held, active, number, at int
		var key string
		if _, err := fmt.Sscan(line, &held, &active, &number, &at, &key); err != nil {
			if strings.TrimSpace(line) == "" {
				continue
			}
			return fmt.Errorf("holding %q: %w", line, err)
		}
		of := set.User(key[strings.LastIndex(key, ":")+1:])
		portion := 0
		if len(s.Instances) > 1 && credit.Possible(of, len(s.Instances)) {
			portion = credit.Portion(of.Concurrent, len(s.Instances))
		}
		if active > 0 || held > portion {
			return fmt.Errorf("redis has %q: want nothing in progress, and at most %d slots", strings.TrimSpace(line), portion)
		}
	}
	return nil
}

// SlotsInRedis is a line for each instance and user: slots held, requests in progress, the number of the last ask, its time, the key.
func (s *Scene) SlotsInRedis(t testing.TB) string {
	t.Helper()
	return testkit.RedisCommand(t, s.Server, "EVAL", `
		local holdings = {}
		for _, key in ipairs(redis.call('KEYS', 'sluice:*:slots:*')) do
		  for _, v in ipairs(redis.call('HVALS', key)) do table.insert(holdings, v .. ' ' .. key) end
		end
		return holdings`, "0")
}
