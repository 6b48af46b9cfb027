package into

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/haproxy"
)

// lines are ours, as far as findings depend on them.
var lines = Ours{
	Process:   "backend sluice_refused\n",
	Frontend:  "    filter spoe engine sluice\n    http-request set-var(txn.sluice_user) req.fhdr(\"${SLUICE_USER_HEADER-X-User}\")\n    http-request track-sc0 src\n    http-request track-sc2 src if { sc_get_gpc(1,0) gt 0 }\n",
	Frontends: []string{"web"},
}

// parse reads files a.cfg, b.cfg and so on.
func parse(t *testing.T, files ...string) *Config {
	t.Helper()
	c := &Config{}
	for i, text := range files {
		if err := c.Add(string(rune('a'+i))+".cfg", text); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// What is found in small configurations, each with one kind of fault: by file, and line by line.
func TestFind(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Ours)
		files  []string
		want   []string
	}{
		{name: "nothing", files: []string{"frontend web\n mode http\n"}},
		{
			name: "counters and samples",
			files: []string{
				"frontend web\n mode http\n http-request track-sc0 src table t\n http-request set-var(txn.a) sc0_http_req_rate\n default_backend app\n",
				"backend app\n http-request set-header X-Rate %[sc_get_gpc(1,2)],%[sc_http_req_rate(0,t)]\n http-request track-sc4 src\n",
			},
			want: []string{
				`a.cfg:3: cannot coexist: sticky counter 0 is Sluice's, also in samples such as sc0_http_req_rate. From HAProxy 2.8 on Sluice takes others by itself; ` +
					`before, leave these lines out, or have them in a HAProxy before this one (also at 4, b.cfg:2)`,
				`b.cfg:2: cannot coexist: sticky counter 2 is Sluice's, also in samples such as sc2_http_req_rate. From HAProxy 2.8 on Sluice takes others by itself; ` +
					`before, leave these lines out, or have them in a HAProxy before this one`,
			},
		},
		{name: "counters that are free", files: []string{"frontend web\n mode http\n http-request track-sc1 src\n http-request set-var(txn.a) sc1_gpc0,add(misc0_x)\n"}},
		{
			name:  "a rule for every request",
			files: []string{"frontend web\n mode http\n http-request deny unless METH_GET\n http-request allow if { path_beg /a }\n http-request deny\n http-request auth\n http-request lua.a\n"},
			want: []string{`a.cfg:5: cannot coexist: no request of frontend web comes as far as Sluice's rules, because http-request rules without a condition end all. ` +
				`Give them one: with allow rules above a deny, have one "http-request deny unless A or B" in place of all of them (also at 6)`},
		},
		{
			name:  "rules that end some requests",
			files: []string{"defaults\n mode http\n http-request deny if TRUE\nfrontend web\n http-request lua.auth\n http-request cache-use c\n filter cache c\n .if defined(X)\n http-request deny\n .endif\n http-request set-header a b\n"},
			want:  []string{"a.cfg:3: mind: requests that http-request rules above Sluice's end are neither limited nor counted (also at 5, 6, 9)"},
		},
		{
			name:   "what names the user is rewritten",
			change: func(o *Ours) { o.Paths = true },
			files:  []string{"frontend web\n mode http\n http-request del-header x-user\n http-request set-header X-Other a\n http-request replace-path a b\n http-request set-method GET\n"},
			want: []string{
				"a.cfg:3: mind: Sluice reads this header as these rules leave it: users for which they write the same are one user. If that is wrong, have these rules in the backends",
				"a.cfg:5: mind: Sluice reads methods, paths and queries as these rules write them, not as clients sent them. If that is wrong, have these rules in the backends (also at 6)",
			},
		},
		{
			name:   "what names the user may be in the query",
			change: func(o *Ours) { o.Frontend += "    http-request set-var(txn.sluice_s3_id) url_param(AWSAccessKeyId)\n" },
			files:  []string{"frontend web\n mode http\n http-request set-query a=b\n"},
			want:   []string{"a.cfg:3: mind: Sluice reads methods, paths and queries as these rules write them, not as clients sent them. If that is wrong, have these rules in the backends"},
		},
		{name: "a rewritten path of no interest", files: []string{"frontend web\n mode http\n http-request set-path /a\n http-response allow\n"}},
		{
			name:   "answers that end",
			change: func(o *Ours) { o.Bandwidth = true },
			files:  []string{"frontend web\n mode http\n http-response allow if { status 200 }\n http-response set-header a b\n http-after-response allow\n"},
			want:   []string{"a.cfg:3: mind: answers that these rules end pass without limits of bandwidth and costs. Have the rules in the backends (also at 5)"},
		},
		{
			name:  "stats page",
			files: []string{"frontend web\n mode http\n stats enable\n stats uri /stats\n"},
			want:  []string{"a.cfg:3: mind: requests of the stats page count, and are never refused: have it in a frontend of its own (also at 4)"},
		},
		{
			name:  "sockets and names",
			files: []string{"global\n unix-bind prefix /dev/ mode 0600\n localpeer lb\nfrontend web\n mode http\n"},
			want: []string{
				"a.cfg: mind: HAProxy is called lb among its peers: start the agent with --local-peer and that name",
				"a.cfg:2: mind: the socket of peers gets this prefix, too: start the agent with --peers unix:/dev/run/sluice/peers.sock",
			},
		},
		{
			name: "chroot", files: []string{"global\n chroot /jail/\nfrontend web\n mode http\n"},
			want: []string{"a.cfg:2: mind: HAProxy connects to the agent inside of /jail: start the agent with --spoe unix:/jail/run/sluice/spoa.sock"},
		},
		{
			name: "chroot and costs", files: []string{"global\n chroot /jail/\nfrontend web\n mode http\n"},
			change: func(o *Ours) { o.Costs = true },
			want:   []string{"a.cfg:2: mind: HAProxy connects to the agent inside of /jail: start the agent with --spoe unix:/jail/run/sluice/spoa.sock and --costs-socket unix:/jail/run/sluice/costs.sock"},
		},
		{
			name:  "peers of their own",
			files: []string{"peers mine\nfrontend web\n mode http\n"},
			want:  []string{"a.cfg: mind: HAProxy is called by the name of its host, or of -L, among its peers: start the agent with --local-peer and that name"},
		},
		{
			name:  "a listen that is a backend",
			files: []string{"defaults\n mode http\nlisten web\n bind :81\n server a 127.0.0.1:9000\n default_backend web\n", "frontend other\n use_backend web if TRUE\n default_backend web\n"},
			want:  []string{"b.cfg:2: cannot coexist: web would run Sluice's rules for requests from here as a backend, where they refuse none: make it a frontend and a backend (also at 3)"},
		},
		{
			name:   "limited twice",
			change: func(o *Ours) { o.Frontends = []string{"web", "api"} },
			files:  []string{"defaults\n mode http\nfrontend web\n bind :81\n default_backend b\nbackend b\n server a localhost:82\n server b 10.0.0.1:81\nfrontend api\n bind unix@/s,*:82\n"},
			want:   []string{"a.cfg:7: mind: requests that go from here to api, which is limited, count twice: limit one of both"},
		},
		{name: "the last mode", files: []string{"defaults\n mode tcp\nfrontend web\n mode tcp\n mode http\n"}},
		{name: "a mode that may hold", files: []string{"defaults\n mode tcp\nfrontend web\n .if defined(X)\n mode http\n .else\n mode tcp\n .endif\n"}},
		{
			name: "defaults are not from the last ones", files: []string{"defaults\n mode http\ndefaults\n timeout client 1s\nfrontend web\n"},
			want: []string{"a.cfg:5: cannot coexist: frontend web has no mode http, neither itself nor by defaults: requests are limited, connections are not: have HTTP end in a frontend with mode http"},
		},
		{name: "defaults of a name", files: []string{"defaults a\n mode http\ndefaults b from a\n timeout client 1s\ndefaults\n mode tcp\nfrontend web from b\n"}},
		{
			name: "no mode", files: []string{"frontend web\n mode http\n mode tcp\n"},
			want: []string{"a.cfg:3: cannot coexist: frontend web is in mode tcp: requests are limited, connections are not: have HTTP end in a frontend with mode http"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := parse(t, row.files...)
			ours := lines
			if row.change != nil {
				row.change(&ours)
			}
			var got []string
			for _, f := range c.Find(ours) {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("Find() (-want +got):\n%s", diff)
			}
		})
	}
}

// What Sluice's lines depend on.
func TestProcess(t *testing.T) {
	const counters = "frontend web\n http-request track-sc0 src\nbackend b\n http-response sc-inc-gpc(0,4)\n"
	for _, row := range []struct {
		text         string
		moreCounters bool
		want         haproxy.Process
	}{
		{"global\n maxconn 1\n", true, haproxy.Process{}},
		{"global\n localpeer a\n lua-load a.lua\n", false, haproxy.Process{LocalPeer: true, Bools: true}},
		{"peers mine\n", false, haproxy.Process{LocalPeer: true}},
		{counters, false, haproxy.Process{}},
		{counters, true, haproxy.Process{FirstCounter: 5}},
	} {
		if diff := cmp.Diff(row.want, parse(t, row.text).Process(row.moreCounters)); diff != "" {
			t.Errorf("Process(%t) of %q (-want +got):\n%s", row.moreCounters, row.text, diff)
		}
	}
}
