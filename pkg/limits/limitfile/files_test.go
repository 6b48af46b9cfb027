package limitfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tree writes files into a new folder and makes it the working directory, so that
// names in errors are short.
func tree(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const usersFromHead = "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 1}, pro: {concurrent: 9}}\n"

func TestUsersFrom(t *testing.T) {
	for _, tt := range []struct {
		name  string
		from  string // the value of users_from, and more of the limit file
		files map[string]string
		users string // who has the tier pro
		paths string
	}{
		{"a pattern", "users.d/*.yaml", map[string]string{
			"users.d/b.yaml": "users: {bob: pro}\n", "users.d/a.yaml": "version: 1\nusers:\n  alice: pro\n", "users.d/c.txt": "nothing",
			"users.d/.d.yaml": "hidden", "users.d/e.yaml/f": "in a folder",
		}, "alice bob", "limits.yaml users.d/a.yaml users.d/b.yaml"},
		{"a list, with the limit file's own users", "[a.yaml, 'more/*']\nusers: {zoe: pro}", map[string]string{
			"a.yaml": "users: {alice: pro}", "more/x": "users: {xeno: pro}",
		}, "alice xeno zoe", "limits.yaml a.yaml more/x"},
		{"a pattern that matches nothing", "users.d/*.yaml", nil, "", "limits.yaml"},
		{"folders by a pattern", "tenants/*/users.yaml", map[string]string{
			"tenants/b/users.yaml": "users: {bob: pro}", "tenants/a/users.yaml": "users: {alice: pro}", "tenants/c/others.yaml": "",
		}, "alice bob", "limits.yaml tenants/a/users.yaml tenants/b/users.yaml"},
		{"a file that two patterns match", "[a*.yaml, '*a.yaml']", map[string]string{"a.yaml": "users: {alice: pro}"}, "alice", "limits.yaml a.yaml"},
		{"the limit file itself matches", "'*.yaml'", map[string]string{"a.yaml": "users: {alice: pro}"}, "alice", "limits.yaml a.yaml"},
		{"a hidden file that is named", ".a.yaml", map[string]string{".a.yaml": "users: {alice: pro}"}, "alice", "limits.yaml .a.yaml"},
		{"no users", "a.yaml", map[string]string{"a.yaml": "users:\n"}, "", "limits.yaml a.yaml"},
		{"patterns of names", "a.yaml", map[string]string{"a.yaml": "users: {'team-*': pro}"}, "team-*", "limits.yaml a.yaml"},
		{"a folder beside", "../x/a.yaml", map[string]string{"x/a.yaml": "users: {alice: pro}"}, "alice", "sub/limits.yaml x/a.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := "limits.yaml"
			if strings.HasPrefix(tt.from, "..") {
				path = "sub/limits.yaml"
			}
			files := map[string]string{path: usersFromHead + "users_from: " + tt.from + "\n"}
			for name, content := range tt.files {
				files[name] = content
			}
			tree(t, files)
			set, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(slices.Collect(set.UserNames()), " "); got != tt.users {
				t.Errorf("Users() = %s, want %s", got, tt.users)
			}
			for user := range set.UserNames() {
				if got := set.User(user).Tier; got != "pro" {
					t.Errorf("User(%s) has the tier %s, want pro", user, got)
				}
			}
			read, err := ReadFiles(path)
			if got := strings.Join(read.Paths, " "); err != nil || got != tt.paths {
				t.Errorf("Paths = %s, %v, want %s", got, err, tt.paths)
			}
			again, err := Parse("elsewhere.yaml", set.Source())
			if err != nil {
				t.Fatalf("Parse(Source()) = %v", err)
			}
			if diff := cmp.Diff(print(set), print(again)); diff != "" {
				t.Errorf("Parse(Source()) differs:\n%s", diff)
			}
		})
	}
}

