package flags

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// ProbeTimeout is how long a probe waits for its answer.
const ProbeTimeout = 2 * time.Second

// Probe is the flag of a daemon's health check, for containers that have neither a shell nor curl.
type Probe struct {
	Probe string `help:"Ask the daemon that runs with this --admin whether it is ready, or healthy, and exit: with 0 if it is, and otherwise with 1 and a line that says what is wrong. For health checks of containers." enum:",ready,healthy" default:"" placeholder:"WHAT"`
}

// Given reports whether the process is there to ask.
func (p Probe) Given() bool { return p.Probe != "" }

// Ask asks the daemon that has the same flags; nil means yes.
func (p Probe) Ask(ctx context.Context, of Admin, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// It trusts any certificate: it tells nothing and asks whoever has the address of its own machine, and the
	// certificate is for the name by which others come. No proxy.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, of.Access().Scheme()+"://"+of.Address+"/-/"+p.Probe, nil)
	if err != nil {
		return fmt.Errorf("--admin %q: want host:port", of.Address)
	}
	response, err := client.Do(request)
	var failed *net.OpError // within the error of HTTP, which repeats the question
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer within %v", of.Address, timeout)
	case errors.As(err, &failed):
		return fmt.Errorf("%s does not answer: %w", of.Address, failed.Err)
	case err != nil:
		return fmt.Errorf("%s does not answer: %w", of.Address, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("%s does not finish its answer: %w", of.Address, err)
	}
	return fmt.Errorf("not %s: %s", p.Probe, strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; "))
}
