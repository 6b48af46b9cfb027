package main

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/api/apitest"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// The list fits into a terminal that has become smaller before there is another list.
func TestTopIsResized(t *testing.T) {
	t.Parallel()
	polygen := apitest.Serve(apitest.Cluster())
	defer polygen.Close()
	term := inTerminal(t, unix.Winsize{Row: 30, Col: 200}, "top", "--admin", polygen.Listener.Addr().String(), "--interval", "1h")
	term.await(t, "polygen one, leading", "~AB")
	term.resize(t, unix.Winsize{Row: 5, Col: 40})
	proctest.Eventually(t, "the list fits", func() error {
		if s := term.await(t, "2026"); strings.Contains(s, "~AB") || strings.Contains(s, "leading") {
			return fmt.Errorf("the screen is %q", s)
		}
		return nil
	})
}
