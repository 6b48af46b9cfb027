package agent

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// redisDo sends one command of plain words, as "SET a b", and returns the first line of the answer.
func redisDo(t *testing.T, addr, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\n", command)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// A file that is not what its checksum says changes nothing: the limits before stay in force,
// and when polygen has written it again the new ones come.
func TestDamagedLimitsChangeNothing(t *testing.T) {
	t.Parallel()
	_, addr := testkit.Redis(t)
	s := serve(t, addr, "a", nil)
	publish(t, s.bus, version(t, testLimits), testLimits)
	s.inForce(t, testLimits)

	changed := strings.Replace(testLimits, "GET: 4", "GET: 5", 1)
	sum := sha256.Sum256([]byte(changed))
	if got := redisDo(t, addr, fmt.Sprintf("SET sluice:limits:%x damaged EX 600", sum[:16])); got != "+OK" {
		t.Fatal(got)
	}
	redisDo(t, addr, fmt.Sprintf(`HSET sluice:limits version %s head "1 32:%x %d 7"`, version(t, changed), sum[:16], len(changed)))
	testkit.Eventually(t, "the damage is counted", func() error {
		s.wantLimits() // the subscription may have begun after the message
		if testutil.ToFloat64(s.metrics.limitErrors.WithLabelValues(redisbus.DamagedLimits)) < 2 {
			return errors.New("it is not, or not tried again")
		}
		return nil
	})
	s.inForce(t, testLimits)
	publish(t, s.bus, version(t, changed), changed)
	s.inForce(t, changed)
	if size := testutil.ToFloat64(s.metrics.limitsSize); size != float64(len(changed)) {
		t.Errorf("sluice_limits_bytes is %v, want %d", size, len(changed))
	}
	if n := testutil.CollectAndCount(s.metrics.limitsDelay); n != 1 {
		t.Errorf("sluice_limits_delay_seconds: %d metrics, want 1", n)
	}
}

func TestRetryLimitsAfter(t *testing.T) {
	for _, tt := range []struct {
		failures int
		random   float64
		want     time.Duration
	}{
		{1, 0.5, 250 * time.Millisecond},
		{1, 0, 125 * time.Millisecond},
		{1, 1, 375 * time.Millisecond},
		{2, 0.5, 500 * time.Millisecond},
		{6, 0.5, 8 * time.Second},
		{7, 0.5, 10 * time.Second},
		{1000, 0.5, 10 * time.Second},
	} {
		if got := retryLimitsAfter(tt.failures, tt.random); got != tt.want {
			t.Errorf("retryLimitsAfter(%d, %v) = %v, want %v", tt.failures, tt.random, got, tt.want)
		}
	}
}

func TestStagger(t *testing.T) {
	for _, tt := range []struct {
		instances int64
		random    float64
		want      time.Duration
	}{
		{0, 1, 0}, // nothing is known of the others yet
		{1, 1, 0},
		{2, 0.5, time.Millisecond},
		{1001, 0, 0},
		{1001, 0.5, time.Second},
		{1001, 1, 2 * time.Second},
	} {
		if got := stagger(tt.instances, tt.random); got != tt.want {
			t.Errorf("stagger(%d, %v) = %v, want %v", tt.instances, tt.random, got, tt.want)
		}
	}
}
