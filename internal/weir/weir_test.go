package weir

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

var update = flag.Bool("update", false, "write the golden files in testdata")

// TestConvert pins what each file becomes, byte for byte.
func TestConvert(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("Glob = %v, %v, want files", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Convert(filepath.Base(path), data)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".json") + ".yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("differs from %s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

// TestConvertMeaning holds what the limits are, however they are written.
func TestConvertMeaning(t *testing.T) {
	const source = `{
		"user_to_qos_id": {"own": "GOLD", "lost": "NONE", "true": "GOLD", "007": "GOLD", "a: b # c\n": "GOLD", "~x": "GOLD"},
		"qos": {"DEFAULT": {"user_GET": 10, "user_PUT": 20, "user_conns": 3, "user_bnd_up": 1},
			"GOLD": {"user_GET": 100, "user_PUT": -1, "user_bnd_dwn": 2.5}}}`
	converted, err := Convert("weir.json", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	set, err := limitfile.Parse("limits.yaml", converted)
	if err != nil {
		t.Fatal(err)
	}
	gold := meaning{"GOLD", 100, 20, 3, 5 << 19, 1 << 20}
	fallback := meaning{"DEFAULT", 10, 20, 3, 0, 1 << 20}
	for _, tt := range []struct {
		name, user string
		want       meaning
	}{
		{"a policy, and what it lacks from DEFAULT", "own", gold},
		{"a policy that is not there", "lost", fallback},
		{"a user without a policy", "nobody", fallback},
		{"a name that YAML reads as true", "true", gold},
		{"a name that YAML reads as a number", "007", gold},
		{"a name with everything that YAML has", "a: b # c\n", gold},
		{"a name that is not its own key", "~x", gold},
	} {
		l := set.User(limits.Key(tt.user))
		got := meaning{l.Tier, rate(l, "GET"), rate(l, "PUT"), l.Concurrent, l.Bandwidth.Down, l.Bandwidth.Up}
		if got != tt.want {
			t.Errorf("%s: User(%q) = %+v, want %+v", tt.name, tt.user, got, tt.want)
		}
	}
}

type meaning struct {
	tier                 string
	get, put, concurrent int
	down, up             int64
}

func rate(l *limits.Limits, class string) int {
	r, _ := l.Rate(class, limits.Second)
	return r.Max
}

// TestConvertOperations: limits on S3's operations become limits on its classes.
func TestConvertOperations(t *testing.T) {
	const source = `{"user_to_qos_id": {"own": "GOLD"},
		"qos": {"DEFAULT": {"user_LISTBUCKETS": 1, "user_PUTOBJECT": 2},
			"GOLD": {"user_LISTBUCKETS": 2.5, "user_LISTOBJECTSV2": 4, "user_CREATEBUCKET": -1, "user_DELETEOBJECTS": 0}}}`
	converted, err := Convert("weir.json", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	set, err := limitfile.Parse("limits.yaml", converted)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(set.Classes()), len(limits.S3Classes()); got != want {
		t.Errorf("%d classes, want %d", got, want)
	}
	own := set.User(limits.Key("own"))
	for _, tt := range []struct {
		name, class string
		want        int // 0: not limited
	}{
		{"its own", "LISTOBJECTSV2", 4},
		{"its own, rounded as Weir counts", "LISTBUCKETS", 3},
		{"that of DEFAULT", "PUTOBJECT", 2},
		{"none in either", "LISTOBJECTS", 0},
		{"-1, which says nothing", "CREATEBUCKET", 0},
		{"0, which becomes the least", "DELETEOBJECTS", 1},
	} {
		if got := rate(own, tt.class); got != tt.want {
			t.Errorf("%s: %s is limited to %d, want %d", tt.name, tt.class, got, tt.want)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, tt := range []struct{ name, source, want string }{
		{"nothing", "", "f: the file is empty; want a JSON object with user_to_qos_id and qos"},
		{"no JSON", "version: 1", "f: 1:1: not valid JSON: invalid character 'v' looking for beginning of value"},
		{"a comma too many", "{\n  \"qos\": {\"DEFAULT\": {},}\n}", "f: 2:25: not valid JSON: invalid character '}' looking for beginning of object key string"},
		{"cut off", `{"qos": {`, "f: 1:10: not valid JSON: the file ends too early"},
		{"two objects", `{"qos": {"DEFAULT": {}}} {}`, "f: there is more after the JSON object; keep one object"},
		{"a list", `[]`, "f: 1:1: want an object with user_to_qos_id and qos, got a JSON array"},
		{"another field", `{"limits": {}}`, `f: unknown field "limits"; a limit file of Weir has user_to_qos_id and qos only`},
		{"no policies", `{"user_to_qos_id": {"a": "DEFAULT"}}`, "f: qos is missing or empty; a limit file of Weir has user_to_qos_id and qos"},
		{"a limit that is text", `{"qos": {"DEFAULT": {"user_GET": "10"}}}`, "f: 1:37: want a number in qos, got a JSON string"},
		{"no default policy", `{"qos": {"GOLD": {}}, "user_to_qos_id": {"common": "SILVER"}}`,
			"f: there is no default policy; add DEFAULT to qos, with the limits of users without a policy"},
		{"a policy's name that no tier can have", `{"qos": {"DEFAULT": {}, "~a": {}}}`,
			"f: cannot be expressed as a limit file of Sluice: the converted file:14:3: the tier name \"~a\" is not usable; write 1 to 100 bytes without control characters, and no ~ or @ in front"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Convert("f", []byte(tt.source))
			if err == nil || err.Error() != tt.want {
				t.Errorf("Convert = %q, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// FuzzConvert: no input makes it panic, and what it writes is a limit file that
// knows each user.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(`{"user_to_qos_id": {"a": "DEFAULT", "common": "DEFAULT"}, "qos": {"DEFAULT": {"user_GET": 2, "user_bnd_up": 1.5, "user_conns": 0}}}`))
	f.Add([]byte(`{"user_to_qos_id": {"\u007f\u2028": "x"}, "qos": {"x": {"user_LISTBUCKETS\n": 1e300}, "DEFAULT": {"user_PUT": -5}}}`))
	f.Add([]byte(`{"qos": {"null": {}, "DEFAULT": null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		converted, err := Convert("f\n", data)
		if err != nil {
			return
		}
		set, err := limitfile.Parse("f", converted)
		if err != nil {
			t.Fatalf("%v in\n%s", err, converted)
		}
		weir, err := parseFile(data)
		if err != nil {
			t.Fatal(err)
		}
		for user, policy := range weir.Users {
			if _, ok := weir.Policies[policy]; !ok || user == "" || user == commonUser {
				continue
			}
			if got := set.User(limits.Key(user)).Tier; got != policy {
				t.Errorf("User(%q) has the tier %q, want %q in\n%s", user, got, policy, converted)
			}
		}
	})
}
