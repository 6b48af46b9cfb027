package haproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// BenchmarkInstructions reports how many instructions HAProxy takes for a request of a user with credit and an answer of
// 1 KiB, as callgrind counts them: they are the same on a busy machine. The files are fitted to limits of GET, of all
// requests and of bandwidth, with names in a header; 16 connections send in turn. Each row has one part more than the one above it.
//
//	go test -run '^$' -bench Instructions -benchtime 1600x ./haproxy
func BenchmarkInstructions(b *testing.B) {
	free, far := credit(unlimited, nil), lent(1<<30, 1<<30)
	for _, v := range []struct {
		name      string
		bandwidth bool
		places    bool // no limit by the second
		credit    vars // nil: HAProxy without Sluice
		drop      string
		since     string // HAProxy's version; "" means any
		first     bool   // each request is the first one of its user's second
		filter    string // in place of the one in Lua
		rules     string // in the frontend of HAProxy without Sluice
	}{
		{name: "plain"},
		{name: "plain, a tracked entry and three comparisons", rules: leastCredit},
		{name: "credit", credit: free},
		{name: "credit, files for places alone", credit: free, places: true},
		{name: "credit, the first request of a user's second", credit: free, first: true},
		{name: "credit, files with bandwidth", credit: free, bandwidth: true},
		{name: "a share, held without filter and rules", credit: far, bandwidth: true, drop: `http-request |http-response |acl |option |filter `},
		{name: "a share, held without filter", credit: far, bandwidth: true, drop: `http-(request|response) lua|filter `},
		{name: "a share", credit: far, bandwidth: true},
		{name: "a share, bwlim attached in place of Lua", credit: far, bandwidth: true, drop: `http-(request|response) lua`, since: "2.7", filter: "filter bwlim-out down default-limit 1g default-period 1s"},
	} {
		if v.since != "" && testkit.HAProxyVersion(b) < v.since {
			continue
		}
		b.Run(v.name, func(b *testing.B) {
			b.Setenv("SLUICE_HAPROXY", underCallgrind(b))
			s := setup{serve: moving.ServeHTTP, Config: Config{Fitted: true, Bandwidth: v.bandwidth, Identify: "header:X-User", CreditClasses: []string{"*", "GET"}}}
			if v.places {
				s.CreditClasses = []string{}
			}
			switch {
			case v.credit == nil:
				s.edit = func(cfg string) string { return plainProxy(cfg, v.rules) }
			case v.drop != "":
				s.edit = func(cfg string) string {
					before, held, _ := strings.Cut(cfg, "\nbackend held\n")
					held, after, _ := strings.Cut(held, "\n# limited by credit: end\n")
					if v.filter != "" {
						held = strings.Replace(held, "filter lua.sluice", v.filter, 1)
					}
					return before + "\nbackend held\n" + regexp.MustCompile(`(?m)^    (?:`+v.drop+`).*\n`).ReplaceAllString(held, "") + "\n# limited by credit: end\n" + after
				}
			}
			r := newRig(b, s)
			next, last := 0, 0 // names are as long as alice's
			request := func() string {
				if v.first && last > 0 {
					next = (next + 1) % last
				}
				return httpGET("/1024", fmt.Sprintf("X-User: a%04d", next), "User-Agent: bench", "Accept: */*")
			}
			drive := r.driver(b, request)
			if v.credit != nil {
				r.peer(b)
				r.teachRow(b, generation, 0, 0)
				if v.first {
					last = 320 + 160 + b.N + 1
					r.answerTold(func(told) vars { return v.credit })
					drive(last)
				}
				r.lend(b, fmt.Sprintf("a%04d", next), v.credit)
				r.native(b, request())
				r.takeTold(b)
			}
			drive(320)
			r.callgrind(b, "-i", "on")
			drive(160)
			r.callgrind(b, "-z")
			drive(b.N)
			r.callgrind(b, "-d")
			if asked := r.takeTold(b); len(asked) > b.N/100 {
				b.Errorf("%d of %d requests were asked about", len(asked), b.N)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(r.counted(b))/float64(b.N), "instructions/op")
		})
	}
}

// leastCredit is what credit would be if no second had to be opened and none was ever withdrawn: the least that counting in HAProxy can cost.
const leastCredit = `    http-request track-sc0 req.fhdr(X-User) table least
    http-request deny if { sc_conn_cur(0) gt 1000000000 }
    http-request deny if { sc_inc_gpc(0,0) gt 1000000000 }
    http-request deny if { sc_inc_gpc(1,0) gt 1000000000 }
`

// plainProxy is a reverse proxy without Sluice, in place of haproxy.cfg, with these rules in its frontend.
func plainProxy(cfg, rules string) string {
	_, defaults, _ := strings.Cut(cfg, "\ndefaults\n")
	defaults, _, _ = strings.Cut(defaults, "\n\n")
	return `global
    nbthread 1
    stats socket "${SLUICE_STATS-none}"
defaults
` + defaults + `
frontend http
    bind "${SLUICE_BIND-none}"
    option httplog
    option dontlog-normal
    option forwardfor
` + rules + `    default_backend origin
backend least
    stick-table type string len 100 size 200k expire 10m store gpc(2),conn_cur
backend origin
    server origin "${SLUICE_ORIGIN-none}"
`
}

// underCallgrind is a HAProxy that callgrind counts once it is told to. It writes what it has counted into its folder.
func underCallgrind(b *testing.B) string {
	file := filepath.Join(b.TempDir(), "haproxy")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in -v) exec %[1]q \"$@\";; esac\n"+
		"exec valgrind -q --tool=callgrind --instr-atstart=no --callgrind-out-file=%[2]q/counts.%%p %[1]q \"$@\"\n", testkit.HAProxyPath(b), filepath.Dir(file))
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		b.Fatal(err)
	}
	return file
}

// callgrind tells HAProxy's callgrind something.
func (r *rig) callgrind(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command("callgrind_control", append(args, strconv.Itoa(r.proc.Pid()))...).CombinedOutput(); err != nil {
		b.Fatalf("callgrind_control %v: %v\n%s", args, err, out)
	}
}

// counted are the instructions of the first dump.
func (r *rig) counted(b *testing.B) (n int) {
	b.Helper()
	dump := filepath.Join(filepath.Dir(os.Getenv("SLUICE_HAPROXY")), fmt.Sprintf("counts.%d.1", r.proc.Pid()))
	testkit.Eventually(b, "what callgrind counted", func() error {
		text, err := os.ReadFile(dump)
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`(?m)^totals: (\d+)$`).FindSubmatch(text)
		if m == nil {
			return fmt.Errorf("no totals yet")
		}
		n, err = strconv.Atoi(string(m[1]))
		return err
	})
	return n
}

// driver opens 16 connections. What it returns sends so many requests over them in turn, and reads the answers.
func (r *rig) driver(b *testing.B, request func() string) func(n int) {
	b.Helper()
	conns, answers := make([]net.Conn, 16), make([]*bufio.Reader, 16)
	for i := range conns {
		conns[i] = dial(b, "tcp", r.addr)
		answers[i] = bufio.NewReader(conns[i])
	}
	return func(n int) {
		for sent := 0; sent < n; sent += len(conns) {
			turn := min(len(conns), n-sent)
			for _, conn := range conns[:turn] {
				if _, err := io.WriteString(conn, request()); err != nil {
					b.Fatal(err)
				}
			}
			for _, in := range answers[:turn] {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
					b.Fatalf("status = %d, %v, want 200", resp.StatusCode, err)
				}
			}
		}
	}
}
