package riverqos

import (
	"encoding/json"
	"time"
)

// Marks are what Sluice notes in the metadata of River's jobs. They are names of the
// first level because River merges metadata at that level.
const (
	markUser    = "sluice:user"    // the limit file's key of the user
	markWait    = "sluice:wait"    // parked or gated; null or none is neither
	markSince   = "sluice:since"   // from when on it could have run, in seconds since 1970
	markDelayed = "sluice:delayed" // true: the job had to wait for a slot, and was counted
	markGate    = "sluice:gate"    // asks the trigger: how many jobs may wait, and until when this one is held back otherwise

	parked = "parked" // refused a slot
	gated  = "gated"  // held back by the gate
)

// addMarks adds marks to metadata, and takes out those that are nil. It is not ok if the
// metadata is not a JSON object.
func addMarks(metadata []byte, marks map[string]any) (_ []byte, ok bool) {
	var object map[string]json.RawMessage
	if len(metadata) > 0 && json.Unmarshal(metadata, &object) != nil {
		return nil, false
	}
	if object == nil {
		object = map[string]json.RawMessage{}
	}
	for name, value := range marks {
		// Taken out and not set to null: it may have been copied from another job.
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

type jobMarks struct {
	User    string  `json:"sluice:user"`
	Wait    string  `json:"sluice:wait"`
	Since   float64 `json:"sluice:since"`
	Delayed bool    `json:"sluice:delayed"`
}

// readMarks leaves out what cannot be read: any program may write metadata.
func readMarks(metadata []byte) (marks jobMarks) {
	_ = json.Unmarshal(metadata, &marks)
	return marks
}

// runnableSince is from when on the job could have run; without a mark, it is scheduledAt.
func (m jobMarks) runnableSince(scheduledAt time.Time) time.Time {
	if m.Since <= 0 {
		return scheduledAt
	}
	return time.UnixMilli(int64(m.Since * 1000))
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
