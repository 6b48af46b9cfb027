package haproxy

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

var update = flag.Bool("update", false, "write classify/s3.cfg, haproxy.cfg and spoe.cfg anew")

// ask is a request as its client writes it.
type ask struct {
	method, target string
	header         []limits.HeaderMatch
	host           string // "": example.com
}

var (
	stays    = regexp.MustCompile(`%[01][0-9A-Fa-f]|%7[Ff]|%[^0-9A-Fa-f]|%.[^0-9A-Fa-f]|%.?$`)
	segments = regexp.MustCompile(`/(?:\.?/)+`)
	lastDot  = regexp.MustCompile(`/\.\z`)
)

// readPath is a path decoded, but for control bytes and what does not decode, and without empty and "." segments.
func readPath(path string) string {
	var b strings.Builder
	for path != "" {
		if n := 3; path[0] == '%' && !stays.MatchString(path[:min(n, len(path))]) {
			c, _ := strconv.ParseUint(path[1:n], 16, 8)
			b.WriteByte(byte(c))
			path = path[n:]
			continue
		}
		b.WriteByte(path[0])
		path = path[1:]
	}
	return lastDot.ReplaceAllString(segments.ReplaceAllString(b.String(), "/"), "/")
}

// matches is what a match means, in Go.
func matches(m limits.Match, a ask) bool {
	path, query, _ := strings.Cut(a.target, "?")
	if !m.RawPath {
		path = readPath(path)
	}
	var keys []string
	for _, pair := range strings.Split(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err == nil {
			keys = append(keys, key)
		}
	}
	has := func(key string) bool { return slices.Contains(keys, key) }
	host, _, _ := strings.Cut(strings.ToLower(cmp.Or(a.host, "example.com")), ":")
	host = strings.TrimRight(host, ".")
	isHost := func(of string) bool {
		domain, below := strings.CutPrefix(of, "*")
		return host == of || below && strings.HasSuffix(host, domain)
	}
	if len(m.Hosts) > 0 && !slices.ContainsFunc(m.Hosts, isHost) || slices.ContainsFunc(m.NoHosts, isHost) || len(m.Frontends) > 0 && !slices.Contains(m.Frontends, "http") {
		return false
	}
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, strings.ToUpper(a.method)) ||
		!strings.HasPrefix(path, m.PathPrefix) || !regexp.MustCompile(m.PathRegex).MatchString(path) ||
		slices.ContainsFunc(m.NoQuery, has) {
		return false
	}
	for _, key := range m.Query {
		if !has(key) {
			return false
		}
	}
	for _, want := range m.Headers {
		if !slices.ContainsFunc(a.header, func(h limits.HeaderMatch) bool {
			return strings.EqualFold(h.Name, want.Name) && (want.Value == "" || h.Value == want.Value)
		}) {
			return false
		}
	}
	return true
}

// classOf is the first class that matches, or "".
func classOf(classes []limits.Class, a ask) string {
	for _, c := range classes {
		if slices.ContainsFunc(c.Any, func(m limits.Match) bool { return matches(m, a) }) {
			return c.Name
		}
	}
	return ""
}

func (a ask) String() string {
	var header []string
	for _, h := range a.header {
		header = append(header, h.Name+": "+h.Value)
	}
	return strings.Replace(httpRequest(a.method, a.target, header...), "Host: example.com", "Host: "+cmp.Or(a.host, "example.com"), 1)
}

// A classifier is a HAProxy that answers with the class of each request, under
// several sets of classes at once.
type classifier struct {
	rig
	sets int
}

// classifyConfig is a configuration that classifies and nothing else.
func classifyConfig(t testing.TB, sets [][]limits.Class) string {
	t.Helper()
	cfg := `defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend http
    bind "${SLUICE_BIND-127.0.0.1:8080}"
`
	for line := range strings.Lines(shipped(t, "haproxy.cfg")) {
		if strings.Contains(line, "set-var(txn.sluice_class)") {
			cfg += line
		}
	}
	ops := make([]string, len(sets))
	for i, classes := range sets {
		rules, err := Classify(classes)
		if err != nil {
			t.Fatalf("Classify(%+v): %v", classes, err)
		}
		cfg += strings.ReplaceAll(rules, "(txn.sluice_op)", fmt.Sprintf("(txn.op_%d)", i))
		ops[i] = fmt.Sprintf("<%%[var(txn.op_%d)]>", i)
	}
	return cfg + "    http-request return status 200 hdr Classes " + strings.Join(ops, "") + "\n"
}

