package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// Processes are all that run, by what they are called in reports: "agent-0", "redis".
func (c *Cluster) Processes() map[string]*proctest.Process {
	all := map[string]*proctest.Process{}
	if c.Redis != nil {
		all["redis"] = c.Redis
	}
	for i, in := range c.Instances {
		all[fmt.Sprintf("agent-%d", i)], all[fmt.Sprintf("haproxy-%d", i)] = in.Agent, in.HAProxy
	}
	for i, p := range c.Polygens {
		all[fmt.Sprintf("polygen-%d", i)] = p.Process
	}
	return all
}

// MemoryOf is the memory of a process and of those that it has started, in bytes: what of it is resident.
func MemoryOf(pid int) (bytes float64) {
	for _, pid := range familyOf(pid) {
		statm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.ParseFloat(fields[1], 64)
			bytes += pages * float64(os.Getpagesize())
		}
	}
	return bytes
}

// FilesOf is how many file descriptors a process and those that it has started have.
func FilesOf(pid int) (n float64) {
	for _, pid := range familyOf(pid) {
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		n += float64(len(files))
	}
	return n
}

// ProcessesOf is how many a process and those that it has started are: a HAProxy that is reloaded has one more for a while.
func ProcessesOf(pid int) float64 { return float64(len(familyOf(pid))) }

// familyOf is a process and those that it has started, as a HAProxy has workers.
func familyOf(pid int) []int {
	pids := []int{pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for field := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
