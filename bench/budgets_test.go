package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

const (
	budgetMaxTokens = 200 // that a request asks for, its estimate
	budgetCost      = 100 // what it costs: the demo origin's answers have half of max_tokens

	budgetSecond, budgetMinute = 4000, 20_000 // limits in tokens

	budgetBurst      = 50
	budgetBurstEvery = 2 * time.Second
	budgetWindows    = 16 * time.Second // of bursts, within one minute

	secondUsers, minuteUsers, freeUsers = 4, 10, 4000
	secondRate, freeRate                = 100, 200 // requests a second: of each user with a limit by the second, of all free ones

	// Ten times what is shipped, because clients, origin and all parts share this machine: who gets a verdict too late is not charged.
	budgetWait = 200 * time.Millisecond

	streamRate, streamsFor = 100, 6 * time.Second
	priceCycles            = 20
)

// budgetLimits is a file in which free users, the default, have no limit of costs. Without costs nobody has one.
func budgetLimits(costs bool) string {
	unit := "costs:\n  tokens: {classes: [CHAT], estimate: {json: max_tokens, default: 1000}, actual: {json: usage.total_tokens}}\n"
	limit := func(window, most string) string { return "costs: {tokens: {" + window + ": " + most + "}}" }
	if !costs {
		unit, limit = "", func(string, string) string { return `requests: {"*": 1000000}` }
	}
	return fmt.Sprintf(`version: 1
default_tier: free
classes:
  CHAT: {methods: [POST], path_prefix: %s}
%stiers:
  free: {requests: {"*": 1000000}}
  seconds: {%s}
  minutes: {%s}
  large: {%s}
users: {"second-*": seconds, "minute-*": minutes, "large-*": large}
`, origin.ChatPath, unit, limit("second", fmt.Sprint(budgetSecond)), limit("minute", fmt.Sprint(budgetMinute)), limit("minute", "1G"))
}

// chatRequest is a request of a user that is charged so many tokens at first, and costs half of them. A stream takes a second.
func chatRequest(user string, tokens int, stream bool) load.Request {
	path := origin.ChatPath
	if stream {
		path += fmt.Sprintf("?ms_per_token=%d", 1000/(tokens/2))
	}
	return load.Request{
		Method: "POST", Path: path, User: user, Headers: []byte("X-User: " + user + "\r\nContent-Type: application/json\r\n"),
		Body: fmt.Appendf(nil, `{"messages": [{"role": "user", "content": ""}], "max_tokens": %d, "stream": %t}`, tokens, stream),
	}
}

// BenchmarkLoadBudgets has users with limits of what requests cost, beside many without: how much of the limits is used and
// never more, what a stream's first byte waits for, and what those pay who have no such limit.
func BenchmarkLoadBudgets(b *testing.B) {
	windows := newTable(fmt.Sprintf("Budgets: %d users with %d tokens a second, %d requests a second each, and %d users with %d tokens a minute, in bursts of %d every %v for %v, a tenth of them\n"+
		"streams of a second; each request may cost %d tokens and costs %d; beside them %d free users. 'settled' is what the admitted requests of a window cost; 'uncharged' were admitted\n"+
		"because the agent's answer came too late, after %v; 'corrected' is the part of what came back of what should have",
		secondUsers, budgetSecond, secondRate, minuteUsers, budgetMinute, budgetBurst, budgetBurstEvery, budgetWindows, budgetMaxTokens, budgetCost, freeUsers, budgetWait),
		"instances", "limit of a", "settled ÷ limit: max", "mean", "refused", "uncharged", "corrected", "failed", "free: refused", "p50 ms", "p99 ms")
	streams := [][]string{{"instances", "users", "costs", "first byte p50 ms", "more", "p95 ms", "more"}}
	price := [][]string{{"instances", "requests", "requests/s", "of those without costs", "HAProxy CPU µs/request", "more", "not 200"}}
	for range b.N {
		for _, instances := range []int{1, 2, 4} {
			b.Run("case", func(b *testing.B) { // a case of its own ends its processes before the next one starts
				addr := startChat(b)
				start := func(costs bool, origin string) *cluster.Cluster {
					c := cluster.Start(b, cluster.Options{
						Instances: instances, MaxWait: budgetWait, Origin: origin, Limits: budgetLimits(costs),
						// As the files for costs have it for what they charge: else HAProxy's kernel keeps the first events for 200 ms.
						Rules: []string{"option http-no-delay"},
					})
					c.Settle()
					return c
				}
				with, without := start(true, addr), start(false, addr)
				budgetWindowsOf(b, with, windows)
				streams = append(streams, firstBytes(b, without, with)...)
				with.Stop()
				without.Stop()
				if instances <= 2 { // more of them only share the machine's processors
					price = append(price, priceOfBudgets(b, instances, start)...)
				}
			})
		}
	}
	printTable("Budgets: the first byte of streams, compared with a cluster whose limit file has no costs. The origin's is there after 50 ms", streams)
	printTable(fmt.Sprintf("Budgets: what users without a limit of costs pay for them; %d connections, two clusters take turns in %d slices of %v each", costConnections, priceCycles, costSlice), price)
}

