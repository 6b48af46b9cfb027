package weir

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// writer writes a limit file of Sluice.
type writer struct {
	bytes.Buffer
	*file
	fallback string // the default tier's name
}

func (w *writer) writeFile(name string) {
	fmt.Fprintf(w, "# Converted from %s, a limit file of Weir, by sluice import weir.\n", comment(name))
	w.writeHeader()
	fmt.Fprintf(w, "\nversion: 1\ndefault_tier: %s\n", quoteYAML(w.fallback))
	w.writeClasses()
	fmt.Fprint(w, "\ntiers:\n")
	// Sorted, as all that comes from a map: the same file is converted into the same text.
	for _, policy := range slices.Sorted(maps.Keys(w.Policies)) {
		w.writeTier(policy)
	}
	w.writeUsers()
}

// writeHeader says what is different for all users.
func (w *writer) writeHeader() {
	var missing []string
	for _, f := range fields {
		if _, ok := w.limitOf(w.fallback, f.weir); !ok {
			missing = append(missing, f.weir)
		}
	}
	// A file that says nothing of a limit means one in Weir and none here. Nobody would notice that before it
	// is too late.
	if len(missing) > 0 {
		fmt.Fprintf(w, "#\n# %s does not name these limits:\n#   %s\n"+
			"# What nobody names Weir limits by itself: to 1000 requests per second of a verb,\n"+
			"# 250 MB per second, 5000 requests in progress. Sluice does not limit it; write\n"+
			"# such limits where you want them.\n",
			comment(w.fallback), strings.Join(missing, ", "))
	}
}

// writeClasses says that there are the operation classes of S3, if a policy limits one.
func (w *writer) writeClasses() {
	// Said once, if any policy has one: it costs HAProxy a little with every request.
	for _, limits := range w.Policies {
		for name := range limits {
			if isOperation(name) {
				fmt.Fprint(w, `
# A request counts against its class and its verb: a LISTOBJECTS is a GET, too.
# The paths must begin with the bucket (path-style), and HAProxy must know the
# classes: write its configuration with sluice haproxy --limits FILE --out DIR.
classes: s3
`)
				return
			}
		}
	}
}

// prefix is what the names of limits begin with.
const prefix = "user_"

// operations are the classes of S3 requests that Sluice knows.
var operations = func() []string {
	var names []string
	for _, c := range limits.S3Classes() {
		names = append(names, c.Name)
	}
	return names
}()

func isOperation(name string) bool {
	class, ok := strings.CutPrefix(name, prefix)
	return ok && slices.Contains(operations, class)
}

// fields are the limits that have a counterpart in every file, in the order of the
// output, where operations follow the requests.
var fields = []struct {
	weir  string
	class string // of a request rate
}{
	{"user_GET", "GET"}, {"user_HEAD", "HEAD"}, {"user_PUT", "PUT"}, {"user_POST", "POST"}, {"user_DELETE", "DELETE"},
	{"user_conns", ""}, {"user_bnd_dwn", ""}, {"user_bnd_up", ""},
}

// limitOf is what Weir enforces for a policy: its own, or that of the default
// policy. It is false when neither names it.
func (w *writer) limitOf(policy, field string) (float64, bool) {
	// -1 says "as in DEFAULT", and in DEFAULT itself nothing.
	for _, name := range []string{policy, w.fallback} {
		if v, ok := w.Policies[name][field]; ok && v != -1 {
			return v, true
		}
	}
	return 0, false
}

// tier is what a policy says in the words of the limit file: empty where it says nothing.
type tier struct {
	rates, bandwidth, notes []string
	concurrent              string
}

