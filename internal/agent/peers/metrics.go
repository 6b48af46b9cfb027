package peers

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
)

type metrics struct {
	connected       prometheus.Gauge
	sessions        prometheus.Counter
	learned, taught prometheus.Counter
	acked           prometheus.Counter
	errors          *prometheus.CounterVec
	bad             prometheus.Counter
	full, late      []prometheus.Counter // by index into Options.Teach
}

func newMetrics(reg prometheus.Registerer, tables []Table) *metrics {
	f := daemon.Metrics(reg)
	updates := f.Counters("sluice_peers_updates_total",
		"Stick table updates exchanged with HAProxy, by direction: learn (from HAProxy) or teach.", "direction")
	dropped := f.Counters("sluice_peers_dropped_total",
		"Entries that HAProxy was not taught, by table and reason: full (the table has too many live ones), late (ended before they could be sent), bad (an impossible table or key, table is none).", "table", "reason")
	m := &metrics{
		connected: f.Gauge("sluice_peers_connected",
			"1 while a peers session with HAProxy is established, else 0."),
		sessions: f.Counter("sluice_peers_sessions_total",
			"Peers sessions established with HAProxy."),
		acked: f.Counter("sluice_peers_acks_total",
			"Acknowledgements received from HAProxy; one may stand for many updates."),
		errors: f.Counters("sluice_peers_errors_total",
			"Peers sessions that ended or could not start, by reason: dial, refused, protocol, timeout, closed or other.", "reason"),
		learned: updates.WithLabelValues("learn"),
		taught:  updates.WithLabelValues("teach"),
		bad:     dropped.WithLabelValues("none", "bad"),
	}
	// Made now, so that a dashboard shows 0 and not nothing until the first one is dropped.
	for _, t := range tables {
		m.full = append(m.full, dropped.WithLabelValues(t.metricLabel(), "full"))
		m.late = append(m.late, dropped.WithLabelValues(t.metricLabel(), "late"))
	}
	return m
}

func (t Table) metricLabel() string { return strings.TrimPrefix(t.Name, "/") }

func (c *Client) registerGauges(reg prometheus.Registerer) {
	f := daemon.Metrics(reg)
	for i, t := range c.opts.Teach {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sluice_peers_entries",
			Help:        "Entries that HAProxy is to know and that have not ended, by table.",
			ConstLabels: prometheus.Labels{"table": t.metricLabel()},
		}, func() float64 { return float64(c.entries(i)) })
	}
	f.Gauge("sluice_peers_entries_max",
		"Entries that each table may have; further ones are dropped.").Set(float64(maxEntries))
}

// entries is the number of a table's entries that have not ended.
func (c *Client) entries(table int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Teach drops what has ended when it is called. While nobody is refused it is not, and this would show
	// entries that are over.
	c.live.expire(time.Now(), c.countLate)
	return c.live.size[table]
}
