package haproxycfg

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	versionLine = regexp.MustCompile(`(?m)^HA-?Proxy version (\d+)\.(\d+)`)
	features    = regexp.MustCompile(`(?m)^Feature list : (.*)$`)
)

// FindInBuild returns what a HAProxy lacks that says this about itself (haproxy -vv).
func FindInBuild(path, said string, o Ours) []Finding {
	fatal := func(format string, args ...any) []Finding {
		return []Finding{{File: path, Fatal: true, What: fmt.Sprintf(format, args...)}}
	}
	version := versionLine.FindStringSubmatch(said)
	if version == nil {
		return fatal("it does not tell a version: want HAProxy 2.6 or newer")
	}
	var major, minor int
	_, _ = fmt.Sscan(version[1], &major) // digits
	_, _ = fmt.Sscan(version[2], &minor)
	if major < 2 || major == 2 && minor < 6 {
		return fatal("it is HAProxy %d.%d: want 2.6 or newer", major, minor)
	}
	if list := features.FindStringSubmatch(said); list != nil && !strings.Contains(list[1]+" ", "+LUA ") {
		return fatal("it is built without Lua (USE_LUA=1), which Sluice's lines load: take another build, such as a distribution's")
	}
	if o.Bandwidth && major == 2 && minor < 8 {
		return []Finding{{File: path, What: "before HAProxy 2.8 \"timeout server\" ends uploads that wait for their share of bandwidth so long: " +
			"write \"http-request set-timeout server 1h if { var(txn.sluice.up) -m found }\" into your backends"}}
	}
	return nil
}
