package into

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/haproxy"
)

// A Finding is something about a configuration that its owner has to know.
type Finding struct {
	File string
	Line int      // 0: of the whole file
	Also []string // other lines with the same text
	// Fatal: Sluice's lines do not work with it, and nothing is written.
	Fatal bool
	What  string // what is there, and what to do
}

// String is the finding as people read it.
func (f Finding) String() string {
	place, kind, also := f.File, "mind", ""
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if f.Fatal {
		kind = "cannot coexist"
	}
	if len(f.Also) > 0 {
		also = " (also at " + strings.Join(f.Also, ", ") + ")"
	}
	return fmt.Sprintf("%s: %s: %s%s", place, kind, f.What, also)
}

// Ours is what is put in.
type Ours struct {
	Process          string // before the first section that is not global
	Frontend, Choice string // in each frontend: rules, and those that choose a backend
	Frontends        []string
	Bandwidth        bool // bodies are held
	Costs            bool // what requests cost is told to the agent
	Paths            bool // requests are told apart by their paths: there are classes, or exempt paths
}

func (c *Config) limited(o Ours) []*section {
	return c.named(func(x *section) bool { return x.frontend() && slices.Contains(o.Frontends, x.name) })
}

func (c *Config) named(want func(*section) bool) []*section {
	return slices.DeleteFunc(slices.Clone(c.sections), func(x *section) bool { return !want(x) })
}

// finder collects what is found, by lines. The same text is one finding, whatever lines it is about. No line: the whole configuration.
type finder struct {
	*Config
	Ours
	limited []*section
	reached []*section // the backends that requests of the limited frontends can go to
	found   map[*line][]Finding
}

func (f *finder) add(l *line, fatal bool, format string, args ...any) {
	f.found[l] = append(f.found[l], Finding{Fatal: fatal, What: fmt.Sprintf(format, args...)})
}

// Find returns what of a configuration cannot coexist with these lines, and what its owner has to know, by file and line.
func (c *Config) Find(o Ours) []Finding {
	f := &finder{c, o, c.limited(o), c.reached(o), map[*line][]Finding{}}
	for _, name := range o.Frontends {
		var names []string // for people to choose from: most likely the name was mistyped
		n := 0
		for _, x := range c.named((*section).frontend) {
			if names = append(names, x.name); x.name == name {
				n++
			}
		}
		if n != 1 {
			f.add(nil, true, "%d frontends are called %q, want one; there are: %s", n, name, strings.Join(names, ", "))
		}
	}
	for _, x := range f.limited {
		f.findMode(x)
		f.findRules(x)
		f.findPassed(x)
		// Now, and not when the block is put there: people want to hear all that is wrong at once.
		if _, _, err := x.places(); err != nil {
			f.add(x.lines[0], true, "%s", err)
		}
	}
	f.findCounters()
	f.findSections()
	return f.sorted()
}

// sorted is what was found as people go through their files.
func (f *finder) sorted() []Finding {
	lines := []*line{nil}
	for _, file := range f.files {
		lines = append(lines, file.lines...)
	}
	var all []Finding
	for _, l := range lines {
		here := f.found[l]
		slices.SortFunc(here, func(a, b Finding) int { return cmp.Compare(a.What, b.What) })
		// Defaults are looked at for each frontend.
		for _, x := range slices.CompactFunc(here, func(a, b Finding) bool { return a.What == b.What }) {
			i := slices.IndexFunc(all, func(a Finding) bool { return a.What == x.What })
			switch {
			case l == nil:
				x.File = f.files[0].name
				all = append(all, x)
			case i < 0:
				x.File, x.Line = l.file.name, l.number
				all = append(all, x)
			case l.file.name == all[i].File:
				all[i].Also = append(all[i].Also, strconv.Itoa(l.number))
			default:
				all[i].Also = append(all[i].Also, fmt.Sprintf("%s:%d", l.file.name, l.number))
			}
		}
	}
	return all
}

