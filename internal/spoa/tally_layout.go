package spoa

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tallyKind is a kind of requests that HAProxy counts apart.
type tallyKind struct {
	verb      string // "": not known
	operation string // "": none
}

// tallyLayout says what the counters (gpc) of an entry count, from number first on: each
// request that was admitted by credit is in one of them.
type tallyLayout struct {
	first int
	kinds []tallyKind
}

// parseTallyLayout reads what haproxy.cfg says of its counters, such as "4 GET PUT
// GET/LIST /BULK": counter 4 is of GETs without operation class, counter 5 of PUTs without
// one, counter 6 of the class LIST, which all are GETs, and counter 7 of the class BULK
// with any verb.
func parseTallyLayout(text string) (tallyLayout, error) {
	const counters = 100 // that an entry can have
	words := strings.Fields(text)
	if len(words) == 0 {
		return tallyLayout{}, fmt.Errorf("HAProxy does not tell what it counts (%s): it needs the haproxy.cfg of this version, and a reload", tallyVariable)
	}
	first, err := strconv.Atoi(words[0])
	// What comes from HAProxy bounds memory here: each kind costs a counter of each user.
	if err != nil || first < 0 || len(words) == 1 || first+len(words)-1 > counters {
		return tallyLayout{}, fmt.Errorf("%s is %.100q: want the number of a counter, and what it and each one behind it counts, up to number %d", tallyVariable, text, counters-1)
	}
	layout := tallyLayout{first: first}
	for _, word := range words[1:] {
		verb, operation, _ := strings.Cut(word, "/")
		kind := tallyKind{verb, operation}
		if len(word) > 100 || kind == (tallyKind{}) || slices.Contains(layout.kinds, kind) {
			return tallyLayout{}, fmt.Errorf("%s is %.100q: %.100q is not a verb or VERB/OPERATION that is there once", tallyVariable, text, word)
		}
		layout.kinds = append(layout.kinds, kind)
	}
	return layout, nil
}
