package haproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// completion is an answer of a language model, of 2 KiB.
var completion = func() string {
	text := `{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"a-model","choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"%s","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,` +
		`"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default"}`
	return fmt.Sprintf(text, strings.Repeat("Lorem ipsum dolor sit amet, \\n", 100)[:2048-len(text)+2])
}()

// events are a stream of one, of 200 of them.
var events = strings.Repeat("data: {\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\"model\":\"a-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}],\"usage\":null}\n\n", 200) +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\ndata: [DONE]\n\n"

// costKind is files and an agent that cost something.
type costKind struct {
	name    string
	costs   []limits.CostUnit
	charged vars
	credit  bool // the user has credit
}

var (
	headerUnit = []limits.CostUnit{{Name: "exports", Estimate: limits.CostSource{Header: "x-rows"}, Actual: limits.CostSource{Header: "x-cost"}}}
	jsonUnit   = []limits.CostUnit{{Name: "tokens", Actual: limits.CostSource{JSON: limits.CostPaths{{Names: []string{"usage", "total_tokens"}}}}}}
	charged    = vars{"charged_0": "1000@1764003600"}
)

// costGroups are what is compared: the first row of each is what costs add to.
var costGroups = []struct {
	name, path string
	rows       []costKind
}{
	{"header", "/header", []costKind{{"asked", nil, nil, false}, {"files with costs, not charged", headerUnit, nil, false}, {"charged", headerUnit, charged, false}}},
	{"2 KiB of JSON", "/json", []costKind{{"asked", nil, nil, false}, {"files with costs, not charged", jsonUnit, nil, false}, {"charged", jsonUnit, charged, false}}},
	{"200 events", "/events", []costKind{{"asked", nil, nil, false}, {"files with costs, not charged", jsonUnit, nil, false}, {"charged", jsonUnit, charged, false}}},
	{"credit", "/header", []costKind{{"credit", nil, nil, true}, {"files with costs", slices.Concat(headerUnit, jsonUnit), nil, true}}},
}

// BenchmarkCostsCPU reports what costs add to HAProxy's CPU time per request, one thread and 16 connections. All
// of a group run side by side and take turns of 500 requests, and the median of the differences in a
// turn from the first one counts: so a machine that is busy meanwhile changes little. Each is started eight times, because
// two processes of the same row differ by some microseconds as well, for as long as they live.
//
//	go test -run '^$' -bench CostsCPU -benchtime 40000x ./haproxy
func BenchmarkCostsCPU(b *testing.B) {
	for _, group := range costGroups {
		b.Run(group.name, func(b *testing.B) {
			request := []byte(httpGET(group.path, "X-User: alice", "X-Rows: 1000"))
			differences, first := make([][]float64, len(group.rows)), []float64{}
			const starts, turn = 8, 500
			for range starts {
				var rigs []*rig
				for _, row := range group.rows {
					rigs = append(rigs, newCostKind(b, row, request))
				}
				for range max(1, b.N/turn/starts) {
					var spent []float64
					for _, c := range rigs {
						spent = append(spent, c.cpuOf(b, func() { drive(b, c.addr, request, turn, 16) })/turn)
					}
					first = append(first, spent[0])
					for i := range rigs {
						differences[i] = append(differences[i], spent[i]-spent[0])
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(first), "µs/"+strings.ReplaceAll(group.rows[0].name, " ", "_"))
			for i, row := range group.rows[1:] {
				b.ReportMetric(median(differences[i+1]), "+µs/"+strings.ReplaceAll(row.name, " ", "_"))
			}
		})
	}
}

// cpuOf is the CPU time that HAProxy takes while f runs, in µs.
func (c *rig) cpuOf(b *testing.B, f func()) float64 {
	b.Helper()
	before, err := c.proc.CPU()
	if err != nil {
		b.Fatal(err)
	}
	f()
	after, err := c.proc.CPU()
	if err != nil {
		b.Fatal(err)
	}
	return float64((after - before).Microseconds())
}

// BenchmarkCostsFirstByte reports how long after a request the first byte of a stream of events is there, and the last one:
// the medians of requests that take turns.
//
//	go test -run '^$' -bench CostsFirstByte -benchtime 4000x ./haproxy
func BenchmarkCostsFirstByte(b *testing.B) {
	request := []byte(httpGET("/paced", "X-User: alice"))
	rows := []costKind{{"asked", nil, nil, false}, {"charged", jsonUnit, charged, false}}
	var first, last [2][]float64
	var conns [2]net.Conn
	var in [2]*bufio.Reader
	for i, row := range rows {
		conns[i] = dial(b, "tcp", newCostKind(b, row, request).addr)
		_ = conns[i].SetDeadline(time.Time{})
		in[i] = bufio.NewReader(conns[i])
	}
	for n := range max(2, b.N) {
		i := n % 2
		start := time.Now()
		if _, err := conns[i].Write(request); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(in[i], nil)
		if err != nil {
			b.Fatal(err)
		}
		var one [1]byte
		if _, err := io.ReadFull(resp.Body, one[:]); err != nil {
			b.Fatal(err)
		}
		first[i] = append(first[i], float64(time.Since(start).Nanoseconds())/1000)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		last[i] = append(last[i], float64(time.Since(start).Nanoseconds())/1000)
	}
	b.ReportMetric(0, "ns/op")
	for i, row := range rows {
		b.ReportMetric(median(first[i]), "µs-first/"+row.name)
		b.ReportMetric(median(last[i]), "µs-last/"+row.name)
	}
}

// newCostKind starts HAProxy, agent and origin of a row, and makes requests until they are warm.
func newCostKind(b *testing.B, k costKind, request []byte) *rig {
	b.Helper()
	costs := k.costs
	if costs == nil {
		costs = []limits.CostUnit{}
	}
	c := newRig(b, setup{
		Config: Config{Identify: "header:X-User", Fitted: true, CreditClasses: []string{"*", "GET"}, Costs: costs},
		serve: func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/json":
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, completion)
			case "/events", "/paced":
				w.Header().Set("Content-Type", "text/event-stream")
				for event := range strings.SplitAfterSeq(events, "\n\n") {
					_, _ = io.WriteString(w, event)
					w.(http.Flusher).Flush()
					if q.URL.Path == "/paced" {
						time.Sleep(100 * time.Microsecond) // else the first ones are in HAProxy at once
					}
				}
			default:
				w.Header().Set("X-Cost", "40")
				_, _ = io.WriteString(w, "origin")
			}
		},
	})
	c.answerTold(func(told) vars { return k.charged })
	if k.credit {
		c.teachRow(b, generation, 0, 0)
		c.lend(b, "alice", credit(unlimited, nil))
	}
	drive(b, c.addr, request, 500, 16)
	return c
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkCostsInstructions reports the same in instructions, as callgrind counts them: they are the same on a
// busy machine.
//
//	go test -run '^$' -bench CostsInstructions -benchtime 1600x ./haproxy
func BenchmarkCostsInstructions(b *testing.B) {
	for _, group := range costGroups {
		for _, row := range group.rows {
			b.Run(group.name+"/"+row.name, func(b *testing.B) {
				b.Setenv("SLUICE_HAPROXY", underCallgrind(b))
				request := httpGET(group.path, "X-User: alice", "X-Rows: 1000")
				c := newCostKind(b, row, []byte(request))
				drive := c.driver(b, func() string { return request })
				drive(320)
				c.callgrind(b, "-i", "on")
				drive(160)
				c.callgrind(b, "-z")
				drive(b.N)
				c.callgrind(b, "-d")
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(c.counted(b))/float64(b.N), "instructions/op")
			})
		}
	}
}