// always is whether a rule holds for all requests: it has no condition, and stands in no .if of its section.
func (l *line) always() bool {
	return l.depth == l.around && !slices.Contains(l.words, "if") && !slices.Contains(l.words, "unless")
}

// findMode looks whether a frontend has requests: the last mode of the section counts, or else that of its defaults. Of one
// in an .if it is not known whether it holds.
func (f *finder) findMode(x *section) {
	const instead = "requests are limited, connections are not: have HTTP end in a frontend with mode http"
	for part := x; part != nil; part = part.defaults {
		for _, l := range slices.Backward(part.lines) {
			switch {
			case l.is("mode", "http"):
				return
			case l.is("mode") && l.always():
				f.add(l, true, "frontend %s is in mode %s: %s", x.name, l.word(1), instead)
				return
			}
		}
	}
	// HAProxy's own default is tcp.
	f.add(x.lines[0], true, "frontend %s has no mode http, neither itself nor by defaults: %s", x.name, instead)
}

var (
	// Actions that end a frontend's rules for a request or an answer. cache-use and Lua do so for some, whatever their condition.
	answers    = []string{"allow", "auth", "deny", "redirect", "reject", "return", "silent-drop", "tarpit", "use-service"}
	answersOut = []string{"allow", "deny", "redirect", "return", "silent-drop"}
	// Actions that change what our rules read behind them.
	rewritesHeader = []string{"add-header", "del-header", "replace-header", "replace-value", "set-header"}
	rewritesPath   = []string{"replace-path", "replace-pathq", "replace-uri", "set-path", "set-pathq", "set-query", "set-uri"}
	// headerRead is a header in a rule of ours, or in the variable that names it.
	headerRead = regexp.MustCompile(`\breq\.f?hdr\("?(?:\$\{[A-Z_]+-)?([^)}",]+)`)
)

// findRules looks for rules above ours that end or change what ours are to see, and for some whose effect is not expected.
func (f *finder) findRules(x *section) {
	all := x.all()
	every := func(l *line) bool { return l.is("http-request") && slices.Contains(answers, l.word(1)) && l.always() }
	none := slices.ContainsFunc(all, every)
	for _, l := range all {
		action := l.word(1)
		ends := l.is("http-request") && (slices.Contains(answers, action) || action == "cache-use" || strings.HasPrefix(action, "lua."))
		readsHeader := func(m []string) bool { return strings.EqualFold(m[1], l.word(2)) }
		engine := l.word(slices.Index(l.words, "engine") + 1)
		switch {
		case l.is("filter", "spoe") && strings.Contains(f.Frontend, "filter spoe engine "+engine+" "):
			f.add(l, true, "engine %s of SPOE is Sluice's name: give yours another one, here and in its file", engine)
		case every(l):
			f.add(l, true, "no request of frontend %s comes as far as Sluice's rules, because http-request rules without a condition end all. "+
				"Give them one: with allow rules above a deny, have one \"http-request deny unless A or B\" in place of all of them", x.name)
		// If all requests end, it does not matter that some do so earlier.
		case ends && none:
		case ends:
			f.add(l, false, "requests that http-request rules above Sluice's end are neither limited nor counted")
		case l.is("http-request") && slices.Contains(rewritesHeader, action) && slices.ContainsFunc(headerRead.FindAllStringSubmatch(f.Frontend, -1), readsHeader):
			f.add(l, false, "Sluice reads this header as these rules leave it: users for which they write the same are one user. If that is wrong, have these rules in the backends")
		case l.is("http-request", "set-method"), l.is("http-request") && (f.Paths || strings.Contains(f.Frontend, "url_param(")) && slices.Contains(rewritesPath, action):
			f.add(l, false, "Sluice reads methods, paths and queries as these rules write them, not as clients sent them. If that is wrong, have these rules in the backends")
		case (l.is("http-response") || l.is("http-after-response")) && (f.Bandwidth || f.Costs) && slices.Contains(answersOut, action):
			f.add(l, false, "answers that these rules end pass without limits of bandwidth and costs. Have the rules in the backends")
		// The old form of http-request redirect. Its place does not matter.
		case l.is("redirect"):
			f.add(l, false, "requests that \"redirect\" answers count, and are never refused: HAProxy looks at it behind all http-request rules, and before it chooses a backend. "+
				"\"http-request redirect\" answers them before they count")
		case l.is("stats"):
			f.add(l, false, "requests of the stats page count, and are never refused: have it in a frontend of its own")
		// HAProxy takes a client that has closed its half for one that is gone, and gives up the question.
		case l.is("option", "abortonclose"):
			f.add(l, false, "with abortonclose, clients that close their half of a connection behind a request can get 400 while the agent is asked")
		}
	}
}

