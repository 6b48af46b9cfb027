package limitfile

import (
	"encoding/binary"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// origins are the lines of a file, from which OriginOf tells where limits come from. They are noted while
// the file is read. Of a user they take no memory but for the line in limits.Named: how an entry is
// written is noted once for all entries that are written alike, in lines from that of the name.
type origins struct {
	files     []fileOrigin // in the order in which they are read
	mode      int          // the line of the mode of the whole file
	tiers     map[string]tierOrigin
	exempt    map[string]int      // lines by name or pattern
	entries   []*written          // by the index in limits.Content.Entries
	overrides map[string]*written // by user
}

// fileOrigin is a file, and how many lines those before it have: limits.Named numbers the lines of
// all files together.
type fileOrigin struct {
	name   string
	before int
}

type tierOrigin struct {
	line int
	*written
}

// written is how a tier, an entry or an override is written.
type written struct {
	marks   []mark
	tier    bool   // it names a tier
	then    string // the tier that it names to follow
	comment string
}

// mark is a field that is set.
type mark struct {
	path string // as errors have it, such as requests.GET.minute
	line int    // from that of the entry's name, or dropped
}

// dropped, in place of a line, is what is said of a field and of those below it in
// the layers before: none of it counts any more.
const dropped = -1

// recorder notes where a file says what it says, while it is read.
type recorder struct {
	origins *origins
	written written // of the entry that is read
	name    int     // the line of its name
	key     []byte  // of shared, written over again and again
	shared  map[string]*written
	records map[recorded]uint32 // indexes in limits.Content.Entries
	scalars map[string]uint32   // those of entries that are the name of a tier and nothing else
}

// recorded is what is said of a user, and how it is written.
type recorded struct {
	entry *limits.Entry
	*written
}

func newRecorder() recorder {
	return recorder{
		origins: &origins{tiers: map[string]tierOrigin{}, exempt: map[string]int{}, overrides: map[string]*written{}},
		shared:  map[string]*written{}, records: map[recorded]uint32{}, scalars: map[string]uint32{},
	}
}

func (r *recorder) beginFile(name string, linesBefore int) {
	r.origins.files = append(r.origins.files, fileOrigin{name, linesBefore})
}

// beginEntry begins with what has this name.
func (r *recorder) beginEntry(name *yaml.Node) {
	// The marks are written over again and again: most entries are written like another one.
	r.written = written{marks: r.written.marks[:0]}
	r.name = name.Line
}

// takeWritten returns how the entry is written, which is kept.
func (r *recorder) takeWritten() *written {
	// Cloned, because the next entry is noted in the same marks.
	w := r.written
	w.marks = slices.Clone(w.marks)
	return &w
}

// mark notes that a field is set.
func (f *file) mark(at place, n *yaml.Node) { f.addMark(at, n.Line-f.name) }

// drop notes that all that is said of a field before counts no more.
func (f *file) drop(at place) { f.addMark(at, dropped) }

func (f *file) replace(at place, n *yaml.Node) {
	f.drop(at)
	f.mark(at, n)
}

func (f *file) addMark(at place, line int) {
	f.written.marks = append(f.written.marks, mark{at.field, line})
}

// record returns the index of an entry that is written as the one that was read last: the same
// for all that say the same in the same way.
func (f *file) record(e limits.Entry) uint32 {
	// By address: entries and ways to write them are shared already, so that equal ones are one.
	r := recorded{f.sharedEntry(e), f.sharedWritten()}
	i, ok := f.records[r]
	if !ok {
		i = f.addRecord(r.entry, r.written)
		f.records[r] = i
	}
	return i
}

// sharedWritten returns how the entry is written that was read last, as one that is shared by all
// that are written so.
func (r *recorder) sharedWritten() *written {
	// Into the same bytes again: a file may have an entry for each of many users.
	key := strconv.AppendBool(r.key[:0], r.written.tier)
	key = append(append(key, r.written.then...), 0)
	// Quoted, because a comment may have any bytes in it, those between the other parts included.
	key = strconv.AppendQuote(key, r.written.comment)
	for _, m := range r.written.marks {
		key = append(append(key, m.path...), 0)
		key = binary.AppendVarint(key, int64(m.line))
	}
	r.key = key
	shared := r.shared[string(key)]
	if shared == nil {
		shared = r.takeWritten()
		r.shared[string(key)] = shared
	}
	return shared
}

func (f *file) addRecord(e *limits.Entry, w *written) uint32 {
	f.content.Entries = append(f.content.Entries, e)
	f.origins.entries = append(f.origins.entries, w)
	return uint32(len(f.content.Entries) - 1)
}

// recordTier notes the entry of all users of whom a file says the name of a tier alone.
func (f *file) recordTier(name string) {
	// One for all of them, so that nothing is noted of each.
	f.scalars[name] = f.addRecord(f.content.Tiers[name], &written{tier: true})
}
