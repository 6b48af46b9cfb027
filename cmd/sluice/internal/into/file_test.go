package into

import (
	"slices"
	"strings"
	"testing"
)

func TestParseSplitsWordsAsHAProxyDoes(t *testing.T) {
	for _, row := range []struct {
		line string
		want []string
	}{
		{"\tbind\t*:80  name x # not :81", []string{"bind", "*:80", "name", "x"}},
		{`log-format "%ci # \"%r\" 'x'" # comment`, []string{"log-format", `%ci # "%r" 'x'`}},
		{`acl a path 'b\' c\ d`, []string{"acl", "a", "path", `b\`, "c d"}},
		{`http-request deny if { path \# } ""`, []string{"http-request", "deny", "if", "{", "path", "#", "}", ""}},
		{`bind "${ADDR[*]}"` + "\r\n", []string{"bind", "${ADDR[*]}"}},
		{"# frontend x", nil},
		{"   \t\n", nil},
		{`bind "unfinished`, []string{"bind", "unfinished"}},
	} {
		if got := splitWords(row.line); !slices.Equal(got, row.want) {
			t.Errorf("splitWords(%q) = %q, want %q", row.line, got, row.want)
		}
	}
}

const theirs = `# a title

global
    maxconn 100

#---------
# defaults
#---------
defaults http
    mode http

frontend web from http
    bind :80
    http-request set-header X-A \
        b
    # what follows chooses
    use_backend a if { path /a }
    default_backend b

.if defined(B)
backend b
    server s 127.0.0.1:1
.endif
frontend last
    bind :81
    .if defined(C)
    http-request deny
    .endif`

// where is what stands before each block behind the first line, and behind it: "line|line".
func where(t *testing.T, text string) []string {
	t.Helper()
	var places []string
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if i > 0 && strings.HasPrefix(strings.TrimSpace(l), BeginMark) {
			end := i
			for strings.TrimSpace(lines[end]) != endMark {
				end++
			}
			behind := "end of file"
			if end+1 < len(lines) {
				behind = strings.TrimSpace(lines[end+1])
			}
			places = append(places, strings.TrimSpace(lines[i-1])+"|"+behind)
		}
	}
	return places
}

// with are the texts of files with our lines.
func with(t *testing.T, o Ours, files ...string) []string {
	t.Helper()
	c := parse(t, files...)
	if err := c.With(o); err != nil {
		t.Fatal(err)
	}
	return c.Texts()
}

// No defaults of an earlier file are in force where the process' block stands.
func TestBlocksOfSeveralFiles(t *testing.T) {
	texts := with(t, Ours{Process: "global\n", Frontend: "x\n", Frontends: []string{"web", "api"}},
		"global\n maxconn 1\n", "defaults\n mode http", "frontend web\n bind :1", "listen api\n bind :2\n")
	for i, want := range [][]string{nil, nil, {"bind :1|end of file"}, {"bind :2|"}} {
		if i == 1 {
			if !strings.HasPrefix(texts[i], BeginMark) || !strings.HasSuffix(texts[i], endMark+"\ndefaults\n mode http") {
				t.Errorf("the second file is %q, want the process' block in front of it", texts[i])
			}
			continue
		}
		if places := where(t, texts[i]); !slices.Equal(places, want) {
			t.Errorf("file %d: blocks stand at %q, want %q, in:\n%s", i, places, want, texts[i])
		}
	}
}

func TestBlocksStandWhereTheyWork(t *testing.T) {
	got := with(t, Ours{Process: "global\n    localpeer x\n", Frontend: "    option contstats\n", Frontends: []string{"web", "last"}}, theirs)[0]
	want := []string{"maxconn 100|", "b|# what follows chooses", ".endif|end of file"}
	if places := where(t, got); !slices.Equal(places, want) {
		t.Errorf("blocks stand at %q, want %q, in:\n%s", places, want, got)
	}
	again := parse(t, got)
	if !slices.Equal(again.Blocked, []string{"web", "last"}) {
		t.Errorf("Blocked = %q", again.Blocked)
	}
	if without := again.Texts()[0]; without != theirs {
		t.Errorf("Texts() = %s, want what was there before", without)
	}
}

// Rules have an order, for HAProxy's warnings. A default_backend has none.
func TestBlocksStandInHAProxysOrder(t *testing.T) {
	for _, row := range []struct {
		name, rules string
		want        []string // what is before and behind each block
	}{
		{"redirect", "http-request a\nredirect b\nuse_backend c\ndefault_backend d", []string{"http-request a|redirect b", "redirect b|use_backend c"}},
		{"redirect behind use_backend", "http-request a\nuse_backend c\nredirect b", []string{"http-request a|use_backend c"}},
		{"redirect last", "redirect b", []string{"frontend a|redirect b", "redirect b|end of file"}},
		{"use-server", "use-server s\nserver s", []string{"frontend a|use-server s"}},
		{"default_backend first", "default_backend d\ntcp-request a\nmonitor fail\nbind x", []string{"bind x|end of file"}},
		{"default_backend between", "http-request a\ndefault_backend d\nredirect b\nuse_backend c", []string{"http-request a|default_backend d", "redirect b|use_backend c"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := with(t, Ours{Frontend: "x\n", Choice: "y\n", Frontends: []string{"a"}}, "frontend a\n"+row.rules)[0]
			if places := where(t, got); !slices.Equal(places, row.want) {
				t.Errorf("blocks stand at %q, want %q, in:\n%s", places, row.want, got)
			}
		})
	}
}

// HAProxy adds filters by itself only as long as there are no others.
func TestBlocksHaveFiltersOfTheirs(t *testing.T) {
	const text = "defaults\n compression algo gzip\n compression type text/html\nfrontend web\n http-request cache-use a if TRUE\n filter cache b\n http-request cache-use b if TRUE\n http-response cache-store a\n"
	got := with(t, Ours{Frontend: "    option contstats\n", Frontends: []string{"web"}}, text)[0]
	if want := "\n    filter cache a\n    filter compression\n    option contstats\n"; !strings.Contains(got, want) || strings.Count(got, "filter") != 3 {
		t.Errorf("With() = %q, want lines %q", got, want)
	}
}

func TestBlocksHaveTheFilesLineEnds(t *testing.T) {
	dos := strings.ReplaceAll(theirs, "\n", "\r\n")
	got := with(t, Ours{Process: "global\n", Frontend: "    option contstats\n", Frontends: []string{"last"}}, dos)[0]
	if n := strings.Count(strings.ReplaceAll(got, "\r\n", ""), "\n"); n != 0 {
		t.Errorf("%d lines end otherwise than those of the file: %q", n, got)
	}
	if without := parse(t, got).Texts()[0]; without != dos {
		t.Errorf("Texts() = %q, want what was there before", without)
	}
}

func TestPlacesThatAreNone(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"rules behind use_backend", "frontend a\n  use_backend b\n  http-request deny\n", "line 3: this http-request rule stands behind use_backend in line 2: move it above, as HAProxy asks for"},
		{"all in one .if", "frontend a\n  .if defined(X)\n  http-request deny\n  use_backend b\n  .endif\n", "line 3: this line and the rules that must be behind Sluice's stand in one .if: end it between them"},
		{"rules behind redirect", "frontend a\n  redirect prefix /\n  tcp-request content accept\n", "line 3: this tcp-request rule stands behind redirect in line 2: move it above, as HAProxy asks for"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := parse(t, row.text).With(Ours{Frontend: "x\n", Frontends: []string{"a"}}); err == nil || err.Error() != row.want {
				t.Errorf("With() = %v, want %q", err, row.want)
			}
		})
	}
}

