package redisslots

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// readUser reads the reply to "user": that to "slots", and the line.
func readUser(user string, reply []any) (jobs.Usage, error) {
	if len(reply) != 2 {
		return jobs.Usage{}, unexpected(reply)
	}
	taken, ok := reply[0].([]any)
	line, ok2 := reply[1].([]any)
	if !ok || !ok2 {
		return jobs.Usage{}, unexpected(reply)
	}
	u, err := readSlots(user, taken)
	if err != nil {
		return jobs.Usage{}, err
	}
	u.Parked, err = readLine(user, line)
	return u, err
}

// readSlots reads the reply to "slots": of each state, order, queue, holder, job,
// microseconds that are left.
func readSlots(user string, reply []any) (jobs.Usage, error) {
	if len(reply)%6 != 0 {
		return jobs.Usage{}, unexpected(reply)
	}
	var u jobs.Usage
	orders := map[string]int64{} // of reservations
	for v := range slices.Chunk(reply, 6) {
		state, ok1 := v[0].(string)
		order, ok2 := v[1].(int64)
		queue, ok3 := v[2].(string)
		holder, ok4 := v[3].(string)
		job, ok5 := v[4].(string)
		left, ok6 := v[5].(int64)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
			return jobs.Usage{}, unexpected(v)
		}
		slot := jobs.Slot{Job: jobs.Job{User: user, ID: job, Queue: queue}, Holder: holder, Left: time.Duration(left) * time.Microsecond}
		if state == "r" {
			u.Reserved = append(u.Reserved, slot)
			orders[job] = order
		} else {
			u.Held = append(u.Held, slot)
		}
	}
	slices.SortFunc(u.Held, func(a, b jobs.Slot) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(u.Reserved, func(a, b jobs.Slot) int { return cmp.Compare(orders[a.ID], orders[b.ID]) })
	return u, nil
}

// readLine reads the members of a line, which are sorted by queue.
func readLine(user string, members []any) ([]jobs.Job, error) {
	type spot struct {
		order string
		job   jobs.Job
	}
	line := make([]spot, len(members))
	for i, m := range members {
		member, ok := m.(string)
		if !ok || len(member) < 3 {
			return nil, unexpected(members[i : i+1])
		}
		n, err := strconv.ParseUint(member[:3], 10, 16)
		if err != nil || uint64(len(member)) < 3+n+16 {
			return nil, unexpected(members[i : i+1])
		}
		queue, rest := member[3:3+n], member[3+n:]
		line[i] = spot{rest[:16], jobs.Job{User: user, ID: rest[16:], Queue: queue}}
	}
	slices.SortFunc(line, func(a, b spot) int { return cmp.Compare(a.order, b.order) })
	parked := make([]jobs.Job, len(line))
	for i, s := range line {
		parked[i] = s.job
	}
	return parked, nil
}

func unexpected(reply []any) error { return fmt.Errorf("unexpected reply %.100q", reply) }