// chosen are the lines of a section that choose a backend.
func (x *section) chosen() []*line {
	return slices.DeleteFunc(x.all(), func(l *line) bool { return !l.is("use_backend") && !l.is("default_backend") })
}

// reached are the backends that requests of the frontends can go to: all of them if a rule looks for a name.
func (c *Config) reached(o Ours) []*section {
	var names []string
	all := false
	for _, x := range c.limited(o) {
		for _, l := range x.chosen() {
			// A name made up for each request, or from the environment, may be that of any of them.
			all = all || strings.ContainsAny(l.word(1), "%$")
			names = append(names, l.word(1))
		}
	}
	return c.named(func(x *section) bool {
		return (x.kind == "backend" || x.kind == "listen") && (all || slices.Contains(names, x.name))
	})
}

// here is this host in an address.
var here = regexp.MustCompile(`^(?:\*|0\.0\.0\.0|127\.0\.0\.1|localhost|::1?|\[::1?\])?:(\d+)$`)

// findPassed looks at a limited section that gets requests of other proxies, where our rules would run for a second time, or where
// use_backend, which refuses, does not run.
func (f *finder) findPassed(x *section) {
	for _, y := range f.named((*section).frontend) {
		for _, l := range y.chosen() {
			if l.word(1) == x.name && y != x {
				f.add(l, true, "%s would run Sluice's rules for requests from here as a backend, where they refuse none: make it a frontend and a backend", x.name)
			}
		}
	}
	var binds []string
	for _, l := range x.lines {
		if l.is("bind") {
			for bind := range strings.SplitSeq(l.word(1), ",") {
				binds = append(binds, here.ReplaceAllString(bind, "$1"))
			}
		}
	}
	for _, y := range slices.Concat(f.limited, f.reached) {
		for _, l := range y.lines {
			if l.is("server") && slices.Contains(binds, here.ReplaceAllString(l.word(2), "$1")) {
				f.add(l, false, "requests that go from here to %s, which is limited, count twice: limit one of both", x.name)
			}
		}
	}
}

// findCounters looks for sticky counters of theirs that are Sluice's, wherever a request of a limited frontend passes. A counter that is
// taken stays so for the whole request, and another rule to track by it is passed over without a word: theirs would not count, or ours
// would not. Samples would read what ours have counted.
func (f *finder) findCounters() {
	// As the lines have it: which counters they need depends on the limit file.
	ours := countersIn(f.Frontend)
	for _, x := range slices.Concat(f.limited, f.reached) {
		for _, l := range x.all() {
			for _, n := range countersIn(strings.Join(l.words, " ")) {
				if slices.Contains(ours, n) {
					f.add(l, true, "sticky counter %d is Sluice's, also in samples such as sc%[1]d_http_req_rate. From HAProxy 2.8 on Sluice takes others by itself; "+
						"before, leave these lines out, or have them in a HAProxy before this one", n)
				}
			}
		}
	}
}

