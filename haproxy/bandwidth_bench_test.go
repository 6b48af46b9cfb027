package haproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkBandwidthCPU reports HAProxy's CPU time per request of 1 KiB over 64
// connections, and per GiB of 100 MiB objects over 4: as it was without bandwidth
// limits, for a user without one, and for users far below theirs. Compare within one
// run, and take the least of several (-count).
//
//	go test -run '^$' -bench BandwidthCPU -benchtime 40000x -count 3 ./haproxy
func BenchmarkBandwidthCPU(b *testing.B) {
	none := func(cfg string) string { return strings.Replace(cfg, "    option contstats\n", "", 1) }
	far := uint32(1 << 28) // 16 GiB/s
	for _, threads := range []int{1, 2} {
		for _, size := range []int{1 << 10, 100 * mib} {
			for _, v := range []struct {
				name   string
				edit   func(string) string
				answer vars
			}{
				{"without", none, nil},
				{"unlimited", nil, nil},
				{"down", nil, vars{"down": far}},
				{"down and up", nil, vars{"down": far, "up": far}},
			} {
				b.Run(fmt.Sprintf("threads=%d/size=%d/%s", threads, size, v.name), func(b *testing.B) {
					s := setup{serve: moving.ServeHTTP, edit: v.edit}
					s.Env = []string{fmt.Sprint("SLUICE_THREADS=", threads)}
					r := newRig(b, s)
					r.peer(b)
					r.answerWith(func(heard) vars { return v.answer })
					n, conns := b.N, 64
					if size > mib {
						n, conns = max(20, b.N/2000), 4
					}
					request := []byte(httpGET(fmt.Sprintf("/%d", size), "X-User: alice"))
					drive(b, r.addr, request, conns, conns)
					before, err := r.proc.CPU()
					if err != nil {
						b.Fatal(err)
					}
					start := time.Now()
					drive(b, r.addr, request, n, conns)
					took := time.Since(start)
					after, err := r.proc.CPU()
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(0, "ns/op")
					if cpu := (after - before).Seconds(); size > mib {
						b.ReportMetric(cpu/float64(n*size)*(1<<30), "haproxy-s/GiB")
					} else {
						b.ReportMetric(cpu*1e6/float64(n), "haproxy-µs/op")
						b.ReportMetric(float64(n)/took.Seconds(), "req/s")
					}
				})
			}
		}
	}
}

// BenchmarkBandwidthAccuracy prints, as parts of the share: the mean of three seconds
// after the first, the lowest and highest of them, and the first; and Jain's index
// over the streams. Downloads are counted by the clients, uploads by the origin.
//
//	go test -run '^$' -bench BandwidthAccuracy -benchtime 1x -timeout 20m ./haproxy
func BenchmarkBandwidthAccuracy(b *testing.B) {
	fmt.Printf("| share | streams | kind | mean | seconds | first | Jain |\n|---|---|---|---|---|---|---|\n")
	for _, size := range []int{1, 10, 50, 100} {
		for _, streams := range []int{1, 2, 8, 64} {
			for _, k := range []kind{{false, false}, {true, false}, {false, true}, {true, true}} {
				b.Run(fmt.Sprintf("MiB=%d/streams=%d/%v", size, streams, k), func(b *testing.B) {
					limit := float64(size * mib)
					s := setup{serve: moving.ServeHTTP}
					s.Env = []string{"SLUICE_THREADS=2"}
					f := newRig(b, s).someone(share(size*mib, size*mib)).flow(b, k, streams)
					for f.now().total() == 0 {
						time.Sleep(time.Millisecond)
					}
					at := []snapshot{{time.Now(), make([]int64, streams)}}
					for range 4 {
						time.Sleep(time.Second)
						at = append(at, f.now())
					}
					f.stop()
					first, _ := rate(at[0], at[1])
					mean, jain := rate(at[1], at[4])
					var seconds []float64
					for i := 2; i < len(at); i++ {
						second, _ := rate(at[i-1], at[i])
						seconds = append(seconds, second/limit)
					}
					fmt.Printf("| %d MiB/s | %d | %v | %.3f | %.3f–%.3f | %.2f | %.4f |\n", size, streams, k, mean/limit,
						min(seconds[0], seconds[1], seconds[2]), max(seconds[0], seconds[1], seconds[2]), first/limit, jain)
				})
			}
		}
	}
}
