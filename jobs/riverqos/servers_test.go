package riverqos_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/jobs/riverqos"
)

// Neither the slots nor the gate, the sweep or its lock needs a session of its own, nor
// prepared statements that outlive a transaction.
func TestThroughPgBouncerInTransactionMode(t *testing.T) {
	skipIfShort(t)
	r := startThroughPgBouncer(t, sweeping)
	first := r.insert(8, task{User: "ann", Do: "brief"}, "slow_default")
	others := append(r.insert(1, task{User: "bob"}, "slow_default"), r.insert(3, task{Do: "brief"}, "slow_default")...)
	r.finished(append(first, others...))
	r.atMost("ann", 1)
	if n := r.value("sluice_jobs_errors_total", "sweep"); n > 0 {
		t.Errorf("%v sweeps failed", n)
	}
	if r.value("sluice_jobs_sweeps_total", "done") == 0 {
		t.Error("nobody swept")
	}
}

func TestMigrateRefusesAnOldServer(t *testing.T) {
	pool, _ := fresh(t)
	var version int
	if err := pool.QueryRow(context.Background(), "SELECT current_setting('server_version_num')::int4 / 10000").Scan(&version); err != nil {
		t.Fatal(err)
	}
	defer riverqos.SetOldestServer(version + 1)()
	err := riverqos.Migrate(context.Background(), pool, "")
	if want := fmt.Sprintf("riverqos: migrate: the server is PostgreSQL %d.", version); err == nil || !strings.HasPrefix(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), fmt.Sprintf(": want %d or later", version+1)) {
		t.Errorf("Migrate = %v, want %q…", err, want)
	}
}