func newClassifier(t testing.TB, sets ...[]limits.Class) *classifier {
	t.Helper()
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(classifyConfig(t, sets)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &classifier{sets: len(sets)}
	c.addr = testkit.FreeAddr(t)
	c.proc = testkit.HAProxy(t, file, c.addr, "SLUICE_BIND="+c.addr)
	if out := c.proc.Output(); out != "" {
		t.Fatalf("HAProxy said %q, want nothing", out)
	}
	return c
}

// classes returns each set's class of the request.
func (c *classifier) classes(t testing.TB, a ask) []string {
	t.Helper()
	got := c.send(t, a.String())[0]
	if got.Status != 200 {
		t.Fatalf("status of %q = %d, want 200", a, got.Status)
	}
	all := got.Header.Get("Classes")
	ops := strings.Split(strings.TrimSuffix(strings.TrimPrefix(all, "<"), ">"), "><")
	if len(ops) != c.sets {
		t.Fatalf("%d classes of %q in %q, want %d", len(ops), a, all, c.sets)
	}
	for i := range ops {
		ops[i] = strings.Trim(ops[i], "-") // no value
	}
	return ops
}

func TestClassify(t *testing.T) {
	t.Parallel()
	one := func(m limits.Match) []limits.Class { return []limits.Class{{Name: "C", Any: []limits.Match{m}}} }
	query := func(keys ...string) []limits.Class { return one(limits.Match{Query: keys}) }
	header := func(name, value string) []limits.Class {
		return one(limits.Match{Headers: []limits.HeaderMatch{{Name: name, Value: value}}})
	}
	get := func(target string, header ...limits.HeaderMatch) ask {
		return ask{method: "GET", target: target, header: header}
	}
	at := func(host string) ask { return ask{method: "GET", target: "/", host: host} }
	hosts := func(hosts ...string) []limits.Class { return one(limits.Match{Hosts: hosts}) }
	manyHosts := []string{"*.example.net"}
	for i := range 60 {
		manyHosts = append(manyHosts, fmt.Sprintf("host-%d.of_some.example.com", i))
	}
	var manyHeaders []limits.HeaderMatch
	for i := range 8 {
		manyHeaders = append(manyHeaders, limits.HeaderMatch{Name: fmt.Sprintf("X-%d", i), Value: fmt.Sprint("v", i)})
	}
	manyMethods := []string{"GET"}
	for i := range 80 {
		manyMethods = append(manyMethods, fmt.Sprint("M", i))
	}
	var manyKeys []string
	for i := range 30 {
		manyKeys = append(manyKeys, fmt.Sprint(strings.Repeat("~", 97), i)) // as long as can be, with the blanks between them
	}
	rows := []struct {
		name    string
		classes []limits.Class
		ask     ask
		want    string
	}{
		{"no class", nil, get("/"), ""},
		{"zero match", one(limits.Match{}), get("/"), "C"},
		{"zero match of OPTIONS *", one(limits.Match{}), ask{method: "OPTIONS", target: "*"}, "C"},
		{"first match wins", []limits.Class{{Name: "A", Any: []limits.Match{{PathPrefix: "/a"}}}, {Name: "B", Any: []limits.Match{{}}}}, get("/ab"), "A"},
		{"any of the matches", []limits.Class{{Name: "A", Any: []limits.Match{{PathPrefix: "/a"}, {PathPrefix: "/b"}}}}, get("/b"), "A"},
		{"methods in capitals", one(limits.Match{Methods: []string{"PUT", "GET"}}), ask{method: "get", target: "/"}, "C"},
		{"other method", one(limits.Match{Methods: []string{"PUT"}}), get("/"), ""},
		{"method that is no verb", one(limits.Match{Methods: []string{"PROPFIND"}}), ask{method: "PROPFIND", target: "/"}, "C"},
		{"method of a shell", one(limits.Match{Methods: []string{"M'`$X|"}}), ask{method: "m'`$x|", target: "/"}, "C"},
		{"many methods", one(limits.Match{Methods: manyMethods}), ask{method: "M79", target: "/"}, "C"},
		{"prefix", one(limits.Match{PathPrefix: "/a/"}), get("/a/b"), "C"},
		{"prefix, not all of it", one(limits.Match{PathPrefix: "/a/"}), get("/a"), ""},
		{"prefix is not in the query", one(limits.Match{PathPrefix: "/a/"}), get("/?/a/"), ""},
		{"prefix is no expression", one(limits.Match{PathPrefix: "/a.*"}), get("/abc"), ""},
		{"path is decoded", one(limits.Match{PathPrefix: "/a"}), get("/%61"), "C"},
		{"path is decoded once", one(limits.Match{PathPrefix: "/a"}), get("/%2561"), ""},
		{"what does not decode stays", one(limits.Match{PathPrefix: "/%zz/a"}), get("/%zz//%61"), "C"},
		{"empty segments", one(limits.Match{PathPrefix: "/v1/chat"}), get("//v1/.///./chat"), "C"},
		{"the last segment", one(limits.Match{PathRegex: "^/a/$"}), get("/a/."), "C"},
		{"a file whose name begins with a dot", one(limits.Match{PathPrefix: "/a/.b"}), get("/a/.b"), "C"},
		{"encoded slashes", one(limits.Match{PathPrefix: "/v1/chat"}), get("/v1%2Fchat"), "C"},
		{"absolute URL", one(limits.Match{PathPrefix: "/a"}), get("http://example.com/a"), "C"},
		{"regex somewhere", one(limits.Match{PathRegex: `b+c`}), get("/abbcd"), "C"},
		{"regex does not see the query", one(limits.Match{PathRegex: `q$`}), get("/a?q"), ""},
		{"dollar is the end", one(limits.Match{PathRegex: `a$`}), get("/a"), "C"},
		{"regex of many parts", one(limits.Match{PathRegex: `(?i)^/(a|b{2,3}?)\.[\d-]\d\w\.\+\'$`}), get("/BBB.12_.+'"), "C"},
		{"regex that looks like a flag", one(limits.Match{PathRegex: `-i`}), get("/a-i"), "C"},
		{"regex that looks like the end of a condition", one(limits.Match{PathRegex: `}`}), get("/}"), "C"},
		{"regex with what quotes", one(limits.Match{PathRegex: `'\\'"$`}), get(`/'\'"`), "C"},
		{"dollar is not before a newline", one(limits.Match{PathRegex: `a$`}), get("/a%0A"), ""},
		{"key with a value", query("uploads"), get("/?uploads=x"), "C"},
		{"key with an empty value", query("uploads"), get("/?uploads="), "C"},
		{"key without a value", query("uploads"), get("/?uploads"), "C"},
		{"key in the middle", query("list-type"), get("/?x&list-type=2&y"), "C"},
		{"key at the end", query("list-type"), get("/?list-type=2&uploads"), "C"},
		{"value that looks like the key", query("uploads"), get("/?x=uploads"), ""},
		{"value with an encoded &", query("uploads"), get("/?x=%26uploads"), ""},
		{"longer key", query("uploads"), get("/?uploads2"), ""},
		{"key that ends like it", query("uploads"), get("/?xuploads"), ""},
		{"key in other case", query("uploads"), get("/?Uploads"), ""},
		{"key in the path", query("uploads"), get("/uploads"), ""},
		{"second question mark", query("uploads"), get("/?x?uploads"), ""},
		{"encoded key", query("uploads"), get("/?%75pl%6Fa%64%73"), "C"},
		{"badly encoded key", query("uploads"), get("/?%7pload%zz"), ""},
		{"encoded = belongs to the key", query("uploads"), get("/?uploads%3D1"), ""},
		{"key with signs", query("a=b&c d+%'"), get("/?a%3db%26c+d%2B%25'"), "C"},
		{"two keys, both", query("a", "b"), get("/?b=1&a"), "C"},
		{"two keys, one", query("a", "b"), get("/?b=1&b"), ""},
		{"absent key", one(limits.Match{NoQuery: []string{"acl", "tagging"}}), get("/?x=acl"), "C"},
		{"absent key, no query", one(limits.Match{NoQuery: []string{"acl", "tagging"}}), get("/"), "C"},
		{"absent key is there", one(limits.Match{NoQuery: []string{"acl", "tagging"}}), get("/?x&tagging="), ""},
		{"many absent keys", one(limits.Match{NoQuery: manyKeys}), get("/?x"), "C"},
		{"many absent keys but one", one(limits.Match{NoQuery: manyKeys}), get("/?x&" + manyKeys[13]), ""},
		{"many absent keys but the last", one(limits.Match{NoQuery: manyKeys}), get("/?" + manyKeys[29] + "=1"), ""},
		{"many keys", query(manyKeys[:8]...), get("/?" + strings.Join(manyKeys[:8], "&")), "C"},
		{"many keys but one", query(manyKeys[:8]...), get("/?" + strings.Join(manyKeys[1:8], "&")), ""},
		{"as many conditions and words as can be", one(limits.Match{Methods: verbs, PathPrefix: "/a", PathRegex: "b c", NoQuery: manyKeys, Query: []string{"k", "l", "m"}, Headers: manyHeaders[:1]}), get("/ab%20c?k&l&m", manyHeaders[0]), "C"},
		{"host", hosts("a.example.com"), at("a.example.com"), "C"},
		{"host with a port", hosts("a.example.com"), at("A.Example.com:8080"), "C"},
		{"host with a dot at the end", hosts("a.example.com"), at("a.example.com.:80"), "C"},
		{"another host", hosts("a.example.com", "b.example.com"), at("c.example.com"), ""},
		{"below a host", hosts("*.example.com"), at("b.c.example.com:1"), "C"},
		{"not the host itself", hosts("*.example.com"), at("example.com"), ""},
		{"a name that ends so", hosts("*.example.com"), at("notexample.com"), ""},
		{"a dot is a dot", hosts("a.b.c", "*.x.y"), at("a-b.c"), ""},
		{"below one of two", hosts("a.b.c", "*.x.y"), at("q.x.y"), "C"},
		{"an address", hosts("a.b.c"), at("[::1]:80"), ""},
		{"one of many hosts", hosts(manyHosts...), at(manyHosts[60]), "C"},
		{"none of these hosts", one(limits.Match{NoHosts: []string{"*.a.b"}}), at("a.b"), "C"},
		{"one that it must not be", one(limits.Match{NoHosts: []string{"*.a.b"}}), at("c.a.b"), ""},
		{"frontend", one(limits.Match{Frontends: []string{"admin", "http"}}), get("/"), "C"},
		{"another frontend", one(limits.Match{Frontends: []string{"admin", "http:2"}}), get("/"), ""},
		{"header", header("X-Kind", "report"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "report"}), "C"},
		{"header of another value", header("X-Kind", "report"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "reports"}), ""},
		{"header's case", header("X-Kind", "report"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "Report"}), ""},
		{"header's commas", header("X-Kind", "a, b"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "a, b"}), "C"},
		{"header's parts are no values", header("X-Kind", "a"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "a, b"}), ""},
		{"any of two headers", header("X-Kind", "a"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "a"}, limits.HeaderMatch{Name: "x-kind", Value: "b"}), "C"},
		{"header is present", header("X-Kind", ""), get("/", limits.HeaderMatch{Name: "x-kind", Value: "a"}), "C"},
		{"header is present and empty", header("X-Kind", ""), get("/", limits.HeaderMatch{Name: "x-kind"}), "C"},
		{"header is not present", header("X-Kind", ""), get("/", limits.HeaderMatch{Name: "x-kind2"}), ""},
		{"value like an option", header("X-Kind", "-i"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "-i"}), "C"},
		{"value like the end of a condition", header("X-Kind", "}"), get("/", limits.HeaderMatch{Name: "x-kind", Value: "}"}), "C"},
		{"value with quotes and more", header("X-Kind", `' "\ #${HOME}%[src] } if`), get("/", limits.HeaderMatch{Name: "x-kind", Value: `' "\ #${HOME}%[src] } if`}), "C"},
		{"header's name with signs", header("X'#$%&*+.^`|~!Y", "a"), get("/", limits.HeaderMatch{Name: "X'#$%&*+.^`|~!Y", Value: "a"}), "C"},
		{"many headers", one(limits.Match{Headers: manyHeaders}), get("/", manyHeaders...), "C"},
		{"many headers but one", one(limits.Match{Headers: manyHeaders}), get("/", manyHeaders[:7]...), ""},
		{"many headers but the first", one(limits.Match{Headers: manyHeaders}), get("/", manyHeaders[1:]...), ""},
		{"everything", one(limits.Match{Methods: []string{"GET"}, PathPrefix: "/a", PathRegex: "b$", Query: []string{"k"}, NoQuery: []string{"l"}, Headers: []limits.HeaderMatch{{Name: "h"}}}),
			get("/ab?k", limits.HeaderMatch{Name: "h", Value: "v"}), "C"},
	}
	var sets [][]limits.Class
	for _, row := range rows {
		sets = append(sets, row.classes)
	}
	c := newClassifier(t, sets...)
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if got := c.classes(t, row.ask)[i]; got != row.want {
				rules, _ := Classify(row.classes)
				t.Errorf("class of %q = %q, want %q, by\n%s", row.ask, got, row.want, rules)
			}
			if naive := classOf(row.classes, row.ask); naive != row.want && !strings.HasPrefix(row.ask.target, "http:") {
				t.Errorf("matches says %q, want %q", naive, row.want)
			}
		})
	}
}

