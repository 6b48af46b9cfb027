package haproxy

import "testing"

// How expressions are written. What they mean is tested in HAProxy.
func TestPCRE(t *testing.T) {
	for expr, want := range map[string]string{
		``:                    `(?:)`,
		`^/[^/]+/?$`:          `\A/[^/]+/?\z`,
		`a.c`:                 `a[^\x0a]c`,
		`(?s)a.c`:             `a[\x00-\xff]c`,
		`(?m)^a$`:             `(?m:^)a(?m:$)`,
		`\Aa\z\b\B`:           `\Aa\z\b\B`,
		`(ab|cd)*`:            `(?:(?:ab|cd))*`,
		`(?:ab){2,3}?x{2,}`:   `(?:ab){2,3}x{2,}`,
		`(?i)k-`:              `[Kk]\x2d`,
		`[0-9a-f]`:            `[0-9a-f]`,
		`[^é]`:                `[\x00-\xff]`,
		`é`:                   `(?!)`,
		`[é!]`:                `\x21`,
		`[\x{80}-\x{10ffff}]`: `[^\x00-\x7f]`,
		`\Q'"} $\E`:           `\x27\x22\x7d\x20\x24`,
		"\n":                  `\x0a`,
	} {
		if got, err := pcre(expr); got != want || err != nil {
			t.Errorf("pcre(%q) = %q, %v, want %q", expr, got, err, want)
		}
	}
}
