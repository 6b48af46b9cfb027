package into

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Finding is something about a configuration that its owner has to know.
type Finding struct {
	File string
	Line int // 0: of the whole file
	// Fatal is that Sluice's lines do not work beside it: nothing is written.
	Fatal bool
	What  string // what is there, and what to do
}

// String is the finding as people read it.
func (f Finding) String() string {
	place, kind := f.File, "mind"
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if f.Fatal {
		kind = "cannot coexist"
	}
	return fmt.Sprintf("%s: %s: %s", place, kind, f.What)
}

// A Set is all files that one HAProxy is started with, in their order, without blocks of ours.
type Set struct {
	Names  []string
	Files  []*File
	Target int // the index of the one that the blocks are put into
}

type place struct {
	file int
	line line
}

func (s Set) finding(p place, fatal bool, format string, args ...any) Finding {
	return Finding{File: s.Names[p.file], Line: p.line.number, Fatal: fatal, What: fmt.Sprintf(format, args...)}
}

// Ours is what is put in.
type Ours struct {
	Process, Frontend string
	Frontends         []string
	Bandwidth         bool // bodies are held
	Costs             bool // what requests cost is told to the agent
}

// Find returns what of a configuration cannot coexist with these lines, and what its owner has to know, by file and line.
func (s Set) Find(o Ours) []Finding {
	var found []Finding
	var limited []section
	for _, name := range o.Frontends {
		// Of all files, so that one in another file is not taken for a mistyped name.
		if of := s.sections(func(x Section) bool { return x.Name == name && (x.Kind == "frontend" || x.Kind == "listen") }); len(of) == 1 && of[0].file == s.Target {
			limited = append(limited, of[0])
			continue
		}
		found = append(found, Finding{File: s.Names[s.Target], Fatal: true, What: fmt.Sprintf("there is no frontend %q, or more than one; it has %s", name, s.frontends())})
	}
	for _, f := range limited {
		found = append(found, s.findInFrontend(f, o)...)
	}
	found = append(found, s.findCounters(limited, o)...)
	found = append(found, s.findNames(o)...)
	found = append(found, s.findInGlobal(o)...)
	found = append(found, s.findDefaultsBefore()...)
	// As people go through their files. Line 0, of the whole file, comes first.
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(slices.Index(s.Names, a.File)-slices.Index(s.Names, b.File), a.Line-b.Line)
	})
	// Defaults are looked at for each frontend.
	return slices.Compact(found)
}

type section struct {
	file, index int
	Section
}

func (s Set) sections(want func(Section) bool) []section {
	var all []section
	for i, f := range s.Files {
		for j, x := range f.Sections {
			if want(x) {
				all = append(all, section{i, j, x})
			}
		}
	}
	return all
}