// isAccepted reports whether a limit file may have this path_regex.
func isAccepted(regex string) bool {
	text, err := json.Marshal(regex)
	if err != nil {
		return false
	}
	_, err = limitfile.Parse("limits.yaml", fmt.Appendf(nil, "version: 1\ndefault_tier: free\nclasses: {LIST: {path_regex: %s}}\ntiers: {free: {}}\n", text))
	return err == nil
}

// Whatever the classes and the requests are, HAProxy finds the classes that Go finds.
func TestClassifyIsWhatMatchesMeans(t *testing.T) {
	t.Parallel()
	const sets, asks = 120, 250
	var (
		signs   = []string{"a", "b", "/", "-", ".", "'", `"`, `\`, "$", "{", "}", "(", ")", "[", "]", "*", "+", "|", "^", ";", ",", "!", "~", "%41", "%", "é"}
		text    = rapid.Map(rapid.SliceOfN(rapid.SampledFrom(signs), 1, 3), func(s []string) string { return strings.Join(s, "") })
		pattern = rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{
			"a", "b", "/", "^/", "$", ".", "[^/]+", "(a|b)", `\.`, "a{1,2}", "(?i:A)", `\b`, `\B`, `[\W\d]`, `\w?`, `'"\$`, `\'`,
			"/[^/]*", `[\]\-\\^]`, "|", "(?:)", "%", "[a-z]*?", `[!-']`, " ", "#", "}", "-i", `\s`,
		}), 1, 2), func(s []string) string { return strings.Join(s, "") })
		key   = rapid.SampledFrom([]string{"a", "b", "a b", "a+b", "a=b", "a&b", "list-type", "'", `"`, `\`, "%", "é", "$", "A", "}", "a]"})
		field = rapid.SampledFrom([]string{"X-A", "x-b", "X'C", "X#$%&*+.^`|~!Y"})
		value = rapid.SampledFrom([]string{"", "a", "a b", "}", "-m", `"`, "'", `\`, "$A", "%[src]", "a,b"})
		hdr   = rapid.Custom(func(t *rapid.T) limits.HeaderMatch {
			return limits.HeaderMatch{Name: field.Draw(t, "name"), Value: value.Draw(t, "value")}
		})
		host   = rapid.SampledFrom([]string{"a", "a.b", "*.a", "*.a.b", "x.a", "x-a.b"})
		method = rapid.SampledFrom([]string{"GET", "PUT", "HEAD", "PROPFIND", "M-'$X"})
		match  = rapid.Custom(func(t *rapid.T) limits.Match {
			var m limits.Match
			which := rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 0, 2, rapid.ID).Draw(t, "which")
			for _, part := range which {
				switch part {
				case 0:
					m.Methods = rapid.SliceOfN(method, 1, 3).Draw(t, "methods")
				case 1:
					m.PathPrefix = rapid.SampledFrom([]string{"/", "/a", "/b", "/'", "/%", `/"`, "/}", "/{a"}).Draw(t, "prefix")
				case 2:
					m.PathRegex = pattern.Draw(t, "regex")
				case 3:
					m.Query = rapid.SliceOfN(key, 1, 2).Draw(t, "query")
				case 4:
					m.NoQuery = rapid.SliceOfN(key, 1, 3).Draw(t, "no query")
				case 5:
					m.Headers = rapid.SliceOfN(hdr, 1, 2).Draw(t, "headers")
				case 6:
					m.Hosts = rapid.SliceOfN(host, 1, 2).Draw(t, "hosts")
				case 7:
					m.NoHosts = rapid.SliceOfN(host, 1, 2).Draw(t, "no hosts")
				}
			}
			return m
		})
		class = rapid.Custom(func(t *rapid.T) limits.Class {
			return limits.Class{Name: rapid.StringMatching(`[A-Z][A-Z0-9_]{0,5}`).Draw(t, "name"), Any: rapid.SliceOfN(match, 1, 2).Draw(t, "any")}
		})
		pair = rapid.Custom(func(t *rapid.T) string {
			k := key.Draw(t, "key")
			written := rapid.SampledFrom([]string{url.QueryEscape(k), fmt.Sprintf("%%%02X%s", k[0], url.QueryEscape(k[1:])), fmt.Sprintf("%%%02x%s", k[0], url.QueryEscape(k[1:])), k + "x", "%zz", "x=" + k}).Draw(t, "written")
			return written + rapid.SampledFrom([]string{"", "=", "=1", "=a&b"}).Draw(t, "rest")
		})
		asked = rapid.Custom(func(t *rapid.T) ask {
			a := ask{method: method.Draw(t, "method"), target: "/" + text.Draw(t, "path"), header: rapid.SliceOfN(hdr, 0, 3).Draw(t, "headers"),
				host: rapid.SampledFrom([]string{"", "a", "A.b:80", "x.a", "X.A.b.", "x-a.b", "xa"}).Draw(t, "host")}
			if rapid.Bool().Draw(t, "lower") {
				a.method = strings.ToLower(a.method)
			}
			if pairs := rapid.SliceOfN(pair, 0, 3).Draw(t, "query"); len(pairs) > 0 {
				a.target += "?" + strings.Join(pairs, "&")
			}
			// What cannot be on a request line is encoded.
			a.target = strings.NewReplacer("é", "%C3%A9", " ", "%20").Replace(a.target)
			return a
		})
	)
	all := make([][]limits.Class, sets)
	for i := range all {
		all[i] = rapid.SliceOfN(class, 1, 2).Example(i)
		for c := range all[i] {
			for m := range all[i][c].Any {
				if !isAccepted(all[i][c].Any[m].PathRegex) {
					all[i][c].Any[m].PathRegex = "" // such as two repetitions of one thing
				}
			}
		}
	}
	c := newClassifier(t, all...)
	found := 0
	for n := range asks {
		a := asked.Example(n)
		got := c.classes(t, a)
		for i := range all {
			want := classOf(all[i], a)
			if got[i] != want {
				rules, _ := Classify(all[i])
				t.Errorf("class of %q = %q, want %q, by %+v, which is\n%s", a, got[i], want, all[i], rules)
			}
			if want != "" {
				found++
			}
		}
		if t.Failed() {
			break
		}
	}
	if n := sets * asks; found < n/20 || found > n*9/10 {
		t.Errorf("%d of %d pairs had a class, want neither few nor nearly all", found, n)
	}
}

