package haproxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// BenchmarkCPU reports HAProxy's CPU time per request, one thread and 64
// connections: without Sluice, with identification and tables, with the agent
// asked besides, with requests in progress counted and told to a peer besides,
// as shipped, which is that and what it takes to wait, and with an access log,
// limits of addresses, and the classes of S3 besides, for several requests.
// What holds bodies is left out, as where nobody's bandwidth is limited.
//
//	go test -run '^$' -bench CPU -benchtime 200000x ./haproxy
func BenchmarkCPU(b *testing.B) {
	const (
		wait  = `filter spoe engine sluice-wait |http-request send-spoe-group sluice-wait |acl sluice_waits |http-request set-var\(txn.sluice.reason\) .* if sluice_waits `
		count = `http-request (track-sc0|set-priority-class) |acl sluice_unheard |http-request .* if sluice_unheard\b`
	)
	s3 := Config{Classes: limits.S3Classes(nil)}
	for _, v := range []struct {
		name   string
		drop   string // lines of the frontend and of backend asked that are left out
		peer   bool
		config Config
		target string
	}{
		{"plain", `http-(request|after-response) |acl |filter |use_backend `, false, Config{Env: []string{"SLUICE_CREDIT=off"}}, "/"},
		{"tables", `filter |http-request send-spoe-group |` + wait + `|` + count, false, Config{Env: []string{"SLUICE_CREDIT=off"}}, "/"},
		{"agent", wait + `|` + count, false, Config{Env: []string{"SLUICE_CREDIT=off"}}, "/"},
		{"progress", wait, true, Config{Env: []string{"SLUICE_CREDIT=off"}}, "/"},
		{"without credit", `$`, true, Config{Env: []string{"SLUICE_CREDIT=off"}}, "/"},
		{"shipped", `$`, true, Config{}, "/"},
		{"credit", `$`, true, Config{}, "/"},
		{"credit of all requests", `$`, true, Config{CreditClasses: []string{"*"}}, "/"},
		{"credit of all requests by header", `$`, true, Config{CreditClasses: []string{"*"}, Identify: "header:X-User"}, "/"},
		{"credit of all requests by header, fitted files", `$`, true, Config{CreditClasses: []string{"*"}, Identify: "header:X-User", Fitted: true, Bandwidth: true}, "/"},
		{"access log", `$`, true, Config{Env: []string{"SLUICE_ACCESS_LOG=json"}}, "/"},
		{"failed authentication", `$`, true, Config{Addresses: limits.AddressLimits{FailedAuth: 30, FailedAuthWindow: limits.Minute}}, "/"},
		{"limits of an address", `$`, true, Config{Addresses: limits.AddressLimits{Requests: limits.MaxPerSecond, Concurrent: limits.MaxConcurrent}}, "/"},
		{"s3 object", `$`, true, s3, "/bucket/key"},
		{"s3 list", `$`, true, s3, "/bucket?list-type=2&prefix=a%2Fb&delimiter=%2F"},
		{"s3 presigned", `$`, true, s3, "/bucket/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400" +
			"&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"},
	} {
		b.Run(v.name, func(b *testing.B) {
			r := newRig(b, setup{Config: v.config, edit: func(cfg string) string {
				view, err := v.config.newView()
				if err != nil {
					b.Fatal(err)
				}
				hold, err := render(haproxyTemplate, "hold", view, 0)
				if err != nil {
					b.Fatal(err)
				}
				return without(v.drop)(strings.Replace(cfg, hold, "", 1)) // in backend asked
			}})
			if v.peer {
				r.peer(b)
			}
			if strings.HasPrefix(v.name, "credit") {
				r.teachRow(b, generation, 0, 0)
				r.lend(b, "alice", credit(unlimited, nil))
			}
			r.benchmark(b, v.target)
		})
	}
}

// without edits out those lines of the frontend and of backend asked that begin with a match of drop.
func without(drop string) func(cfg string) string {
	pattern := regexp.MustCompile(`^    (` + drop + `)`)
	return func(cfg string) string {
		before, frontend, _ := strings.Cut(cfg, "frontend http\n")
		frontend, after, _ := strings.Cut(frontend, "\nbackend origin\n")
		var kept strings.Builder
		for line := range strings.Lines(frontend) {
			if !pattern.MatchString(line) {
				kept.WriteString(line)
			}
		}
		return before + "frontend http\n" + kept.String() + "\n\nbackend origin\n" + after
	}
}

// benchmark makes b.N requests for the target over 64 connections.
func (r *rig) benchmark(b *testing.B, target string) {
	const connections = 64
	request := []byte(httpGET(target, "User-Agent: bench", "Accept: */*", "X-User: alice"))
	drive(b, r.addr, request, connections, connections) // opens the connections to agent and origin
	before, err := r.proc.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	drive(b, r.addr, request, b.N, connections)
	b.StopTimer()
	after, err := r.proc.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((after-before).Microseconds())/float64(b.N), "haproxy-µs/op")
}

// drive makes n requests over some connections. Each answer is a 200.
func drive(b *testing.B, addr string, request []byte, n, connections int) {
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			in := bufio.NewReaderSize(conn, 256<<10)
			for range (n + i) / connections {
				if _, err := conn.Write(request); err != nil {
					b.Error(err)
					return
				}
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
					b.Errorf("status %d, %v, want 200", resp.StatusCode, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
