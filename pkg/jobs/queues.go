package jobs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Class is one of the queues of a service. Workers of one class leave those of the
// others alone. Where a limit file dedicates workers to a tier or a user, these have classes of
// their own, such as priority-enterprise and default-user-alice.
type Class string

// The classes of all users, as they end the names of queues.
const (
	Priority  Class = "priority"  // of tiers that pay
	Default   Class = "default"   // of the others, and of unknown users
	Scheduled Class = "scheduled" // of jobs that a scheduler starts, of any user
)

// Classes lists the classes of all users, in the order of the limit file.
var Classes = [...]Class{Priority, Default, Scheduled}

// Workers are how many jobs of each of a service's queues one process works at a time.
// Zero means that it leaves the queue to others.
type Workers struct {
	Priority, Default, Scheduled int

	// Dedicated are those of classes for one tier or one user.
	Dedicated map[Class]int
}

// Of is the number of a class, 0 for one that does not exist.
func (w Workers) Of(c Class) int {
	if to := w.workersOf(c); to != nil {
		return *to
	}
	return w.Dedicated[c]
}

func (w *Workers) workersOf(c Class) *int {
	switch c {
	case Priority:
		return &w.Priority
	case Default:
		return &w.Default
	case Scheduled:
		return &w.Scheduled
	}
	return nil
}

// Queues are the workers of services, by their names.
type Queues map[string]Workers

// Workers returns the workers of each queue, by its name. Queues without workers here are
// left out, because River refuses them.
func (q Queues) Workers() map[string]int {
	all := map[string]int{}
	for service, w := range q {
		for _, class := range slices.AppendSeq(Classes[:], maps.Keys(w.Dedicated)) {
			// River refuses a queue without workers.
			if n := w.Of(class); n > 0 {
				all[QueueName(service, class)] = n
			}
		}
	}
	return all
}

// QueueName is the name of a service's queue, such as analysis_priority, or
// analysis_priority-enterprise.
func QueueName(service string, c Class) string { return service + "_" + string(c) }

// Split takes the name of a queue apart. The name of any other queue is returned as the
// service, without a class.
func Split(queue string) (service string, c Class) {
	// No class has a _, also not one for a tier or a user whose name has one.
	i := strings.LastIndexByte(queue, '_')
	// A queue of the bare class belongs to no service.
	if i < 1 {
		return queue, ""
	}
	class := Class(queue[i+1:])
	of, name, dedicated := strings.Cut(string(class), "-")
	if !slices.Contains(Classes[:], Class(of)) || dedicated && name == "" {
		return queue, ""
	}
	return queue[:i], class
}

// maxQueueName is the longest name of a queue that River takes.
const maxQueueName = 64

// SelectQueue returns the queue of a service that a job goes to: that of its user's tier, or
// the one for jobs that a scheduler starts, of any user; or the queue that only workers
// which are dedicated to the tier or the user take. A job without a user has the zero
// Tier, and goes to the default queue.
func SelectQueue(service string, t Tier, scheduled bool) string {
	class, shared := t.Class, Default
	// Of whichever tier: nobody waits for what a scheduler starts.
	if scheduled {
		class, shared = t.Scheduled, Scheduled
	}
	if class == "" {
		return QueueName(service, shared)
	}
	queue := QueueName(service, class)
	// The limit file is checked with the services that it has. Of another one the job would be
	// refused, and no job is.
	if len(queue) > maxQueueName {
		of, _, _ := strings.Cut(string(class), "-")
		return QueueName(service, Class(of))
	}
	return queue
}

// QueuesOf returns the workers that a limit file states (nil: none), with those that
// environment variables state in their place:
//
//	{PREFIX}_QUEUE_PRIORITY_WORKERS
//	{PREFIX}_QUEUE_DEFAULT_WORKERS
//	{PREFIX}_QUEUE_SCHEDULED_WORKERS
//
// The prefix of a service is the one that prefixes has for it, else (and for "") its name in
// capitals with _ for -. {"analysis": "ANALYZER"} reads ANALYZER_QUEUE_PRIORITY_WORKERS. A
// service that is in prefixes need not be in the file: what its variables do not say is
// built in, 5, 3 and 2 workers for the service analysis and 3, 2 and 1 for any other. Each
// service has the workers that the file dedicates to tiers and users.
// lookup is like os.LookupEnv; a variable that is empty is not set. The error tells
// everything that is wrong, by the names of the variables.
func QueuesOf(set *limits.Set, prefixes map[string]string, lookup func(string) (string, bool)) (Queues, error) {
	q := Queues{}
	for service := range prefixes {
		q[service] = builtinWorkers(service)
	}
	if set != nil {
		for _, s := range set.Queues() {
			q[s.Service] = Workers{Priority: s.Priority, Default: s.Default, Scheduled: s.Scheduled}
		}
	}
	var errs []error
	read := map[string]string{} // services by the prefixes of variables that are set
	for _, service := range slices.Sorted(maps.Keys(q)) {
		w := q[service]
		prefix, err := prefixOf(service, prefixes)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// All of them, also after an error: who sets variables wants to know all that is wrong.
		for _, class := range Classes {
			name := prefix + "_QUEUE_" + strings.ToUpper(string(class)) + "_WORKERS"
			text, _ := lookup(name)
			if text == "" {
				continue
			}
			// One variable would silently set the workers of two services.
			if other, ok := read[prefix]; ok && other != service {
				errs = append(errs, fmt.Errorf("%s=%q is of both services %s and %s: give one another prefix", name, text, other, service))
				continue
			}
			read[prefix] = service
			n, err := limitfile.ParseWorkers(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", name, text, err))
				continue
			}
			*w.workersOf(class) = n
		}
		// Of all services alike: whose jobs they take does not depend on the service.
		if set != nil {
			err = w.dedicate(service, set.Dedicated())
			errs = append(errs, err)
		}
		q[service] = w
	}
	// No half of it: a queue without workers would stand still without a word.
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return q, nil
}

// dedicate adds the workers of a service that tiers and users have for themselves.
func (w *Workers) dedicate(service string, all []limits.Dedicated) error {
	for _, d := range all {
		for class, n := range d.Workers() {
			// Only of a service that the file does not have: see SelectQueue.
			if name := QueueName(service, Class(class)); len(name) > maxQueueName {
				return fmt.Errorf("service %s: the queue %s has a name of %d bytes, and River takes %d", service, name, len(name), maxQueueName)
			}
			if w.Dedicated == nil {
				w.Dedicated = map[Class]int{}
			}
			w.Dedicated[Class(class)] = n
		}
	}
	return nil
}

// builtinWorkers are those of a service that is not in the limit file.
func builtinWorkers(service string) Workers {
	// The service that most jobs are of, as in config/examples/jobs.yaml.
	if service == "analysis" {
		return Workers{Priority: 5, Default: 3, Scheduled: 2}
	}
	return Workers{Priority: 3, Default: 2, Scheduled: 1}
}

var prefixForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func prefixOf(service string, prefixes map[string]string) (string, error) {
	prefix := prefixes[service]
	switch {
	case !limitfile.ValidService(service):
		return "", fmt.Errorf("service %q: want 1 to 54 of a-z and 0-9, with single _ or - between them", service)
	case prefix == "":
		return strings.ToUpper(strings.ReplaceAll(service, "-", "_")), nil
	// No shell can set such a variable.
	case !prefixForm.MatchString(prefix):
		return "", fmt.Errorf("service %s: %q cannot begin the name of a variable", service, prefix)
	}
	return prefix, nil
}