func TestClassifyErrors(t *testing.T) {
	for want, m := range map[string]limits.Match{
		`class C: method "get": want a method in capitals`:                   {Methods: []string{"get"}},
		`class C: method "A B": want a method in capitals`:                   {Methods: []string{"A B"}},
		`class C: method "": want a method in capitals`:                      {Methods: []string{""}},
		`class C: path_regex "a\nb": want printable ASCII characters`:        {PathRegex: "a\nb"},
		`class C: path_regex "é": want printable ASCII characters`:           {PathRegex: "é"},
		`class C: query: a key cannot be empty`:                              {Query: []string{""}},
		`class C: "kkkkkkkkkkkkkkkkkkkk"… has 3001 bytes, want 3000 at most`: {NoQuery: []string{strings.Repeat("k", 3001)}},
		`class C: "////////////////////"… has 3001 bytes, want 3000 at most`: {PathPrefix: strings.Repeat("/", 3001)},
		`class C: 9 conditions: want 8 at most`:                              {Methods: []string{"GET"}, Query: strings.Split("abcdefgh", "")},
		`class C: header "": want a field's name`:                            {Headers: []limits.HeaderMatch{{}}},
		`class C: header "A\nhttp-request deny": want a field's name`:        {Headers: []limits.HeaderMatch{{Name: "A\nhttp-request deny"}}},
		`class C: header "A)": want a field's name`:                          {Headers: []limits.HeaderMatch{{Name: "A)"}}},
	} {
		if got, err := Classify([]limits.Class{{Name: "C", Any: []limits.Match{m}}}); err == nil || err.Error() != want {
			t.Errorf("Classify(%+v) = %q, %v, want the error %s", m, got, err, want)
		}
	}
	for _, name := range []string{"", "a", "1", "A B", "A)", "A\n", strings.Repeat("A", 33)} {
		if got, err := Classify([]limits.Class{{Name: name}}); err == nil {
			t.Errorf("Classify of the name %q = %q, want an error", name, got)
		}
	}
}