func TestMarksWithoutTheirOtherOne(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{"global\n# sluice: begin (x)\n", `line 2: "# sluice: begin" has no "# sluice: end" behind it`},
		{"  # sluice: end\n", `line 1: "# sluice: end" stands here without "# sluice: begin" before it`},
		{"# sluice: begin\n# sluice: begin\n# sluice: end\n", `line 2: "# sluice: begin" stands in the block that begins in line 1`},
	} {
		if err := new(Config).Add("a.cfg", row.text); err == nil || err.Error() != "a.cfg: "+row.want {
			t.Errorf("Add(%q) = %v, want %q", row.text, err, row.want)
		}
	}
}

// Whatever the text, reading it keeps every byte, something can be said about it, and what is put in is taken out again.
func FuzzBlocks(f *testing.F) {
	f.Add(theirs)
	f.Add(strings.ReplaceAll(theirs, "\n", "\r\n"))
	f.Add("frontend \\\n a\\")
	f.Add("global\n# x \\\nfrontend a\n\tbind \"\n.if 1\nfrontend b\n.else\n.endif\nuse_backend x")
	f.Add("listen a from b\r")
	f.Add("defaults a from a\nmode\ntrack-sc0\nfrontend b from a\nuse_backend %[x]\nhttp-request\nbackend sluice\nchroot\nglobal\nchroot\nlocaldpeer\npeers sluice\n")
	f.Add("# sluice: end\nfrontend a\n# sluice: begin")
	f.Fuzz(func(t *testing.T, text string) {
		c := &Config{}
		if err := c.Add("a.cfg", text); err != nil {
			return
		}
		without := c.Texts()[0]
		if !strings.Contains(text, BeginMark) && without != text {
			t.Fatalf("Texts() of %q = %q", text, without)
		}
		ours := Ours{Frontend: "    http-request track-sc0 src\n    filter spoe engine sluice\n", Choice: "    use_backend x\n", Process: "global\npeers sluice\n", Bandwidth: true}
		for _, x := range c.sections {
			if x.frontend() {
				ours.Frontends = append(ours.Frontends, x.name)
			}
		}
		c.Find(ours)
		c.Process(true)
		if len(ours.Frontends) == 0 || c.With(ours) != nil {
			return
		}
		again := &Config{}
		if err := again.Add("a.cfg", c.Texts()[0]); err != nil || again.Texts()[0] != without {
			t.Fatalf("With, then Add of %q = %q, %v", without, again.Texts()[0], err)
		}
	})
}
