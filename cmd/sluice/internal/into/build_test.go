package into

import (
	"strings"
	"testing"
)

func TestWhatABuildLacks(t *testing.T) {
	const lua = "Feature list : +EPOLL +LUA +OPENSSL -QUIC\n"
	for _, row := range []struct {
		said      string
		bandwidth bool
		fatal     bool
		want      string
	}{
		{"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n" + lua, false, false, ""},
		{"HAProxy version 3.2.26-1 2026/10/17\n" + lua, true, false, ""},
		{"HAProxy version 2.6.12-1\n" + lua, true, false, `before HAProxy 2.8 "timeout server" ends uploads that wait for their share of bandwidth so long: ` +
			`write "http-request set-timeout server 1h if { var(txn.sluice.up) -m found }" into your backends`},
		{"HA-Proxy version 2.2.9-2+deb11u6 2023/12/21\n" + lua, false, true, "it is HAProxy 2.2: want 2.6 or newer"},
		{"HAProxy version 2.8.0\nFeature list : +EPOLL -LUA +OPENSSL\n", false, true, "it is built without Lua (USE_LUA=1), which Sluice's lines load: take another build, such as a distribution's"},
		{"HAProxy version 3.4.7-1\nFeature list : -ECH +LUA +OPENSSL +PROMEX\n", false, false, ""},
		{"HAProxy version 3.5-dev5\nFeature list : +LUA +OPENSSL +SPOE\n", false, false, ""},
		{"HAProxy version 3.5-dev5\nFeature list : +LUA +OPENSSL -SPOE\n", false, true, "it is built without SPOE (USE_SPOE=0), by which HAProxy asks Sluice's agent: take another build, such as a distribution's"},
		{"nginx version: nginx/1.22.1\n", false, true, "it does not tell a version: want HAProxy 2.6 or newer"},
	} {
		var got Finding
		found, moreCounters := FindInBuild("haproxy", row.said, row.bandwidth)
		if len(found) > 0 {
			got = found[0]
		}
		if want := got.What == "" && !strings.Contains(row.said, "2.6"); moreCounters != want {
			t.Errorf("FindInBuild(%q) says that there are more than three sticky counters: %t, want %t", row.said, moreCounters, want)
		}
		if got.What != row.want || got.Fatal != row.fatal {
			t.Errorf("FindInBuild(%q) = %q, fatal %t, want %q, %t", row.said, got.What, got.Fatal, row.want, row.fatal)
		}
	}
}
