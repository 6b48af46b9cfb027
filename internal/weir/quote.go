package weir

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// safe is text that YAML reads as text, or as a number, which the limit file
// takes for text.
var safe = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@/+-]*$`)

// quoteYAML writes text that YAML reads as it was, in quotes where it must: those of JSON, which is YAML.
func quoteYAML(s string) string {
	// Words that YAML reads as something else than text, in one version or the other.
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "y", "n", "null":
	default:
		if safe.MatchString(s) {
			return s
		}
	}
	quoted, _ := json.Marshal(s) // fails for no text
	return string(quoted)
}

// comment writes text that ends no comment.
func comment(s string) string {
	if safe.MatchString(s) {
		return s
	}
	return strconv.QuoteToASCII(s)
}
