package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/test/longrun/history"
)

// leaks are what is held although nothing runs. A part that does not answer counts as a leak.
func (w *world) leaks() (all []history.Leak) {
	leak := func(place, holder, user, what string, count float64) {
		if count != 0 {
			all = append(all, history.Leak{At: time.Now(), Place: place, Holder: holder, User: user, What: what, Count: int64(count)})
		}
	}
	for i, in := range w.c.Instances {
		agent, haproxy := fmt.Sprintf("agent-%d", i), fmt.Sprintf("haproxy-%d", i)
		for _, m := range []struct{ metric, what string }{
			{"sluice_requests_in_progress", "requests in progress"},
			{"sluice_line_requests", "requests in line"},
			{"sluice_redis_lost", "Redis lost"},
		} {
			n, err := cluster.ReadMetric(in.Admin, m.metric)
			if err != nil {
				leak("agent", agent, "", err.Error(), -1)
				break
			}
			leak("agent", agent, "", m.what, n)
		}
		if n, err := cluster.ReadMetric(in.Admin, "sluice_instances"); err == nil {
			leak("agent", agent, "", fmt.Sprintf("instances besides %d", w.scenario.instances), n-float64(w.scenario.instances))
		}
		if _, err := cluster.Get(in.Admin, "/-/ready"); err != nil {
			leak("agent", agent, "", "not ready: "+err.Error(), 1)
		}
		for _, table := range []string{"sluice/active", "sluice/held", "sluice_credit"} {
			text, err := in.Tell("show table " + table)
			if err != nil {
				leak("haproxy", haproxy, "", err.Error(), -1)
				break
			}
			for line := range strings.Lines(text) {
				leak("haproxy", haproxy, field(line, "key="), "requests in progress in "+table, float64(number(field(line, "conn_cur="))))
			}
		}
	}
	return append(all, w.slots()...)
}

// slots are what Redis says that instances hold beyond what they need not ask for, or run.
func (w *world) slots() (all []history.Leak) {
	set, err := limitfile.Load(w.c.LimitsFile)
	if err != nil {
		return []history.Leak{{At: time.Now(), Place: "redis", What: err.Error(), Count: -1}}
	}
	for _, n := range w.store.masters() {
		out, err := redisCall(n.Addr, "EVAL", `
			local all = {}
			for _, key in ipairs(redis.call('KEYS', 'sluice:*:slots:*')) do
				local fields = redis.call('HGETALL', key)
				for i = 1, #fields, 2 do all[#all + 1] = fields[i + 1] .. ' ' .. key .. ' ' .. fields[i] end
			end
			return all`, "0")
		if err != nil {
			all = append(all, history.Leak{At: time.Now(), Place: "redis", Holder: n.Addr, What: err.Error(), Count: -1})
			continue
		}
		for line := range strings.Lines(out) {
			var held, active, seq, at int64
			var key, instance string
			if _, err := fmt.Sscan(line, &held, &active, &seq, &at, &key, &instance); err != nil {
				continue // an empty answer
			}
			_, user, _ := strings.Cut(key, ":slots:")
			of, portion := set.User(user), int64(0)
			if credit.Possible(of, w.scenario.instances) {
				portion = int64(credit.Portion(of.Concurrent, w.scenario.instances))
			}
			// Agents do not report running requests again while they fit into the portion.
			if told := time.Since(time.UnixMilli(at)); held > portion && (portion == 0 || told < 30*time.Second) {
				all = append(all, history.Leak{At: time.Now(), Place: "redis", Holder: instance, User: user, What: fmt.Sprintf("slots beyond %d, as told %v ago", portion, told.Round(time.Second)), Count: held - portion})
			}
		}
	}
	return all
}

func field(line, name string) string {
	_, rest, found := strings.Cut(line, name)
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return value
}

func number(text string) (n int) {
	_, _ = fmt.Sscan(text, &n)
	return n
}
