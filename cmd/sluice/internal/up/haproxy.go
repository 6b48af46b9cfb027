package up

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// findHAProxy resolves the program and checks that its version is one that the
// shipped files run on.
func findHAProxy(ctx context.Context, name string) (string, error) {
	// Found once and named by its path from then on, so that every instance runs the same HAProxy.
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: install HAProxy %s or later (Debian: apt-get install haproxy), or name it with --haproxy", err, haproxy.MinVersion)
	}
	out, err := exec.CommandContext(ctx, path, "-v").Output()
	if err != nil {
		return "", fmt.Errorf("%s -v: %w", path, err)
	}
	version, ok := parseVersion(string(out))
	if !ok {
		return "", fmt.Errorf("%s -v does not look like HAProxy's: %.100q", path, out)
	}
	// Said now, because an older one would only say which word of haproxy.cfg it does not know.
	if isOlder(version, haproxy.MinVersion) {
		return "", fmt.Errorf("%s is HAProxy %s: want %s or later", path, version, haproxy.MinVersion)
	}
	return path, nil
}

// parseVersion reads "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - …".
func parseVersion(out string) (string, bool) {
	// Older ones say "HA-Proxy version": the first word is not looked at, so that they are told as too old.
	fields := strings.Fields(out)
	if len(fields) < 3 || fields[1] != "version" {
		return "", false
	}
	return fields[2], true
}

// isOlder compares the first two numbers of two versions. One that is missing is 0.
func isOlder(version, than string) bool {
	var a, b [2]int
	// Whatever follows, such as -dev5 or a third number, changes nothing of what a release can do.
	_, _ = fmt.Sscanf(version, "%d.%d", &a[0], &a[1])
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return slices.Compare(a[:], b[:]) < 0
}

type process struct {
	program string
	dir     string
	address string
	options *Options
	set     *limits.Set // for classes and who is exempt
	wait    func() bool // whether the agent serves: HAProxy starts after it
	file    string
	env     []string
}

func spoeSocket(dir string) string { return filepath.Join(dir, "spoa.sock") }

func peerSocket(dir string) string { return filepath.Join(dir, "peers.sock") }

// runtimeSocket is where HAProxy's runtime API listens for the agent.
func runtimeSocket(dir string) string { return filepath.Join(dir, "runtime.sock") }

// costsSocket is where the agent hears what requests cost: beside that of SPOE, as by default.
func costsSocket(dir string) string { return filepath.Join(dir, "costs.sock") }

func (p *process) configure() error {
	// Fitted to the limits of the start. What of them changes later in a way that HAProxy must know
	// is told by warnOfLimits: to reload HAProxy as its child is a service manager's job.
	c := haproxy.ForLimits(p.set)
	c.Identify = p.options.Identify
	c.Env = []string{
		"SLUICE_BIND=" + p.address, "SLUICE_ORIGIN=" + p.options.Origin, "SLUICE_INSTANCE=instance-" + filepath.Base(p.dir),
		"SLUICE_SPOE=unix@" + spoeSocket(p.dir), "SLUICE_PEER=unix@" + peerSocket(p.dir), "SLUICE_COSTS=unix@" + costsSocket(p.dir),
		"SLUICE_RUNTIME=" + runtimeSocket(p.dir), "SLUICE_STATS=" + filepath.Join(p.dir, "stats.sock"),
		"SLUICE_UNREADABLE=" + p.options.Unreadable, fmt.Sprint("SLUICE_REFUSE_STATUS=", p.options.Refuse),
		// HAProxy waits for longer than its agent, so that an answer of the last moment arrives: 10 ms,
		// as with the defaults of the two (20 and 30 ms).
		fmt.Sprintf("SLUICE_VERDICT_TIMEOUT=%dms", (p.options.MaxWait + 10*time.Millisecond).Milliseconds()),
	}
	var err error
	p.file, p.env, err = haproxy.Write(p.dir, c)
	return err
}
