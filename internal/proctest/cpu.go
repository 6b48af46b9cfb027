package proctest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cpuOf reads utime and stime of proc(5)'s stat file. Their unit is 1/100 s on
// every Linux that Go supports (USER_HZ).
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the command in parentheses, may contain blanks.
	_, rest, ok := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("stat of %d: %q", pid, stat)
	}
	var ticks int64
	for _, f := range fields[11:13] { // fields 14 and 15 of the file
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat of %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
