package polygen

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// A Redis whose users may not write the limit file refuses it. polygen says so,
// and publishes them when it may.
func TestLimitsThatRedisRefusesAreLogged(t *testing.T) {
	t.Parallel()
	_, addr := testkit.Redis(t)
	admin, err := net.Dial("tcp", addr)
	testkit.Must(t, err)
	defer admin.Close()
	answers := bufio.NewReader(admin)
	command := func(text string) {
		t.Helper()
		fmt.Fprintf(admin, "%s\r\n", text)
		if answer, err := answers.ReadString('\n'); answer != "+OK\r\n" {
			t.Fatalf("%s: %q, %v", text, answer, err)
		}
	}
	command("ACL SETUSER narrow on >narrow +@all &* ~sluice:limits ~sluice:overrides ~sluice:{cluster}:*")
	narrow, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Username: "narrow", Password: "narrow", Timeout: testkit.Patience})
	testkit.Must(t, err)
	t.Cleanup(func() { narrow.Close() })
	log := &testkit.Buffer{}
	g := newGenerator(t, addr, "p", func(o *Options) { o.Bus, o.Logger = narrow, slog.New(slog.NewTextHandler(log, nil)) })
	g.run(t).awaitLead(t)
	testkit.Eventually(t, "a line of the log", func() error {
		if text := log.String(); !strings.Contains(text, "limits not published") || !strings.Contains(text, "NOPERM") {
			return errors.New(text)
		}
		return nil
	})
	command("ACL SETUSER narrow ~sluice:limits:*")
	agent := open(t, addr, 1)
	testkit.Eventually(t, "the limits", func() error {
		_, err := agent.Limits(t.Context(), 1)
		return err
	})
}
