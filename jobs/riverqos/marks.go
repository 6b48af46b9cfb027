package riverqos

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Marks are what Sluice notes in the metadata of River's jobs. They are names of the
// first level because River merges metadata at that level.
const (
	markUser   = "sluice:user"   // the limit file's key of the user
	markWait   = "sluice:wait"   // parked or gated; null or none is neither
	markSince  = "sluice:since"  // from when on it could have run, in seconds since 1970
	markPassed = "sluice:passed" // the attempted_at of an attempt that has ended; see gate.go

	parked = "parked" // refused a slot
	gated  = "gated"  // held back by the gate
)

// mark adds marks to metadata, and takes out those that are nil. It is not ok if that is not a JSON object.
func mark(metadata []byte, marks map[string]any) (_ []byte, ok bool) {
	var object map[string]json.RawMessage
	if len(metadata) > 0 && json.Unmarshal(metadata, &object) != nil {
		return nil, false
	}
	if object == nil {
		object = map[string]json.RawMessage{}
	}
	for name, value := range marks {
		if value == nil {
			delete(object, name)
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, false
		}
		object[name] = text
	}
	marked, err := json.Marshal(object)
	return marked, err == nil
}

// notes are the marks of a job.
type notes struct {
	User  string  `json:"sluice:user"`
	Wait  string  `json:"sluice:wait"`
	Since float64 `json:"sluice:since"`
}

// read leaves out what cannot be read: metadata is anybody's.
func read(metadata []byte) (n notes) {
	_ = json.Unmarshal(metadata, &n)
	return n
}

func (n notes) since(otherwise time.Time) time.Time {
	if n.Since <= 0 {
		return otherwise
	}
	return time.UnixMilli(int64(n.Since * 1000))
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// job is the job of the Slots that stands for one of River's.
func (f *Fairness) job(user string, id int64, service string) jobs.Job {
	name := strconv.FormatInt(id, 10)
	if f.cfg.Namespace != "" {
		name = f.cfg.Namespace + "." + name
	}
	return jobs.Job{User: user, ID: name, Queue: service}
}

// id is the id in River of a job of the Slots. It is not ok for a job of another namespace.
func (f *Fairness) id(j jobs.Job) (int64, bool) {
	name := j.ID
	if f.cfg.Namespace != "" {
		rest, ok := strings.CutPrefix(name, f.cfg.Namespace+".")
		if !ok {
			return 0, false
		}
		name = rest
	}
	id, err := strconv.ParseInt(name, 10, 64)
	return id, err == nil && id > 0
}
