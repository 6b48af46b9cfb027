package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// BenchmarkLoadQuestions shows what questions cost agents, Redis and polygen. Limits of 3 are too small for credit on two
// instances, so HAProxy asks about each request that it does not refuse by itself. What all processes do while no
// request comes is measured before, and is not in the costs of questions.
func BenchmarkLoadQuestions(b *testing.B) {
	for range b.N {
		t := newTable("Requests of users who may have 3 a second and 3 in progress, at 2 instances; per question, and per second without requests",
			"users", "requests/s", "questions/s", "calls of Redis", "agents µs", "Redis µs", "polygen µs", "bytes into Redis", "out", "idle: agents µs", "Redis µs", "polygen µs", "bytes into Redis", "out")
		for _, load := range []struct {
			users int
			rate  float64
		}{{1000, 500}, {100, 600}} {
			b.Run("load", func(b *testing.B) { measureQuestions(b, t, load.users, load.rate) })
		}
	}
}

func measureQuestions(b *testing.B, t *table, users int, rate float64) {
	const limits = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 3}, concurrent: 3, bandwidth: {down: 10MiB}}}\n"
	c := cluster.Start(b, cluster.Options{Instances: coldInstances, MaxWait: shippedWait, Limits: limits})
	time.Sleep(coldSettle)
	idle := countQuestions(b, c)
	time.Sleep(coldSpan / 2)
	idle = countQuestions(b, c).minus(idle)
	offerInTurn(b, c, users, rate, 3*time.Second)
	before := countQuestions(b, c)
	offerInTurn(b, c, users, rate, coldSpan)
	spent := countQuestions(b, c).minus(before)
	per := func(of, ofIdle float64) string {
		return fmt.Sprintf("%.0f", (of-ofIdle*spent.seconds/idle.seconds)/spent.asked)
	}
	second := func(of float64) string { return fmt.Sprintf("%.0f", of/idle.seconds) }
	t.row(fmt.Sprint(users), fmt.Sprint(rate), fmt.Sprintf("%.0f", spent.asked/spent.seconds), fmt.Sprintf("%.2f", (spent.calls-idle.calls*spent.seconds/idle.seconds)/spent.asked),
		per(1e6*spent.agents, 1e6*idle.agents), per(1e6*spent.redis, 1e6*idle.redis), per(1e6*spent.polygen, 1e6*idle.polygen), per(spent.in, idle.in), per(spent.out, idle.out),
		second(1e6*idle.agents), second(1e6*idle.redis), second(1e6*idle.polygen), second(idle.in), second(idle.out))
}

// questionCounts are what was counted since the processes started, or in a span.
type questionCounts struct {
	coldCounts
	in, out float64 // bytes of Redis
}

func countQuestions(b *testing.B, c *cluster.Cluster) questionCounts {
	q := questionCounts{coldCounts: countCold(b, c)}
	for line := range strings.Lines(testkit.RedisCommand(b, c.RedisAddr, "INFO", "stats")) {
		_, _ = fmt.Sscanf(line, "total_net_input_bytes:%f", &q.in)
		_, _ = fmt.Sscanf(line, "total_net_output_bytes:%f", &q.out)
	}
	return q
}

func (q questionCounts) minus(before questionCounts) questionCounts {
	return questionCounts{q.coldCounts.minus(before.coldCounts), q.in - before.in, q.out - before.out}
}
