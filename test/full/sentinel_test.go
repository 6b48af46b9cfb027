package full

import (
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/test/scene"
)

// A master that is only stopped takes itself for the master when it goes on: agents and polygen stay with the one that the
// Sentinels have made.
func TestStoppedMasterReturns(t *testing.T) {
	t.Parallel()
	secure := scene.NewSecured(t)
	master, replica, options := secure.Sentinels(t, redisLimits, takeover)
	options.MaxWait = failoverWait
	s := scene.Start(t, options)
	version := overrideBob(t, s)
	var gone time.Time
	var found, used period
	report := during(t, s, []string{"alice", "bob"}, func() {
		gone = time.Now()
		_ = master.Signal(syscall.SIGSTOP)
		found = awaitLostOf(t, s, 0)
		used = awaitReplaced(t, s, replica)
		wholeSeconds(1)
		_ = master.Signal(syscall.SIGCONT)
		awaitRole(t, master.Addr, "slave")
	})
	t.Logf("the master was gone at second %d, found after %v, and the replica used after %v", gone.Unix()-report.Start.Unix(), found.to.Sub(gone), used.to.Sub(gone))
	checkDay(t, report, "alice", redisLimit, period{gone, found.to}, used)
	checkDay(t, report, "bob", overriddenLimit, period{gone, found.to}, used)
	awaitRole(t, replica.Addr, "master")
	awaitAll(t, s)
	keepsOverride(t, s, version, replica)
}
