package into

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	// Until 2.3 its name had a hyphen.
	versionLine = regexp.MustCompile(`(?m)^HA-?Proxy version (\d+)\.(\d+)`)
	features    = regexp.MustCompile(`(?m)^Feature list : (.*)$`)
)

// FindInBuild returns what a HAProxy lacks that says this about itself (haproxy -vv), and whether it has more than three sticky counters.
func FindInBuild(path, said string, bandwidth bool) (found []Finding, moreCounters bool) {
	fatal := func(format string, args ...any) ([]Finding, bool) {
		return []Finding{{File: path, Fatal: true, What: fmt.Sprintf(format, args...)}}, false
	}
	version := versionLine.FindStringSubmatch(said)
	if version == nil {
		return fatal("it does not tell a version: want HAProxy 2.6 or newer")
	}
	var major, minor int
	_, _ = fmt.Sscan(version[1], &major) // digits
	_, _ = fmt.Sscan(version[2], &minor)
	// Rows of tables have several gpt and gpc from 2.5 on, and 2.6 is the oldest that is tested.
	if major < 2 || major == 2 && minor < 6 {
		return fatal("it is HAProxy %d.%d: want 2.6 or newer", major, minor)
	}
	// Without a list of features, haproxy -c finds out. Lua is listed by every version, SPOE only where it can be left out (3.5).
	if list := features.FindStringSubmatch(said); list != nil {
		names := strings.Fields(list[1])
		if !slices.Contains(names, "+LUA") {
			return fatal("it is built without Lua (USE_LUA=1), which Sluice's lines load: take another build, such as a distribution's")
		}
		if slices.Contains(names, "-SPOE") {
			return fatal("it is built without SPOE (USE_SPOE=0), by which HAProxy asks Sluice's agent: take another build, such as a distribution's")
		}
	}
	moreCounters = major > 2 || minor >= 8
	// Our own configuration has that rule in its backends, and HAProxy takes it nowhere else.
	if bandwidth && !moreCounters {
		found = []Finding{{File: path, What: "before HAProxy 2.8 \"timeout server\" ends uploads that wait for their share of bandwidth so long: " +
			"write \"http-request set-timeout server 1h if { var(txn.sluice.up) -m found }\" into your backends"}}
	}
	return found, moreCounters
}
