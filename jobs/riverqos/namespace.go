package riverqos

import (
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// namespace tells the jobs of one database from those of others that share the Slots:
// River counts jobs from 1 in each. See Config.Namespace.
type namespace string

// slotsJob is the job of the Slots that stands for one of River's.
func (n namespace) slotsJob(user string, id int64, service string) jobs.Job {
	name := strconv.FormatInt(id, 10)
	if n != "" {
		name = string(n) + "." + name
	}
	return jobs.Job{User: user, ID: name, Queue: service}
}

// riverID is the id in River of a job of the Slots. It is not ok for a job of another namespace.
func (n namespace) riverID(job jobs.Job) (int64, bool) {
	name := job.ID
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