func (w *writer) tierOf(policy string) (t tier) {
	for _, f := range fields {
		v, ok := w.limitOf(policy, f.weir)
		if !ok {
			continue
		}
		switch f.weir {
		case "user_conns":
			n, note := fitRange(f.weir, math.Floor(v), v, limits.MaxConcurrent)
			t.concurrent, t.notes = strconv.FormatInt(n, 10), append(t.notes, note...)
		case "user_bnd_dwn":
			bytes, note := formatSize(f.weir, v)
			t.bandwidth, t.notes = append(t.bandwidth, "down: "+bytes), append(t.notes, note...)
		case "user_bnd_up":
			bytes, note := formatSize(f.weir, v)
			t.bandwidth, t.notes = append(t.bandwidth, "up: "+bytes), append(t.notes, note...)
		default:
			t.addRate(f.class, f.weir, v)
		}
	}
	// In the order of Sluice's classes, so that the same file always comes out the same.
	for _, class := range operations {
		if v, ok := w.limitOf(policy, prefix+class); ok {
			t.addRate(class, prefix+class, v)
		}
	}
	// Of the policy's own alone: those of DEFAULT stand at its tier.
	for _, name := range slices.Sorted(maps.Keys(w.Policies[policy])) {
		// Nothing is left out silently.
		if !isKnownField(name) {
			t.notes = append(t.notes, foreign(name, formatNumber(w.Policies[policy][name])))
		}
	}
	return t
}

func (t *tier) addRate(class, field string, v float64) {
	// Weir refuses once the count has reached the limit: 2.5 lets 3 through.
	n, note := fitRange(field, math.Ceil(v), v, limits.MaxPerSecond)
	t.rates, t.notes = append(t.rates, fmt.Sprintf("%s: %d", class, n)), append(t.notes, note...)
}

func (w *writer) writeTier(policy string) {
	t := w.tierOf(policy)
	fmt.Fprintf(w, "  %s:", quoteYAML(policy))
	// YAML takes a key with nothing but comments behind it for null.
	if len(t.rates)+len(t.bandwidth) == 0 && t.concurrent == "" {
		fmt.Fprint(w, " {}")
	}
	fmt.Fprintln(w)
	for _, note := range t.notes {
		fmt.Fprintf(w, "    # %s\n", note)
	}
	// In the order of the limit file's documentation.
	if len(t.rates) > 0 {
		fmt.Fprintf(w, "    requests: {%s}\n", strings.Join(t.rates, ", "))
	}
	if t.concurrent != "" {
		fmt.Fprintf(w, "    concurrent: %s\n", t.concurrent)
	}
	if len(t.bandwidth) > 0 {
		fmt.Fprintf(w, "    bandwidth: {%s}\n", strings.Join(t.bandwidth, ", "))
	}
}

func (w *writer) writeUsers() {
	fmt.Fprintln(w, "\nusers:")
	// Each on a line of its own, with what is said of it above: the file is for people from now on.
	for _, user := range slices.Sorted(maps.Keys(w.Users)) {
		policy := w.Users[user]
		_, known := w.Policies[policy]
		switch {
		case user == "":
			fmt.Fprintf(w, "  # A user without a name, with %s, has no counterpart.\n", comment(policy))
			continue
		case user == commonUser:
			fmt.Fprintf(w, "  # %s is Weir's name for requests of nobody, with %s. It has no counterpart:\n"+
				"  # who such requests count for is how users are identified, not this file.\n", commonUser, comment(policy))
			continue
		// Weir does not complain either. The user keeps the limits that they have there.
		case !known:
			fmt.Fprintf(w, "  # %s is no policy in qos; Weir uses %s.\n", comment(policy), comment(w.fallback))
			policy = w.fallback
		}
		fmt.Fprintf(w, "  %s: %s\n", quoteYAML(user), quoteYAML(policy))
	}
}

func isKnownField(field string) bool {
	for _, f := range fields {
		if f.weir == field {
			return true
		}
	}
	return isOperation(field)
}

// className is the form of the name of an operation class.
var className = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)

// foreign says of a limit without a counterpart what to do.
func foreign(name, value string) string {
	class, ok := strings.CutPrefix(name, prefix)
	switch {
	// Weir counts five verbs. To take over a name that it ignores would bring a limit that was never in force.
	case ok && slices.Contains(limits.BuiltinClasses(), class):
		return fmt.Sprintf("%s: %s is none of Weir's limits; if it shall be one, add %s: %s to requests", name, value, class, value)
	case ok && className.MatchString(class):
		return fmt.Sprintf("%s: %s has no counterpart; describe such requests as %s under classes, which is then a mapping, and add %s: %s to requests", name, value, class, class, value)
	}
	return fmt.Sprintf("%s: %s has no counterpart", comment(name), value)
}
