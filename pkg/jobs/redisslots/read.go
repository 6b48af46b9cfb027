package redisslots

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// readUsage reads the reply to "slots" and to "user": of each slot and parked job the state,
// order, queue, holder, job, and microseconds that are left.
func readUsage(user string, reply []string) (u jobs.Usage, err error) {
	if len(reply)%6 != 0 {
		return jobs.Usage{}, fmt.Errorf("unexpected reply %.100q", reply)
	}
	rows := slices.Collect(slices.Chunk(reply, 6))
	// Redis has neither slots nor lines in the order of their coming. All orders are equally long, and those of slots
	// that are held are 0.
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Or(cmp.Compare(a[1], b[1]), cmp.Compare(a[4], b[4])) })
	for _, row := range rows {
		left, err := strconv.ParseInt(row[5], 10, 64)
		if err != nil {
			return jobs.Usage{}, fmt.Errorf("unexpected reply %.100q", row)
		}
		slot := jobs.Slot{Job: jobs.Job{User: user, ID: row[4], Queue: row[2]}, Holder: row[3], Left: time.Duration(left) * time.Microsecond}
		switch row[0] {
		case "h":
			u.Held = append(u.Held, slot)
		case "r":
			u.Reserved = append(u.Reserved, slot)
		default:
			u.Parked = append(u.Parked, slot.Job)
		}
	}
	return u, nil
}
