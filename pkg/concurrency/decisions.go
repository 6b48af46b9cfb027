package concurrency

import (
	"cmp"
	"slices"
)

// Decisions are what a Watch has decided, each sorted by user.
type Decisions struct {
	Blocks   []Block
	Unblocks []string
	Sharings []Sharing
}

// IsEmpty reports whether there is nothing in it.
func (d Decisions) IsEmpty() bool { return len(d.Blocks)+len(d.Unblocks)+len(d.Sharings) == 0 }

// Decisions returns what has been decided since the last call, and forgets it. Who was
// let in by hand may be among both Unblocks and Blocks: then the block is the later one.
func (w *Watch) Decisions() Decisions {
	d := Decisions{Sharings: w.sharings}
	for name, limit := range w.blocks {
		d.Blocks = append(d.Blocks, Block{User: name, Limit: limit})
	}
	for name := range w.unblocks {
		d.Unblocks = append(d.Unblocks, name)
	}
	clear(w.blocks)
	clear(w.unblocks)
	clear(w.byHand)
	w.sharings = nil
	slices.SortFunc(d.Blocks, func(a, b Block) int { return cmp.Compare(a.User, b.User) })
	slices.Sort(d.Unblocks)
	slices.SortStableFunc(d.Sharings, func(a, b Sharing) int { return cmp.Compare(a.User, b.User) })
	return d
}
