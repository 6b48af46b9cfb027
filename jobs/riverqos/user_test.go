package riverqos_test

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/jobs/riverqos"
)

func TestUserFuncs(t *testing.T) {
	path := riverqos.FromArgs("owner.id")
	meta := riverqos.FromMetadata("tenant")
	for _, c := range []struct {
		name           string
		f              riverqos.UserFunc
		args, metadata string
		user           string
		ok             bool
	}{
		{"a string at the path", path, `{"owner": {"id": "ann"}}`, `{}`, "ann", true},
		{"a number as it is written", path, `{"owner": {"id": 12345678901234567890}}`, `{}`, "12345678901234567890", true},
		{"a number of more digits than a name", path, `{"owner": {"id": ` + strings.Repeat("1", 101) + `}}`, `{}`, "", false},
		{"a number that would fill the memory", path, `{"owner": {"id": 1e999999999}}`, `{}`, "", false},
		{"the empty string is nobody", path, `{"owner": {"id": ""}}`, `{}`, "", false},
		{"null is nobody", path, `{"owner": {"id": null}}`, `{}`, "", false},
		{"an object is nobody", path, `{"owner": {"id": {"x": 1}}}`, `{}`, "", false},
		{"true is nobody", path, `{"owner": {"id": true}}`, `{}`, "", false},
		{"the path leads nowhere", path, `{"owner": "ann"}`, `{}`, "", false},
		{"the path is not there", path, `{}`, `{}`, "", false},
		{"an array has no names", riverqos.FromArgs("0"), `["ann"]`, `{}`, "", false},
		{"the last of two, as jsonb has it", path, `{"owner": {"id": "bob"}, "owner": {"id": "eve", "id": "ann"}}`, `{}`, "ann", true},
		{"no JSON at all", path, `owner`, `{}`, "", false},
		{"nothing", path, ``, ``, "", false},
		{"one name is enough", riverqos.FromArgs("user"), `{"user": "ann"}`, `{}`, "ann", true},
		{"a key of the metadata", meta, `{"tenant": "no"}`, `{"tenant": "bob"}`, "bob", true},
		{"not in the metadata", meta, `{"tenant": "no"}`, `{}`, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if user, ok := c.f("kind", []byte(c.args), []byte(c.metadata)); user != c.user || ok != c.ok {
				t.Errorf("F(%s, %s) = %q, %v, want %q, %v", c.args, c.metadata, user, ok, c.user, c.ok)
			}
		})
	}
}

// A job's arguments are read before they are inserted, and then as the database gives
// them back.
func TestUserIsTheSameInTheDatabase(t *testing.T) {
	pool, _ := fresh(t)
	rapid.Check(t, func(t *rapid.T) {
		var numbers []string
		for range 50 {
			numbers = append(numbers, rapid.StringMatching(`-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,8})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number"))
		}
		args := `{"id": [` + strings.Join(numbers, ", ") + `]}`
		rows, err := pool.Query(context.Background(), `SELECT value::text FROM jsonb_array_elements($1::jsonb -> 'id') WITH ORDINALITY ORDER BY ordinality`, args)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		from := riverqos.FromArgs("id")
		for i, number := range numbers {
			before, ok := from("kind", []byte(`{"id": `+number+`}`), nil)
			after, okAfter := from("kind", []byte(`{"id": `+stored[i]+`}`), nil)
			if want := len(stored[i]) <= 100; before != after || ok != want || okAfter != want || ok && before != stored[i] {
				t.Errorf("FromArgs: %s is the user %q, %v before the insert and %q, %v after, want %s, %v", number, before, ok, after, okAfter, stored[i], want)
			}
		}
	})
}

func FuzzFromArgs(f *testing.F) {
	for _, args := range []string{`{"owner": {"id": "ann"}}`, `{"owner": {"id": 1e9}}`, `{"owner": []}`, `{"owner": {"id": "\ud800"}}`, "", "null", `{"owner`} {
		f.Add([]byte(args), "owner.id")
	}
	f.Fuzz(func(t *testing.T, args []byte, path string) {
		user, ok := riverqos.FromArgs(path)("kind", args, nil)
		if ok != (user != "") {
			t.Errorf("FromArgs(%q)(%q) = %q, %v", path, args, user, ok)
		}
		if !utf8.ValidString(user) {
			t.Errorf("FromArgs(%q)(%q) = %q, which is not UTF-8", path, args, user)
		}
		if again, _ := riverqos.FromArgs(path)("kind", args, nil); again != user {
			t.Errorf("FromArgs(%q)(%q) = %q, and then %q", path, args, user, again)
		}
		if strings.Contains(path, ".") == false && ok && !strings.Contains(string(args), "{") {
			t.Errorf("FromArgs(%q)(%q) = %q, though it is no object", path, args, user)
		}
	})
}
