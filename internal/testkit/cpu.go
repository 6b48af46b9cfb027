package testkit

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUOf reads the processor clock of a process, which counts all its threads,
// those that have ended too, in nanoseconds: slices of a benchmark are too
// short for the hundredths of a second in /proc. The number of that clock is
// made as clock_getcpuclockid(3) makes it.
func CPUOf(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED: what the scheduler measured
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &t); err != nil {
		return 0, fmt.Errorf("processor clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
