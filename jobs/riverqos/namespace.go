package riverqos

import (
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// namespace tells the jobs of one database from those of others that share the Slots:
// River counts jobs from 1 in each. See Config.Namespace.
type namespace string

func (n namespace) slotsID(id int64) string {
	name := strconv.FormatInt(id, 10)
	if n != "" {
		name = string(n) + "." + name
	}
	return name
}

func (n namespace) slotsJobs(rows []userJob) []jobs.Job {
	all := make([]jobs.Job, len(rows))
	for i, row := range rows {
		all[i] = jobs.Job{User: row.User, ID: n.slotsID(row.ID)}
	}
	return all
}

// riverID is the id in River of a job of the Slots. It is not ok for a job of another namespace.
func (n namespace) riverID(name string) (int64, bool) {
	if n != "" {
		rest, ok := strings.CutPrefix(name, string(n)+".")
		if !ok {
			return 0, false
		}
		name = rest
	}
	// What another program keeps in the same Slots need not be a number.
	id, err := strconv.ParseInt(name, 10, 64)
	return id, err == nil && id > 0
}