// What Classify takes, HAProxy takes, and each rule is one rule.
func FuzzClassify(f *testing.F) {
	f.Add("LIST", "GET", "/a", "^/b$", "uploads", "acl", "X-Kind", "report")
	f.Add("A", "M'$", "/ '\"}", `(?i)[^a']{2,900}|\\'a*\b`, "a=&'+ é\x00", "}", "X'#`", "}")
	f.Add("B", "PROPFIND", "/\n    http-request deny", `}`, "\n", "\\", "X", "\n http-request deny")
	f.Add("C", "GET", "-m", `-i`, "-i", "--", "X", "-f")
	f.Add("D", "", "", `[cd]{1000}#`, "k", "k", "X", "")
	dir := f.TempDir()
	haproxy := testkit.HAProxyPath(f)
	f.Fuzz(func(t *testing.T, name, method, prefix, regex, key, noKey, header, value string) {
		m := limits.Match{
			PathPrefix: prefix, PathRegex: regex, Query: []string{key}, NoQuery: []string{noKey, key + noKey},
			Headers: []limits.HeaderMatch{{Name: header, Value: value}, {Name: header}},
		}
		if method != "" {
			m.Methods = []string{method, "GET"}
		}
		if regex != "" && !isAccepted(regex) {
			return
		}
		classes := []limits.Class{{Name: name, Any: []limits.Match{m}}}
		rules, err := Classify(classes)
		if err != nil {
			return
		}
		if want := 1 + strings.Count(rules, "set-var(txn.sluice_path)") + strings.Count(rules, "set-var(txn.sluice_method)"); strings.Count(rules, "\n") != want || strings.ContainsFunc(rules, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
			t.Errorf("Classify(%+v) = %q, want one rule besides what it reads, of ASCII", classes, rules)
		}
		file := filepath.Join(dir, fmt.Sprintf("%d.cfg", os.Getpid()))
		if err := os.WriteFile(file, []byte(classifyConfig(t, [][]limits.Class{classes})), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(haproxy, "-c", "-f", file).CombinedOutput()
		if text := strings.TrimSpace(strings.Replace(string(out), "Configuration file is valid", "", 1)); err != nil || text != "" {
			t.Errorf("haproxy -c of %s: %v: %s", rules, err, out)
		}
	})
}

// classify/s3.cfg is made of limits.S3Classes, by go test -run S3 -update ./haproxy.
func TestS3IsCurrent(t *testing.T) {
	rules, err := Classify(limits.S3Classes(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := `    # The operation classes of S3, as "classes: s3" in a limit file has them.
` + rules
	if *update {
		if err := os.WriteFile("classify/s3.cfg", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, shipped(t, "classify/s3.cfg")); diff != "" {
		t.Errorf("classify/s3.cfg is not what limits.S3Classes says; run go test -run S3IsCurrent -update ./haproxy (-want +got):\n%s", diff)
	}
}

func TestS3Classes(t *testing.T) {
	const presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeee"
	classes := limits.S3Classes([]string{"s3.local", "*.s3.example.com"})
	r := newRig(t, setup{Config: Config{Classes: classes}})
	for _, row := range []struct{ method, target, want string }{
		{"PUT", "http://bkt.s3.local/file1", "PUTOBJECT"},
		{"PUT", "http://bkt.s3.local:9000/", "CREATEBUCKET"},
		{"PUT", "http://s3.local/file1", "CREATEBUCKET"},
		{"GET", "http://a.bkt.S3.example.com/key", "GETOBJECT"},
		{"GET", "http://bkt.s3.example.com/bucket/", "GETOBJECT"},
		{"GET", "http://bkt.s3.example.com/", "LISTOBJECTS"},
		{"GET", "http://bkt.s3.example.com/?list-type=2", "LISTOBJECTSV2"},
		{"GET", "http://bkt.s3.example.com/?acl", ""},
		{"GET", "http://bkt.s3.example.com/key?list-type=2", "GETOBJECT"},
		{"GET", "http://s3.example.com/", "LISTBUCKETS"},
		{"DELETE", "http://bkt.s3.local/key", "DELETEOBJECT"},
		{"DELETE", "http://bkt.s3.local/", ""},
		{"POST", "http://bkt.s3.local/?delete", "DELETEOBJECTS"},
		{"GET", "http://notbkts3.local/key", "LISTOBJECTS"},
		{"GET", "/", "LISTBUCKETS"},
		{"GET", "/?x-id=ListBuckets", "LISTBUCKETS"},
		{"GET", "/?max-buckets=5&prefix=acl", "LISTBUCKETS"},
		{"GET", "/bucket", "LISTOBJECTS"},
		{"GET", "/bucket/", "LISTOBJECTS"},
		{"GET", "/bucket?prefix=a%2Fb&delimiter=%2F&marker=list-type", "LISTOBJECTS"},
		{"GET", "/bucket?prefix=&uploads%3D", "LISTOBJECTS"},
		{"GET", "/bucket?" + presigned, "LISTOBJECTS"},
		{"GET", "/bucket?list-type=2", "LISTOBJECTSV2"},
		{"GET", "/bucket/?list-type=2&prefix=versions", "LISTOBJECTSV2"},
		{"GET", "/bucket?prefix=a&list-type=2&" + presigned, "LISTOBJECTSV2"},
		{"GET", "/bucket?list%2Dtype=2", "LISTOBJECTSV2"},
		{"GET", "/bucket?versions", "LISTOBJECTVERSIONS"},
		{"GET", "/bucket/?versions=&prefix=a", "LISTOBJECTVERSIONS"},
		{"GET", "/bucket?uploads", "LISTMULTIPARTUPLOADS"},
		{"GET", "/bucket?uploads=&max-uploads=3", "LISTMULTIPARTUPLOADS"},
		{"GET", "/bucket?location", ""},
		{"GET", "/bucket?acl", ""},
		{"GET", "/bucket?versioning", ""},
		{"GET", "/bucket?policyStatus=", ""},
		{"GET", "/bucket/key", "GETOBJECT"},
		{"GET", "/bucket/a/b/", "GETOBJECT"},
		{"GET", "/bucket//", "GETOBJECT"},
		{"GET", "/bucket/k%C3%A9y%20%3Facl", "GETOBJECT"},
		{"GET", "/bucket/key?versionId=3&partNumber=2", "GETOBJECT"},
		{"GET", "/bucket/key?response-content-type=tagging&" + presigned, "GETOBJECT"},
		{"GET", "/bucket/uploads", "GETOBJECT"},
		{"GET", "/bucket/key?tagging", ""},
		{"GET", "/bucket/key?acl&versionId=1", ""},
		{"GET", "/bucket/key?uploadId=abc", ""},
		{"PUT", "/bucket", "CREATEBUCKET"},
		{"PUT", "/bucket/", "CREATEBUCKET"},
		{"PUT", "/bucket?policy", ""},
		{"PUT", "/bucket/key", "PUTOBJECT"},
		{"PUT", "/bucket/key?" + presigned, "PUTOBJECT"},
		{"PUT", "/bucket/key?partNumber=1&uploadId=abc", ""},
		{"PUT", "/bucket/key?tagging", ""},
		{"POST", "/bucket?delete", "DELETEOBJECTS"},
		{"POST", "/bucket/?delete=", "DELETEOBJECTS"},
		{"POST", "/bucket/key?uploads", ""},
		{"POST", "/bucket/key?uploadId=a", ""},
		{"POST", "/bucket", ""},
		{"DELETE", "/bucket/key", "DELETEOBJECT"},
		{"DELETE", "/bucket/key?versionId=7", "DELETEOBJECT"},
		{"DELETE", "/bucket/key?uploadId=7", ""},
		{"DELETE", "/bucket/key?tagging", ""},
		{"DELETE", "/bucket", ""},
		{"HEAD", "/bucket/key", ""},
		{"HEAD", "/bucket", ""},
		{"OPTIONS", "/bucket/key", ""},
		{"get", "/", "LISTBUCKETS"},
	} {
		t.Run(row.method+" "+row.target, func(t *testing.T) {
			a := ask{method: row.method, target: row.target, header: []limits.HeaderMatch{{Name: "X-User", Value: "alice"}, {Name: "Content-Length", Value: "0"}}}
			if u, err := url.Parse(row.target); err == nil && u.Host != "" {
				a.target, a.host = u.RequestURI(), u.Host
			}
			r.send(t, a.String())
			heard := r.takeHeard(t)
			if len(heard) != 1 || heard[0].Op != row.want {
				t.Errorf("the agent heard %+v, want op %q", heard, row.want)
			}
			if got := classOf(classes, a); got != row.want {
				t.Errorf("matches says %q, want %q", got, row.want)
			}
		})
	}
}