// startChat starts the demo origin in this process.
func startChat(b *testing.B) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = origin.New().Serve(ctx, l)
	}()
	b.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

// An offer is a request and when it is due.
type offer struct {
	at      time.Duration
	request load.Request
}

// offerBudgets is what all users send: those with a limit by the second at a rate, those with one by the minute in bursts, and
// the free ones in turn.
func offerBudgets() (all []offer) {
	steady := func(rate float64, request func(i int) load.Request) {
		for i, at := range load.Uniform(rate, budgetWindows, nil) {
			all = append(all, offer{at, request(i)})
		}
	}
	for u := range secondUsers {
		q := chatRequest(fmt.Sprint("second-", u), budgetMaxTokens, false)
		steady(secondRate, func(int) load.Request { return q })
	}
	for u := range minuteUsers {
		name := fmt.Sprint("minute-", u)
		short, stream := chatRequest(name, budgetMaxTokens, false), chatRequest(name, budgetMaxTokens, true)
		// The users' bursts do not come together: that would measure the machine.
		for at := budgetBurstEvery * time.Duration(u) / minuteUsers; at < budgetWindows; at += budgetBurstEvery {
			for i := range budgetBurst {
				q := short
				if i%10 == 0 {
					q = stream
				}
				all = append(all, offer{at, q})
			}
		}
	}
	steady(freeRate, func(i int) load.Request {
		return chatRequest(fmt.Sprint("free-", i%freeUsers), budgetMaxTokens/10, false)
	})
	slices.SortStableFunc(all, func(a, b offer) int { return int(a.at - b.at) })
	return all
}