// frontends is a list of those of the target, for people.
func (s Set) frontends() string {
	// To choose from, for most likely the name was mistyped.
	var names []string
	for _, x := range s.Files[s.Target].Sections {
		if x.Kind == "frontend" || x.Kind == "listen" {
			names = append(names, x.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// lines are those of a section that say something, its head included.
func (s Set) lines(x section) []place {
	f := s.Files[x.file]
	from, to := f.linesOf(x.index)
	var all []place
	for _, l := range f.lines[from-1 : to] {
		// Of a rule over several lines the first one has all words, so that each is looked at once.
		if len(l.words) > 0 {
			all = append(all, place{x.file, l})
		}
	}
	return all
}

// defaults are those of a section: of the name that it says, or the last ones before it, and those that these are from.
func (s Set) defaults(x section) []section {
	var all []section
	for {
		before := s.sections(func(d Section) bool { return d.Kind == "defaults" && (x.From == "" || d.Name == x.From) })
		before = slices.DeleteFunc(before, func(d section) bool {
			return d.file > x.file || d.file == x.file && d.index >= x.index
		})
		// Each stands before the one that is from it, so this ends, even where defaults say that they are from themselves.
		if len(before) == 0 || x.Kind == "defaults" && x.From == "" {
			return all
		}
		x = before[len(before)-1]
		all = append(all, x)
	}
}

func (s Set) with(x section) []place {
	// The section's own first: what is set there outdoes its defaults.
	all := s.lines(x)
	for _, d := range s.defaults(x) {
		all = append(all, s.lines(d)...)
	}
	return all
}

func (p place) says(words ...string) bool {
	return len(p.line.words) >= len(words) && slices.Equal(p.line.words[:len(words)], words)
}

// answers are the actions of http-request that end a frontend's rules for a request.
var answers = []string{"allow", "auth", "cache-use", "deny", "redirect", "reject", "return", "silent-drop", "tarpit", "use-service"}

func (s Set) findInFrontend(x section, o Ours) []Finding {
	var found []Finding
	own, all := s.lines(x), s.with(x)
	mode := slices.IndexFunc(all, func(p place) bool { return p.says("mode") })
	switch {
	// HAProxy's own default is tcp.
	case mode < 0:
		found = append(found, s.finding(own[0], true, "frontend %s has no mode http, neither itself nor by defaults: requests are limited, connections (mode tcp) are not", x.Name))
	case !all[mode].says("mode", "http"):
		found = append(found, s.finding(all[mode], true, "frontend %s is in %s: requests are limited, connections are not", x.Name, strings.Join(all[mode].line.words, " ")))
	}
	for _, p := range all {
		switch {
		case p.says("http-request") && len(p.line.words) > 1 && slices.Contains(answers, p.line.words[1]):
			found = append(found, s.finding(p, false, "requests that \"http-request %s\" ends here are neither limited nor counted in frontend %s", p.line.words[1], x.Name))
		// The old form of http-request redirect. Its place does not matter.
		case p.says("redirect"):
			found = append(found, s.finding(p, false, "requests that \"redirect\" answers count in frontend %s, and are never refused: HAProxy looks at it behind all http-request rules, and "+
				"before it chooses a backend. \"http-request redirect\" answers them before they count", x.Name))
		// HAProxy takes a client that has closed its half for one that is gone, and gives up the question.
		case p.says("option", "abortonclose"):
			found = append(found, s.finding(p, false, "with abortonclose, clients that close their half of a connection behind a request can get 400 while the agent is asked"))
		}
	}
	found = append(found, s.findFilters(all, o)...)
	// Now, and not when the block is put there: people want to hear all that is wrong at once.
	if _, err := s.Files[x.file].placeIn(x.index); err != nil {
		found = append(found, s.finding(own[0], true, "%s", err))
	}
	return found
}

// findFilters looks for engines of SPOE of the same name, and for filters that HAProxy adds by itself as long as there are no others.
func (s Set) findFilters(all []place, o Ours) []Finding {
	var found []Finding
	engines := regexp.MustCompile(`filter spoe engine (\S+)`).FindAllStringSubmatch(o.Frontend, -1)
	declared := func(filter string) bool {
		return slices.ContainsFunc(all, func(p place) bool { return p.says("filter", filter) })
	}
	for _, p := range all {
		for _, engine := range engines {
			if i := slices.Index(p.line.words, "engine"); p.says("filter", "spoe") && i > 0 && i+1 < len(p.line.words) && p.line.words[i+1] == engine[1] {
				found = append(found, s.finding(p, true, "engine %s of SPOE is Sluice's name: give yours another one, here and in its file", engine[1]))
			}
		}
		// HAProxy adds these two by itself, but where there is another filter nobody but the owner knows their order.
		if p.says("compression") && !declared("compression") {
			found = append(found, s.finding(p, true, "beside other filters HAProxy wants compression to be one: add \"filter compression\" to the frontend"))
		}
		if p.says("http-request", "cache-use") && len(p.line.words) > 2 && !slices.ContainsFunc(all, func(q place) bool { return q.says("filter", "cache", p.line.words[2]) }) {
			found = append(found, s.finding(p, true, "beside other filters HAProxy wants the cache to be one: add \"filter cache %s\" to the frontend", p.line.words[2]))
		}
	}
	return found
}

// reached are the backends that requests of the frontends can go to: all of them if a rule looks for a name.
func (s Set) reached(limited []section) []section {
	var names []string
	all := false
	for _, x := range limited {
		for _, p := range s.with(x) {
			if (p.says("use_backend") || p.says("default_backend")) && len(p.line.words) > 1 {
				// Who makes up a name for each request, or has it from the environment, may mean any of them.
				all = all || strings.ContainsAny(p.line.words[1], "%$")
				names = append(names, p.line.words[1])
			}
		}
	}
	return s.sections(func(x Section) bool {
		return (x.Kind == "backend" || x.Kind == "listen") && (all || slices.Contains(names, x.Name))
	})
}

var counter = regexp.MustCompile(`^(?:track-sc|sc-[a-z0-9-]+\((?:\d+,)?)([0-9])`)

// findCounters looks for sticky counters of theirs that are Sluice's, wherever a request of a limited frontend passes.
func (s Set) findCounters(limited []section, o Ours) []Finding {
	var found []Finding
	used := map[string]bool{}
	// As the lines have it: which counters they need depends on the limit file.
	for _, m := range regexp.MustCompile(`track-sc(\d)`).FindAllStringSubmatch(o.Frontend, -1) {
		used[m[1]] = true
	}
	told := map[string]bool{}
	// A counter that is taken stays so for the whole request, and another rule to track by it is passed over without a word:
	// theirs would not count, or ours would not.
	for _, x := range slices.Concat(limited, s.reached(limited)) {
		for _, p := range s.with(x) {
			for _, word := range p.line.words {
				// Samples (sc0_…) read what such a rule has counted, so the rule is enough.
				m := counter.FindStringSubmatch(word)
				key := fmt.Sprint(p.file, p.line.number)
				if m == nil || !used[m[1]] || told[key] {
					continue
				}
				told[key] = true
				found = append(found, s.finding(p, true, "sticky counter %s is Sluice's here: use 3, 4 or 5 in all your rules, as in track-sc3, sc-inc-gpc0(3) and sc_http_req_rate(3), "+
					"with \"tune.stick-counters 6\" in global. HAProxy has that from 2.8 on; before, leave these rules out, or have them in a HAProxy before this one", m[1]))
			}
		}
	}
	return found
}

// findNames looks for sections of theirs that are called as ours are. Tables, proxies and peers share their names.
func (s Set) findNames(o Ours) []Finding {
	var found []Finding
	ours := map[string]bool{}
	// Read from the lines themselves, for a list of names beside them would miss the next backend.
	for _, x := range Parse(o.Process).Sections {
		if x.Name != "" {
			ours[x.Name] = true
		}
	}
	// HAProxy would allow a frontend and a backend of one name, but not two tables, and each of these may have one.
	named := []string{"backend", "frontend", "listen", "peers"}
	for _, x := range s.sections(func(x Section) bool { return ours[x.Name] && slices.Contains(named, x.Kind) }) {
		found = append(found, s.finding(s.lines(x)[0], true, "%s %s: the name is Sluice's: give yours another one, here and where it is used", x.Kind, x.Name))
	}
	return found
}

// findDefaultsBefore looks for defaults of an earlier file. Sluice's backends stand before those of their own file, but no section can end others.
func (s Set) findDefaultsBefore() []Finding {
	before := s.sections(func(x Section) bool { return x.Kind == "defaults" })
	before = slices.DeleteFunc(before, func(x section) bool { return x.file >= s.Target })
	if len(before) == 0 {
		return nil
	}
	last := before[len(before)-1]
	return []Finding{s.finding(s.lines(last)[0], false,
		"these defaults hold for Sluice's backends as well, which stand behind them in %s: have no default-server in them, or put both into one file", s.Names[s.Target])}
}

func (s Set) findInGlobal(o Ours) []Finding {
	var found []Finding
	for _, x := range s.sections(func(x Section) bool { return x.Kind == "global" }) {
		for _, p := range s.lines(x) {
			switch {
			// Gone in 2.5, and refused from then on.
			case p.says("nbproc") && !p.says("nbproc", "1"):
				found = append(found, s.finding(p, true, "several processes (nbproc) cannot share tables: use threads, as HAProxy does by itself from 2.5 on"))
			// What it binds it binds before; what it connects to it looks for in there, with each connection.
			case p.says("chroot") && len(p.line.words) > 1:
				what := "HAProxy connects to the agent inside of %[1]s: start the agent with --spoe unix:%[1]s/run/sluice/spoa.sock"
				if o.Costs { // beside that by default, but for an agent that reads HAProxy's variables
					what += " and --costs-socket unix:%[1]s/run/sluice/costs.sock"
				}
				found = append(found, s.finding(p, false, what, strings.TrimRight(p.line.words[1], "/")))
			case p.says("default-path"):
				found = append(found, s.finding(p, false, "HAProxy forgets default-path behind a filter spoe: write paths that stand behind the limited frontends from / on"))
			case p.says("tune.bufsize") && o.Bandwidth:
				found = append(found, s.finding(p, false, "bodies that are held cost less with \"tune.bufsize 131072\" (65536 before HAProxy 2.7), and each transfer more memory"))
			}
		}
	}
	// The agent is a peer, and a session is refused to who calls the other one by a wrong name.
	if peer, _ := s.Process(); peer != "" {
		if peer == hostsName {
			peer = "by its host's name"
		}
		found = append(found, Finding{File: s.Names[s.Target], What: fmt.Sprintf("HAProxy is called %s among its peers: start the agent with --local-peer and that name", peer)})
	}
	return found
}

// hostsName is how HAProxy is called among its peers if its configuration does not say: its host's name, or what -L says.
const hostsName = `"${HAPROXY_LOCALPEER}"`

// Process is what of the process Sluice's lines depend on: how it is called among peers ("" if nobody says), and
// whether Lua was told how to convert booleans, or is loaded before it can be.
func (s Set) Process() (localPeer string, bools bool) {
	for _, x := range s.sections(func(x Section) bool { return x.Kind == "global" || x.Kind == "peers" }) {
		// Another localpeer would make it a stranger among peers that it has already.
		if x.Kind == "peers" && localPeer == "" {
			localPeer = hostsName
		}
		for _, p := range s.lines(x) {
			if p.says("localpeer") && len(p.line.words) > 1 {
				localPeer = p.line.words[1]
			}
			// From 3.1 on it wants to be told, and before the first script.
			bools = bools || p.says("tune.lua.bool-sample-conversion") || p.says("lua-load") || p.says("lua-load-per-thread")
		}
	}
	return localPeer, bools
}
