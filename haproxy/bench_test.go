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
	"time"
)

// BenchmarkCPU reports HAProxy's CPU time per request, one thread and 64
// connections: without Sluice, with everything but the agent, and as shipped.
//
//	go test -run '^$' -bench CPU -benchtime 200000x ./haproxy
func BenchmarkCPU(b *testing.B) {
	const connections = 64
	for _, v := range []struct {
		name string
		drop string // lines of the frontend that are left out
	}{
		{"plain", `^    (http-request|acl|filter|use_backend) `},
		{"tables", `^    (filter spoe|http-request send-spoe-group) `},
		{"agent", `^$`},
	} {
		b.Run(v.name, func(b *testing.B) {
			drop := regexp.MustCompile(v.drop)
			r := newRig(b, setup{edit: func(cfg string) string {
				before, frontend, _ := strings.Cut(cfg, "frontend http\n")
				frontend, after, _ := strings.Cut(frontend, "\nbackend origin\n")
				var kept strings.Builder
				for line := range strings.Lines(frontend) {
					if !drop.MatchString(line) {
						kept.WriteString(line)
					}
				}
				return before + "frontend http\n" + kept.String() + "\n\nbackend origin\n" + after
			}})
			request := []byte(httpGET("/", "User-Agent: bench", "Accept: */*", "X-User: alice"))
			drive := func(n int) {
				var wg sync.WaitGroup
				for i := range connections {
					wg.Go(func() {
						conn, err := net.Dial("tcp", r.addr)
						if err != nil {
							b.Error(err)
							return
						}
						defer conn.Close()
						in := bufio.NewReader(conn)
						for range (n + i) / connections {
							_ = conn.SetDeadline(time.Now().Add(time.Minute))
							if _, err := conn.Write(request); err != nil {
								b.Error(err)
								return
							}
							resp, err := http.ReadResponse(in, nil)
							if err != nil {
								b.Error(err)
								return
							}
							_, _ = io.Copy(io.Discard, resp.Body)
							if resp.StatusCode != 200 {
								b.Errorf("status = %d, want 200", resp.StatusCode)
							}
						}
					})
				}
				wg.Wait()
			}
			drive(connections) // opens the connections to agent and origin
			before, err := r.proc.CPU()
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			drive(b.N)
			b.StopTimer()
			after, err := r.proc.CPU()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64((after-before).Microseconds())/float64(b.N), "haproxy-µs/op")
		})
	}
}