func TestUsersFromErrors(t *testing.T) {
	for _, tt := range []struct {
		name, from string
		files      map[string]string
		want       string
	}{
		{"a file that is not there", "a.yaml", nil,
			`limits.yaml:4:13: users_from: there is no file "a.yaml"; a pattern such as users.d/*.yaml may match none`},
		{"a folder", "[x, a.yaml]", map[string]string{"x/y": ""},
			"limits.yaml:4:14: users_from: \"x\" is no file\nlimits.yaml:4:17: users_from: there is no file \"a.yaml\"; a pattern such as users.d/*.yaml may match none"},
		{"a value that is no pattern", "{a: b}", nil, "limits.yaml:4:13: users_from must be a list such as [users.d/*.yaml], got a mapping"},
		{"errors of every file, in order", "'*.d'\nusers: {alice: gold}", map[string]string{"b.d": "users:\n  bob: silver\n", "a.d": "users: {carol: {concurrent: 0}}"},
			"limits.yaml:5:16: user \"alice\": tier: unknown tier \"gold\" (valid: free, pro)\n" +
				"a.d:1:29: user \"carol\": concurrent must be 1 or more, got 0; write unlimited to lift the limit\n" +
				"b.d:2:8: user \"bob\": tier: unknown tier \"silver\" (valid: free, pro)"},
		{"a user in two files", "'*.d'\nusers: {alice: pro}", map[string]string{"b.d": "users:\n  bob: pro\n  alice: pro\n", "a.d": "users: {bob: pro}"},
			"b.d:2:3: users: \"bob\" is named in two files, first at a.d:1\n" +
				"b.d:3:3: users: \"alice\" is named in two files, first at limits.yaml:5"},
		{"a user twice in one file", "a.d", map[string]string{"a.d": "users:\n  bob: pro\n  bob: free\n  bob: free\n"},
			"a.d:3:3: users has \"bob\" twice, first on line 2\na.d:4:3: users has \"bob\" twice, first on line 2"},
		{"more than users", "a.d", map[string]string{"a.d": "version: 1\ntiers: {}\nusers: {}\nuser: {}\n"},
			"a.d:2:1: a file of users_from has users only; write tiers in limits.yaml\n" +
				"a.d:4:1: a file of users_from: unknown field \"user\"; did you mean users? (valid: version, users)"},
		{"no users", "a.d", map[string]string{"a.d": "version: 1\n"}, "a.d:1:1: users is missing; write users: {} for none"},
		{"another version", "a.d", map[string]string{"a.d": "version: 2\nusers: {}\n"}, "a.d:1:10: version 2 is not supported (valid: 1)"},
		{"a list", "a.d", map[string]string{"a.d": "[alice]\n"}, "a.d:1:1: a file of users_from must be a mapping such as {users: {alice: free}}, got a list"},
		{"empty", "a.d", map[string]string{"a.d": ""}, "a.d:1:1: the file is empty; it needs users"},
		{"not YAML", "a.d", map[string]string{"a.d": "users: {a: pro\n"}, "a.d:1:12: not valid YAML: did not find expected ',' or '}'; is a comma or a closing bracket missing?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"limits.yaml": usersFromHead + "users_from: " + tt.from + "\n"}
			for name, content := range tt.files {
				files[name] = content
			}
			tree(t, files)
			_, err := Load("limits.yaml")
			var errs Errors
			if !errors.As(err, &errs) || err.Error() != tt.want {
				t.Errorf("Load = %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestUsersFromUnreadable(t *testing.T) {
	tree(t, map[string]string{"limits.yaml": usersFromHead + "users_from: '*.d'\n"})
	if err := os.Symlink("nowhere", "a.d"); err != nil {
		t.Fatal(err)
	}
	files, err := ReadFiles("limits.yaml")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "open a.d") {
		t.Errorf("ReadFiles = %v, want fs.ErrNotExist of a.d", err)
	}
	if got := strings.Join(files.Globs, " "); got != "*.d" {
		t.Errorf("Globs after an error = %q, want what is known", got)
	}
}

func TestUsersFromIsBounded(t *testing.T) {
	t.Run("size", func(t *testing.T) {
		tree(t, map[string]string{"limits.yaml": usersFromHead + "users_from: '*.d'\n", "a.d": "users: {}\n", "b.d": "users: {}\n"})
		if err := os.Truncate("b.d", MaxFileSize); err != nil {
			t.Fatal(err)
		}
		_, err := Load("limits.yaml")
		if want := "limits.yaml:1:1: the file and those of its users_from are larger than 64 MiB"; err == nil || err.Error() != want {
			t.Errorf("Load = %v, want %s", err, want)
		}
	})
	t.Run("files", func(t *testing.T) {
		tree(t, map[string]string{"limits.yaml": usersFromHead + "users_from: users.d/*\n"})
		if err := os.Mkdir("users.d", 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range maxUserFiles + 1 {
			if err := os.WriteFile(filepath.Join("users.d", string(rune('a'+i%26))+strings.Repeat("x", i/26)), []byte("users: {}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Load("limits.yaml")
		if want := "limits.yaml:4:13: users_from names more than 1000 files"; err == nil || err.Error() != want {
			t.Errorf("Load = %v, want %s", err, want)
		}
	})
}

func TestBundle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := []source{{"f", []byte(rapid.String().Draw(t, "main"))}}
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zé"][^/]{0,9}`), 0, 5, rapid.ID[string]).Draw(t, "names") {
			sources = append(sources, source{name, []byte(rapid.String().Draw(t, "data"))})
		}
		data := bundle(sources)
		got, err := unbundle("f", data)
		if err != nil {
			t.Fatalf("unbundle(bundle(%q)) = %v", sources, err)
		}
		if diff := cmp.Diff(sources, got, cmp.AllowUnexported(source{}), cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) })); diff != "" {
			t.Fatalf("unbundle(bundle(…)) (-want +got):\n%s", diff)
		}
		cut := rapid.IntRange(len(bundleMark), len(data)-1).Draw(t, "cut")
		if got, err := unbundle("f", data[:cut]); err == nil && len(bundle(got)) != cut {
			t.Fatalf("unbundle(%q) = %v, want an error, or the first files", data[:cut], got)
		}
	})
}

func TestBadBundles(t *testing.T) {
	for _, tt := range []struct{ name, data, want string }{
		{"no files", "", `""`},
		{"length", "-1 \"\"\n\n", `"-1 \"\""`},
		{"huge length", "9223372036854775807 \"\"\n\n", `"9223372036854775807 \"\""`},
		{"name", "0 a\n\n", `"0 a"`},
		{"a byte less", "2 \"\"\na\n", `"2 \"\""`},
		{"a byte more", "0 \"\"\n\nx", `"x"`},
	} {
		_, err := Parse("f", []byte(bundleMark+tt.data))
		if want := "f:1:1: the bundle of limit files is damaged: " + tt.want + " is no length and name of a file"; err == nil || err.Error() != want {
			t.Errorf("%s: Parse = %v, want %s", tt.name, err, want)
		}
	}
}

func FuzzUnbundle(f *testing.F) {
	f.Add(bundle([]source{{"", []byte("version: 1\n")}, {"users.d/a.yaml", []byte("users: {}")}}))
	f.Add([]byte(bundleMark + "0 \"\"\n\n"))
	f.Add([]byte(bundleMark + "3 \"\"\na\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := Parse("f", data); err != nil && !errors.As(err, new(Errors)) {
			t.Fatalf("Parse(%q) = %v, want Errors", data, err)
		}
	})
}