// budgetWindowsOf offers far more than the limits for a part of a minute, and adds a row for each kind of limit.
func budgetWindowsOf(b *testing.B, c *cluster.Cluster, t *table) {
	targets, err := load.Spread("even", c.Addresses()...)
	if err != nil {
		b.Fatal(err)
	}
	all := offerBudgets()
	// A limit by the minute is to be used up before its window ends.
	const most = budgetWindows + 5*time.Second
	if now := time.Now(); now.Truncate(time.Minute) != now.Add(most).Truncate(time.Minute) {
		time.Sleep(time.Until(now.Truncate(time.Minute).Add(time.Minute)))
	}
	r, err := load.Run(b.Context(), load.Spec{
		Targets: targets, Rate: float64(len(all)) / budgetWindows.Seconds(), Duration: budgetWindows, Align: true, Timeout: testkit.Patience,
		Arrivals: func(float64, time.Duration, *rand.Rand) []time.Duration {
			times := make([]time.Duration, len(all))
			for i, o := range all {
				times[i] = o.at
			}
			return times
		},
		Requests: func(i int) load.Request { return all[i].request },
	})
	if err != nil {
		b.Fatal(err)
	}
	bySecond, byMinute := parts{}, parts{}
	for u := range secondUsers {
		// Each request costs the same, so tokens are counted as requests.
		ratios := r.User(fmt.Sprint("second-", u)).Ratios(budgetSecond/budgetCost, clockSlack)
		for _, row := range ratios.Rows {
			if row.Whole {
				bySecond.add(row.Ratio)
			}
		}
	}
	for u := range minuteUsers {
		byMinute.add(float64(len(r.User(fmt.Sprint("minute-", u)).Admitted().Results)) * budgetCost / budgetMinute)
	}
	of := func(prefix string, n int) *load.Report {
		members := make([]bool, len(r.Users))
		for u := range n {
			if i := slices.Index(r.Users, fmt.Sprint(prefix, u)); i >= 0 {
				members[i] = true
			}
		}
		return r.Only(func(x load.Result) bool { return members[x.User] })
	}
	free := of("free-", freeUsers)
	service := free.Service()
	millis := func(q float64) string { return fmt.Sprintf("%.1f", service.Quantile(q).Seconds()*1000) }
	for _, row := range []struct {
		window, tier string
		used         parts
		report       *load.Report
	}{{"second", "seconds", bySecond, of("second-", secondUsers)}, {"minute", "minutes", byMinute, of("minute-", minuteUsers)}} {
		admitted := float64(len(row.report.Admitted().Results))
		uncharged, corrected := chargedOf(b, c, row.tier, admitted)
		t.row(fmt.Sprint(len(c.Instances)), row.window, fmt.Sprintf("%.3f", row.used.max), fmt.Sprintf("%.3f", row.used.sum/float64(row.used.n)),
			fmt.Sprint(len(row.report.Refused().Results)), fmt.Sprint(uncharged), fmt.Sprintf("%.4f", corrected), fmt.Sprint(len(row.report.Failures())),
			fmt.Sprint(len(free.Refused().Results)), millis(0.5), millis(0.99))
	}
}

// parts are how much of their limits windows have used.
type parts struct {
	max, sum float64
	n        int
}

func (p *parts) add(ratio float64) { p.max, p.sum, p.n = max(p.max, ratio), p.sum+ratio, p.n+1 }

// chargedOf is how many of a tier's admitted requests nobody was charged for, and the part of what came back of what they did
// not cost. The last corrections come when the last answers have ended.
func chargedOf(b *testing.B, c *cluster.Cluster, tier string, admitted float64) (uncharged int, corrected float64) {
	_ = testkit.Poll(2*time.Second, func() error {
		charged := sum(b, c, "sluice_cost_charged_total", fmt.Sprintf("tier=%q", tier))
		refunded := sum(b, c, "sluice_cost_refunded_total", fmt.Sprintf("tier=%q", tier))
		uncharged = int(admitted - charged/budgetMaxTokens)
		if corrected = refunded / (charged * (budgetMaxTokens - budgetCost) / budgetMaxTokens); corrected < 1 {
			return errors.New("not all is corrected")
		}
		return nil
	})
	return uncharged, corrected
}