// findSections looks at sections of the process, and for sections of theirs that are called as ours are.
func (f *finder) findSections() {
	for _, x := range f.sections {
		// HAProxy would allow a frontend and a backend of one name, but not two tables, and each of these may have one.
		shares := x.frontend() || x.kind == "backend" || x.kind == "peers"
		// Read from the lines themselves, because a separate list would miss the next backend.
		if shares && (strings.Contains(f.Ours.Process, "backend "+x.name+"\n") || strings.Contains(f.Ours.Process, "peers "+x.name+"\n")) {
			f.add(x.lines[0], true, "%s %s: the name is Sluice's: give yours another one, here and where it is used", x.kind, x.name)
		}
		for _, l := range x.lines {
			folder := strings.TrimRight(l.word(1), "/")
			switch {
			case x.kind != "global":
			// Gone in 2.5, and refused from then on.
			case l.is("nbproc") && !l.is("nbproc", "1"):
				f.add(l, true, "several processes (nbproc) cannot share tables: use threads, as HAProxy does by itself from 2.5 on")
			// HAProxy binds sockets before, and looks for those that it connects to in there, with each connection.
			case l.is("chroot"):
				what := "HAProxy connects to the agent inside of %[1]s: start the agent with --spoe unix:%[1]s/run/sluice/spoa.sock"
				if f.Costs { // next to that by default, but not if the agent reads HAProxy's variables
					what += " and --costs-socket unix:%[1]s/run/sluice/costs.sock"
				}
				f.add(l, false, what, folder)
			case l.is("unix-bind", "prefix"):
				f.add(l, false, "the socket of peers gets this prefix, too: start the agent with --peers unix:%s/run/sluice/peers.sock", strings.TrimRight(l.word(2), "/"))
			case l.is("default-path"):
				f.add(l, false, "HAProxy forgets default-path behind a filter spoe: write paths that stand behind the limited frontends from / on")
			case l.is("tune.bufsize") && f.Bandwidth:
				f.add(l, false, "bodies that are held cost less with \"tune.bufsize 131072\" (65536 before HAProxy 2.7), and each transfer more memory")
			}
		}
	}
	// The agent is a peer, and a session is refused to who calls the other one by a wrong name.
	if peer := f.localPeer(); peer != "" {
		f.add(nil, false, "HAProxy is called %s among its peers: start the agent with --local-peer and that name", peer)
	}
}

// localPeer is how HAProxy is called among its peers, or "" if that is for Sluice to say.
func (c *Config) localPeer() (name string) {
	for _, x := range c.sections {
		// Another localpeer would make it a stranger among peers that it has already.
		if x.kind == "peers" && name == "" {
			name = "by the name of its host, or of -L,"
		}
		for _, l := range x.lines {
			if x.kind == "global" && l.is("localpeer") {
				name = l.word(1)
			}
		}
	}
	return name
}

// counter is a sticky counter in a rule or in a sample. Two of their names have a number of something else first.
var counter = regexp.MustCompile(`\bsc(\d+)_|\b(?:track-sc|sc-[a-z0-9-]+\((?:\d+,)?|sc_(?:(?:get_gp[ct]|gpc_rate|(?:inc|clr)_gpc)\(\d+,|[a-z0-9_]+\())(\d+)`)

// countersIn are the sticky counters that rules and samples use.
func countersIn(text string) []int {
	var numbers []int
	for _, m := range counter.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1] + m[2]) // one of them is empty
		numbers = append(numbers, n)
	}
	return numbers
}

// Process is what Sluice's lines depend on. With more sticky counters than the three that HAProxy has before 2.8, ours are behind theirs.
func (c *Config) Process(moreCounters bool) haproxy.Process {
	p := haproxy.Process{LocalPeer: c.localPeer() != ""}
	for _, x := range c.sections {
		for _, l := range x.lines {
			// From 3.1 on it wants to be told, and before the first script.
			p.Bools = p.Bools || x.kind == "global" && (l.is("tune.lua.bool-sample-conversion") || l.is("lua-load") || l.is("lua-load-per-thread"))
			if moreCounters {
				for _, n := range countersIn(strings.Join(l.words, " ")) {
					p.FirstCounter = max(p.FirstCounter, n+1)
				}
			}
		}
	}
	return p
}
