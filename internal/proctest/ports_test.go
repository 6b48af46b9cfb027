package proctest

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// Test processes run side by side, and a port may be free for a second until its server
// listens.
func TestPortsAreReservedAmongProcesses(t *testing.T) {
	if asked := os.Getenv("SLUICE_TEST_PORT"); asked != "" { // the other process
		port, _ := strconv.Atoi(asked)
		reserved, err := reserve(port)
		t.Logf("reserved=%v error=%v", reserved, err)
		if reserved || err != nil {
			t.Fail()
		}
		return
	}
	_, asked, err := net.SplitHostPort(FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	other.Env = append(os.Environ(), "SLUICE_TEST_PORT="+asked)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process was given port %s as well: %v\n%s", asked, err, out)
	}
	port, _ := strconv.Atoi(asked)
	if again, err := reserve(port); again || err != nil {
		t.Errorf("reserve(%d) again = %v, %v, want false", port, again, err)
	}
}
