package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Process is what a HAProxy with a configuration of its own says itself, or leaves to Sluice.
type Process struct {
	// LocalPeer is what it calls itself among peers; empty: it says nothing, and is called LocalPeer.
	LocalPeer string
	// Bools is that it says how Lua's booleans are converted, or has loaded Lua before it could be said.
	Bools bool
}

// Lines is what a configuration of somebody's own needs so that Sluice's limits hold in it.
type Lines struct {
	Process  string            // a section global, and the tables and backends that all frontends share; before any defaults
	Frontend string            // of each frontend: behind its http-request rules, before its use_backend rules
	Files    map[string]string // what these lines read, by their names in the folder
}

// refusedBackend answers requests that are refused, as the rules behind the question do in backend asked.
const refusedBackend = "sluice_refused"

// Beside returns the lines for a configuration of somebody's own whose files of Sluice's are in a folder. They are the
// marked parts of haproxy.cfg. A frontend cannot tell which of its backends a request will go to, and a request that has
// gone to backend asked never comes back to choose one: so here the question is asked in the frontend.
func (c Config) Beside(folder string, p Process) (Lines, error) {
	files, err := c.files()
	if err != nil {
		return Lines{}, fmt.Errorf("haproxy configuration: %w", err)
	}
	cfg := &edition{text: files["haproxy.cfg"]}
	lines := Lines{Process: cfg.process(p), Frontend: cfg.frontend(c.lendsShares())}
	if cfg.err != nil {
		return Lines{}, cfg.err
	}
	// Those of the process stand in sections of ours, which have no lists of theirs.
	lines.Frontend = prefixACLs(lines.Frontend)
	lines.Files = map[string]string{}
	// Without haproxy.cfg, which comes first there: theirs is in its place.
	for _, name := range written[1:] {
		lines.Files[name] = files[name]
	}
	for _, text := range []*string{&lines.Process, &lines.Frontend} {
		// The environment comes first all the same: by it the command has HAProxy check the lines before the files are in place.
		*text = strings.ReplaceAll(withoutComments(*text), "${SLUICE_CFG_DIR-.}", "${SLUICE_CFG_DIR-"+folder+"}")
		if *text, err = settle(*text); err != nil {
			return Lines{}, err
		}
	}
	lines.Files["spoe.cfg"], err = settle(lines.Files["spoe.cfg"])
	return lines, err
}

// process is everything but a frontend's rules.
func (e *edition) process(p Process) string {
	global := "global\n"
	peers := e.section("shared tables")
	// One that they have stays: their own peers know HAProxy by it.
	if p.LocalPeer == "" {
		global += "    localpeer " + LocalPeer + "\n"
	} else {
		// The name may come from the environment of a HAProxy that has peers already: it is the same one there.
		peers = strings.Replace(peers, "    server "+LocalPeer+"\n", "    server "+p.LocalPeer+"\n", 1)
	}
	rules := e.part("process")
	// What they have chosen stays, and behind a script of theirs nothing can be chosen any more.
	if p.Bools {
		rules = regexp.MustCompile(`(?m)^    \.if version_atleast\(3\.1\)\n    tune\.lua\.bool.*\n    \.endif\n`).ReplaceAllString(rules, "")
	}
	// Limits of addresses put their tables behind everything else.
	_, backends, addresses := e.cut("shared backends", "")
	backends += "backend " + refusedBackend + "\n" + e.part("refusal") + addresses
	// The defaults of haproxy.cfg are not theirs. Who is refused is counted and logged as any other request is.
	backends = regexp.MustCompile(`(?m)^(backend sluice_(?:unreadable|refused\w*))\n`).ReplaceAllString(backends, "$1\n    mode http\n")
	backends = strings.ReplaceAll(backends, "    http-request set-log-level silent\n", "")
	return global + rules + peers + backends
}

// frontend is the rules of one frontend. With shares, credit brings shares of bandwidth.
func (e *edition) frontend(shares bool) string {
	rules, answers := e.part("rules"), ""
	if shares {
		rules, answers = e.holdByCredit(rules)
	}
	return "    option contstats\n" +
		"    http-request del-header sluice- -m beg\n" +
		rules +
		// Whom an address's limits refuse, or unreadable credentials, is not asked about.
		"    http-request allow if refused\n" +
		withoutServerTimeout(e.part("question")) +
		answers +
		e.part("refusals") +
		"    use_backend " + refusedBackend + " if { var(txn.sluice.reason) -m found }\n"
}

// letThrough is the rule by which credit lets a request through.
const letThrough = "    http-request allow if draws !no_place\n"

// shortWay is the rule by which a request takes the short way.
var shortWay = regexp.MustCompile(`(?m)^(    http-request track-sc0 .* if \{ var\(txn\.sluice_user\),table_gpt\(0,sluice_credit\) .*)\n`)

