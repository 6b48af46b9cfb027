package testkit

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
	_, first, err := net.SplitHostPort(FreeAddrs(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(first)
	port++ // the second of the two
	asked := strconv.Itoa(port)
	other := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	other.Env = append(os.Environ(), "SLUICE_TEST_PORT="+asked)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process was given port %s as well: %v\n%s", asked, err, out)
	}
	if again, err := reserve(port); again || err != nil {
		t.Errorf("reserve(%d) again = %v, %v, want false", port, again, err)
	}
}