// firstBytes sends the same streams to two clusters, and returns a row for users of each without and with a limit of costs.
func firstBytes(b *testing.B, without, with *cluster.Cluster) (rows [][]string) {
	var targets []load.Target
	for _, address := range slices.Concat(without.Addresses(), with.Addresses()) {
		targets = append(targets, load.Target{Address: address})
	}
	const users = 10
	requests := make([]load.Request, 2*users)
	for i := range requests {
		requests[i] = chatRequest([]string{"free", "large"}[i%2]+fmt.Sprint("-", i/2), 40, true)
	}
	r, err := load.Run(b.Context(), load.Spec{
		Targets: targets, Rate: streamRate, Duration: streamsFor, Arrivals: load.Poisson, Seed: 1, Timeout: testkit.Patience,
		Requests: func(i int) load.Request { return requests[i%len(requests)] },
	})
	if err != nil {
		b.Fatal(err)
	}
	delays := func(costs bool, users string) (all load.Distribution) {
		for _, x := range r.Admitted().Results {
			if (int(x.Target) >= len(without.Instances)) == costs && strings.HasPrefix(r.Users[x.User], users) {
				all = append(all, time.Duration(x.Answered-x.Sent))
			}
		}
		slices.Sort(all)
		return all
	}
	for _, users := range []string{"free", "large"} {
		before := delays(false, users)
		for _, costs := range []bool{false, true} {
			d := delays(costs, users)
			row := []string{fmt.Sprint(len(with.Instances)), users, map[bool]string{false: "none in the file", true: "in the file"}[costs]}
			for _, q := range []float64{0.5, 0.95} {
				row = append(row, fmt.Sprintf("%.2f", d.Quantile(q).Seconds()*1000), fmt.Sprintf("%+.2f", (d.Quantile(q)-before.Quantile(q)).Seconds()*1000))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// cheapChat is cheapOrigin whose answers say what they cost.
const cheapChat = cheapFrontend + `    http-request return status 200 content-type application/json string '{"id":"x","object":"chat.completion","usage":{"prompt_tokens":1,"completion_tokens":19,"total_tokens":20}}'
`

// priceOfBudgets has two clusters take turns whose files differ in costs alone, and returns rows of users who have no limit
// of costs: for requests that no unit is about, and for those that cost something.
func priceOfBudgets(b *testing.B, instances int, start func(costs bool, origin string) *cluster.Cluster) (rows [][]string) {
	file, addr := filepath.Join(b.TempDir(), "origin.cfg"), testkit.FreeAddr(b)
	if err := os.WriteFile(file, []byte(cheapChat), 0o644); err != nil {
		b.Fatal(err)
	}
	testkit.HAProxy(b, file, addr, "BIND="+addr)
	clusters := []*cluster.Cluster{start(false, addr), start(true, addr)}
	for _, kind := range []struct {
		name    string
		request func(user string) load.Request
	}{
		{"GET", func(user string) load.Request { return load.Request{Headers: []byte("X-User: " + user + "\r\n")} }},
		{"of the unit", func(user string) load.Request { return chatRequest(user, 40, false) }},
	} {
		requests := make([]load.Request, freeUsers)
		for i := range requests {
			requests[i] = kind.request(fmt.Sprint("free-", i))
		}
		var variants []*variant
		for _, c := range clusters {
			v := &variant{name: kind.name, notOK: make(map[int]int), cluster: c}
			for _, in := range c.Instances {
				v.proxies = append(v.proxies, in.HAProxy)
			}
			var err error
			if v.busy, err = newSlicer(c.Addresses(), costConnections, requests); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(v.busy.Close)
			variants = append(variants, v)
		}
		meet(b, variants, freeUsers*instances)
		for cycle := range 2 * priceCycles {
			variants[(cycle+cycle/2)%2].turn(b) // 0 1 1 0: neither always finds the machine as the other one left it
		}
		var ratio, more, rate, proxy []float64
		for i, t := range variants[1].turns {
			before := variants[0].turns[i]
			ratio, more = append(ratio, t.rate/before.rate), append(more, t.proxy-before.proxy)
			rate, proxy = append(rate, t.rate), append(proxy, t.proxy)
		}
		rows = append(rows, []string{fmt.Sprint(instances), kind.name, median("%.0f", rate), middle("%.3f", ratio), median("%.1f", proxy), middle("%+.1f", more), strings.TrimPrefix(fmt.Sprint(variants[1].notOK), "map")})
	}
	return rows
}
