package daemon

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const (
	annsToken = "annsannsannsanns0123"
	bobsToken = "bobsbobsbobsbobs0123"
)

func TestParseTokens(t *testing.T) {
	const form = "a token has a-z, A-Z, 0-9, . _ ~ + / and -, and = at its end"
	const name = "a name has 1 to 32 of a-z, A-Z, 0-9, . _ @ and -, and is not anonymous"
	for _, tt := range []struct {
		name, file string
		want       []Token
		err        string
	}{
		{"a token", annsToken, []Token{{"token", annsToken}}, ""},
		{"names, comments and blanks", "# who\n\n  ann\t" + annsToken + " \r\nbob " + bobsToken + "\n", []Token{{"ann", annsToken}, {"bob", bobsToken}}, ""},
		{"two tokens of one name", "ann " + annsToken + "\nann " + bobsToken, []Token{{"ann", annsToken}, {"ann", bobsToken}}, ""},
		{"of 16 characters", "0123456789abc/==", []Token{{"token", "0123456789abc/=="}}, ""},
		{"of 15", "# short\n0123456789abcde", nil, "line 2: a token of 15 characters: want 16 to 1024, such as from: openssl rand -hex 32"},
		{"too long", strings.Repeat("x", 1025), nil, "line 1: a token of 1025 characters: want 16 to 1024, such as from: openssl rand -hex 32"},
		{"a letter that no header has", "0123456789abcdef\x00", nil, "line 1: " + form},
		{"= within", "01234567=9abcdefg", nil, "line 1: " + form},
		{"three words", "ann " + annsToken + " # ann's", nil, "line 1: want NAME TOKEN, or TOKEN"},
		{"the token first", strings.Repeat("0", 33) + " " + annsToken, nil, "line 1: " + name},
		{"a name that means nobody", "anonymous " + annsToken, nil, "line 1: " + name},
		{"the same twice", "ann " + annsToken + "\n\nbob " + annsToken, nil, "line 3: the token of line 1 again"},
		{"none", "", nil, "it holds no token"},
		{"comments alone", "#" + annsToken, nil, "it holds no token"},
		{"too many", manyTokens(101), nil, "line 101: more than 100 tokens"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseTokens([]byte(tt.file))
			if !reflect.DeepEqual(got, tt.want) || err == nil != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("ParseTokens(%.60q) = %v, %v, want %v, %s", tt.file, got, err, tt.want, tt.err)
			}
		})
	}
}

func manyTokens(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%016d\n", i)
	}
	return b.String()
}
