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

// where is what stands before each block, and behind it: "line|line".
func where(t *testing.T, text string) []string {
	t.Helper()
	var places []string
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(strings.TrimSpace(l), beginMark) {
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

func TestBlocksStandWhereTheyWork(t *testing.T) {
	f := Parse(theirs)
	got, err := f.With(Blocks{Process: "global\n    localpeer x\n", Sections: map[int]string{2: "    option contstats\n", 4: "    option contstats\n"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"maxconn 100|", "b|# what follows chooses", ".endif|end of file"}
	if places := where(t, got); !slices.Equal(places, want) {
		t.Errorf("blocks stand at %q, want %q, in:\n%s", places, want, got)
	}
	again := Parse(got)
	if blocked := again.Blocked(); !slices.Equal(blocked, []string{"web", "last"}) {
		t.Errorf("Blocked() = %q", blocked)
	}
	if without, err := again.Without(); err != nil || without.String() != theirs {
		t.Errorf("Without() = %v, want what was there before, got:\n%s", err, without)
	}
}

func TestBlocksHaveTheFilesLineEnds(t *testing.T) {
	dos := strings.ReplaceAll(theirs, "\n", "\r\n")
	got, err := Parse(dos).With(Blocks{Process: "global\n", Sections: map[int]string{4: "    option contstats\n"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.ReplaceAll(got, "\r\n", ""), "\n"); n != 0 {
		t.Errorf("%d lines end otherwise than those of the file: %q", n, got)
	}
	if without, err := Parse(got).Without(); err != nil || without.String() != dos {
		t.Errorf("Without() = %q, %v, want what was there before", without, err)
	}
}

func TestPlacesThatAreNone(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"rules behind use_backend", "frontend a\n  use_backend b\n  http-request deny\n", "line 3: this http-request rule stands behind use_backend in line 2: move it above, as HAProxy asks for"},
		{"all in one .if", "frontend a\n  .if defined(X)\n  http-request deny\n  use_backend b\n  .endif\n", "line 3: this http-request rule and use_backend stand in one .if: end it between them"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := Parse(row.text).With(Blocks{Sections: map[int]string{0: "x\n"}}); err == nil || err.Error() != row.want {
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
		if _, err := Parse(row.text).Without(); err == nil || err.Error() != row.want {
			t.Errorf("Without(%q) = %v, want %q", row.text, err, row.want)
		}
	}
}

// With chroot the agent's sockets are inside it: that of costs, too, if requests cost anything.
func TestFindChroot(t *testing.T) {
	const spoe = "HAProxy connects to the agent inside of /jail: start the agent with --spoe unix:/jail/run/sluice/spoa.sock"
	s := Set{Names: []string{"a.cfg"}, Files: []*File{Parse("global\n  chroot /jail/\nfrontend web\n  mode http\n")}}
	for costs, want := range map[bool]string{false: spoe, true: spoe + " and --costs-socket unix:/jail/run/sluice/costs.sock"} {
		if got := s.Find(Ours{Frontends: []string{"web"}, Costs: costs}); !slices.Equal(got, []Finding{{File: "a.cfg", Line: 2, What: want}}) {
			t.Errorf("with costs %t: Find() = %v, want %q", costs, got, want)
		}
	}
}

// The defaults of an earlier file do not end where a later one begins.
func TestFindDefaultsOfAnEarlierFile(t *testing.T) {
	s := Set{
		Names:  []string{"a.cfg", "b.cfg", "c.cfg"},
		Files:  []*File{Parse("global\ndefaults\ndefaults x\n    mode http\n"), Parse("defaults\nfrontend web from x\n"), Parse("defaults\n")},
		Target: 1,
	}
	want := []Finding{{File: "a.cfg", Line: 3, What: "these defaults hold for Sluice's backends as well, which stand behind them in b.cfg: have no default-server in them, or put both into one file"}}
	if got := s.Find(Ours{Frontends: []string{"web"}}); !slices.Equal(got, want) {
		t.Errorf("Find() = %v, want %v", got, want)
	}
	s.Target = 0
	if got := s.findDefaultsBefore(); got != nil {
		t.Errorf("of the first file: %v, want nothing", got)
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
		file := Parse(text)
		if got := file.String(); got != text {
			t.Fatalf("Parse(%q).String() = %q", text, got)
		}
		var names []string
		blocks := Blocks{Process: "global\n    localpeer haproxy\n", Sections: map[int]string{}}
		for i, s := range file.Sections {
			if s.Kind == "frontend" || s.Kind == "listen" {
				blocks.Sections[i] = "    option contstats\n"
				names = append(names, s.Name)
			}
		}
		set := Set{Names: []string{"a.cfg"}, Files: []*File{file}}
		set.Find(Ours{Frontends: names, Frontend: "    http-request track-sc0 src\n    filter spoe engine sluice\n", Process: "peers sluice\n", Bandwidth: true})
		with, err := file.With(blocks)
		if err != nil {
			return
		}
		without, err := Parse(with).Without()
		if err != nil || without.String() != text {
			t.Fatalf("With, then Without of %q = %q, %v", text, without, err)
		}
	})
}