// holdByCredit has a frontend's rules do what backend held does: which backend of theirs a request goes to is not known. Whom credit
// lets through skips the rules behind, so what comes up is held just before. Rules for answers are looked at in any case; the
// last ones, which are to stand behind all others of ours, are returned apart.
func (e *edition) holdByCredit(rules string) (changed, last string) {
	// The second one is there with SLUICE_CREDIT=off as well, as in backend asked.
	lists := "    acl asked var(txn.sluice_asked) -m found\n    acl credited var(txn.sluice_credit) -m int gt 0\n"
	bodies, answers := "", ""
	for line := range strings.Lines(withoutServerTimeout(e.section("limited by credit"))) {
		rule, condition, _ := strings.Cut(line, " if ")
		switch {
		case strings.HasPrefix(line, "    acl "):
			lists += line
		// In a backend that is all. Here it would end the rules of their own that stand behind.
		case rule == "    http-response allow":
			answers += "    http-response unset-var(txn.sluice.down) if !asked !{ method HEAD } " + condition
		case strings.HasPrefix(rule, "    http-response track-sc2 "):
			last += rule + " if !asked " + condition
		// All others hold an answer as the rules behind the question do, which are there already.
		case strings.HasPrefix(line, "    http-response unset-var(txn.sluice.down) if {"):
			answers += line
		case rule == "    http-request allow", strings.HasPrefix(rule, "    http-request set-var(txn.sluice.up) "):
			bodies += rule + " if draws !no_place " + condition
		case strings.HasPrefix(line, "    http-request "):
			bodies += line
		}
	}
	// The rules of the short way let a request through each by itself, and there is no room between them.
	rules = shortWay.ReplaceAllString(rules, "$1 !body_up\n")
	before, after, found := strings.Cut(rules, letThrough)
	if !found && e.err == nil {
		e.err = fmt.Errorf("haproxy.cfg has no rule %q", strings.TrimSpace(letThrough))
	}
	return lists + answers + before + bodies + letThrough + after + "    http-request set-var(txn.sluice_asked) bool(true)\n", last
}

// withoutServerTimeout leaves out the rule that HAProxy takes in backends alone.
func withoutServerTimeout(rules string) string {
	return regexp.MustCompile(`(?m)^    \.if !version_atleast\(2\.8\)\n    http-request set-timeout server .*\n    \.endif\n`).ReplaceAllString(rules, "")
}

// section is the text of a part whose marks are not indented.
func (e *edition) section(name string) string {
	_, text, _ := e.cut(name, "")
	return text
}

var (
	blanks      = regexp.MustCompile(`[ \t]+`)
	declaredACL = regexp.MustCompile(`^    acl (\S+) (.*)\n`)
)

// prefixACLs gives each list of conditions a name that no list of theirs has: lists of one name are one list. A line that
// stands there twice, because two sections had it, stays once.
func prefixACLs(rules string) string {
	var names []string
	declared := map[string]bool{}
	for line := range strings.Lines(rules) {
		// All of them before any condition is changed: one may stand before the list of its name in another section.
		if acl := declaredACL.FindStringSubmatch(line); acl != nil {
			names = append(names, acl[1])
		}
	}
	var b strings.Builder
	for line := range strings.Lines(rules) {
		if acl := declaredACL.FindStringSubmatch(line); acl != nil {
			line = "    acl sluice_" + acl[1] + " " + strings.TrimLeft(acl[2], " ") + "\n"
			// HAProxy would take both, and look at each.
			if key := blanks.ReplaceAllString(line, " "); declared[key] {
				continue
			} else {
				declared[key] = true
			}
		} else if i := strings.LastIndex(line, " if "); i >= 0 && strings.HasPrefix(strings.TrimSpace(line), "http-") {
			// The last "if": a text for clients may have the word, and a rule has one condition, at its end.
			line = line[:i] + prefixConditions(line[i:], names)
		}
		b.WriteString(line)
	}
	return b.String()
}

// prefixConditions gives the names in a condition their prefix. What stands in braces is no name.
func prefixConditions(condition string, names []string) string {
	words := strings.Split(strings.TrimSuffix(condition, "\n"), " ")
	depth := 0
	for i, word := range words {
		// Braces of regular expressions are not words of their own.
		switch word {
		case "{", "!{":
			depth++
		case "}":
			depth--
		}
		if name := strings.TrimPrefix(word, "!"); depth == 0 && slices.Contains(names, name) {
			words[i] = strings.TrimSuffix(word, name) + "sluice_" + name
		}
	}
	return strings.Join(words, " ") + "\n"
}

// settled are the conditions that are known beside a configuration of somebody's own: the access log is theirs, and so are
// the servers, and what queues for them.
var settled = map[string]bool{
	`defined(SLUICE_ACCESS_LOG)`:            false,
	`streq("${SLUICE_ORIGIN_MAXCONN-0}",0)`: true,
}

// settle leaves out what never holds of the lines between .if and .endif, and conditions that always hold.
func settle(text string) (string, error) {
	var b strings.Builder
	type block struct{ open, known, holds bool } // open: its .if stays
	blocks := []block{{holds: true}}
	for line := range strings.Lines(text) {
		top := &blocks[len(blocks)-1]
		word, condition, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case ".if":
			rest, known, holds := settleCondition(condition)
			// Within a block that is left out all is, whatever its own condition.
			blocks = append(blocks, block{open: top.holds && !known, known: known, holds: top.holds && holds})
			if top.holds && !known {
				b.WriteString("    .if " + rest + "\n")
			}
			continue
		// Only the access log has one, and that is in no part of these lines.
		case ".elif":
			return "", fmt.Errorf("haproxy.cfg: %q cannot be settled", strings.TrimSpace(line))
		case ".else":
			if top.known {
				top.holds = blocks[len(blocks)-2].holds && !top.holds
				continue
			}
		case ".endif":
			blocks = blocks[:len(blocks)-1]
			if top.open {
				b.WriteString(line)
			}
			continue
		}
		if top.holds {
			b.WriteString(line)
		}
	}
	return b.String(), nil
}

// settleCondition is what of a condition is not known, and whether it is known as a whole, and holds.
func settleCondition(condition string) (rest string, known, holds bool) {
	var unknown []string
	for _, term := range strings.Split(condition, " && ") {
		value, settled := settled[strings.TrimPrefix(term, "!")]
		switch {
		case !settled:
			unknown = append(unknown, term)
		// One term that does not hold is enough, whatever the others say.
		case value == strings.HasPrefix(term, "!"):
			return "", true, false
		}
	}
	return strings.Join(unknown, " && "), len(unknown) == 0, true
}
