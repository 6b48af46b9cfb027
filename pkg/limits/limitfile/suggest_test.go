package limitfile

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	tiers := []string{"enterprise", "free", "pro"}
	for _, tt := range []struct{ name, in, want string }{
		{"case aside", "FREE", "free"},
		{"one letter left out", "fre", "free"},
		{"one letter more", "freee", "free"},
		{"one letter for another", "prp", "pro"},
		{"two letters swapped", "por", "pro"},
		{"three changes in a long name", "entrpirze", "enterprise"},
		{"two changes in a short name", "fxxe", ""},
		{"nothing alike", "gold", ""},
		{"empty", "", ""},
		{"very long", strings.Repeat("free", 100), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := nearest(tt.in, tiers); got != tt.want {
				t.Errorf("nearest(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestListAndQuoteAreBounded(t *testing.T) {
	if got, want := joinChoices(strings.Fields("a b c d e f g h i j k l m n")), "a, b, c, d, e, f, g, h, i, j, k, l, m, and 1 more"; got != want {
		t.Errorf("list(a … n) = %s, want %s", got, want)
	}
	if got, want := quote(strings.Repeat("é", 61)), `"`+strings.Repeat("é", 60)+`"…`; got != want {
		t.Errorf("quote(61 é) = %s, want %s", got, want)
	}
	if got, want := quote("a\n\x00"), `"a\n\x00"`; got != want {
		t.Errorf("quote = %s, want %s", got, want)
	}
}
