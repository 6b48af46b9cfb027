package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// Options are an agent's. Fields without a stated default are required.
type Options struct {
	Instance string        // the name of this HAProxy and its agent, unique in the cluster
	Bus      *redisbus.Bus // the caller closes it

	// Neither protocol has authentication: an address that other machines can reach is an
	// error.
	SPOE  string // where HAProxy asks: "unix:/path" or "host:port"
	Peers string // where HAProxy's local peer listens: "unix:/path" or "host:port"

	// LocalPeer is what HAProxy is called among its peers. "" means "haproxy".
	LocalPeer string

	// Runtime is the path of the socket of HAProxy's runtime API, by which credit is taken
	// back. Without it HAProxy gets no credit and asks about every request.
	Runtime string

	// Costs is where HAProxy says what requests cost: "unix:/path" or "host:port". "" means the
	// socket costs.sock in the folder of SPOE's; if that is no socket, nowhere, and what requests were
	// charged stands.
	Costs string

	// MaxConns is the number of connections that HAProxy may have at a time. 0 means as
	// many as listen.ForSPOE gives the only agent of a process.
	MaxConns int

	// MaxWait bounds the time that a request waits for its verdict. It must be
	// shorter than HAProxy's "timeout processing", or HAProxy lets the request
	// pass meanwhile. Redis counts as lost when an answer is missing for five times as long; calls of Bus may
	// take CallTimeout. 0 means 20 ms.
	MaxWait time.Duration

	// DrainFor is how long requests of a HAProxy that was replaced may go on: its
	// hard-stop-after. 0 means 10 minutes.
	DrainFor time.Duration

	// UnknownUsers is how many users whom the limit file does not name exactly are
	// counted each for themselves at a time. Those beyond it share the limits of one;
	// see pkg/quota. 0 means 100 000.
	UnknownUsers int

	OnLoss  OnLoss        // while Redis is lost; "" means Hold
	HoldFor time.Duration // Hold turns into Open after this long; 0 means never

	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil registers nothing
}

// fromHAProxy is an address in HAProxy's spelling in ours: the agent reads the variables that HAProxy reads.
func fromHAProxy(address string) string {
	for _, family := range []string{"ipv4@", "ipv6@"} {
		if hostPort, ok := strings.CutPrefix(address, family); ok {
			return hostPort
		}
	}
	// HAProxy takes a path without a family for a socket.
	path, isUnix := strings.CutPrefix(address, "unix@")
	if isUnix || strings.HasPrefix(address, "/") {
		return "unix:" + path
	}
	return address
}

func (o *Options) prepare() error {
	// It is part of each of this instance's messages, and of keys in Redis: what has no bound here has none there.
	if o.Instance == "" || len(o.Instance) > 200 {
		return fmt.Errorf("instance name %q: want 1 to 200 bytes", o.Instance)
	}
	if o.Bus == nil {
		return errors.New("no bus")
	}
	for _, address := range []*string{&o.SPOE, &o.Peers, &o.Runtime, &o.Costs} {
		*address = fromHAProxy(*address)
	}
	// Neither protocol has authentication: whoever reaches them can have anybody refused, or admitted.
	if path, isSocket := strings.CutPrefix(o.SPOE, "unix:"); o.Costs == "" && isSocket {
		o.Costs = "unix:" + filepath.Join(filepath.Dir(path), "costs.sock")
	}
	local := []struct{ what, address string }{{"SPOE", o.SPOE}, {"peers", o.Peers}}
	if o.Costs != "" {
		local = append(local, struct{ what, address string }{"costs", o.Costs})
	}
	for _, a := range local {
		if err := daemon.Local(a.what, a.address); err != nil {
			return err
		}
	}
	o.Runtime = strings.TrimPrefix(o.Runtime, "unix:")
	if o.LocalPeer == "" {
		o.LocalPeer = "haproxy"
	}
	if o.MaxConns == 0 {
		o.MaxConns = daemon.ForSPOE(daemon.Descriptors(), 1, false)
	}
	if o.MaxWait == 0 {
		o.MaxWait = 20 * time.Millisecond
	}
	// With less, an ordinary stall of the machine would decide requests without the pool.
	if o.MaxWait < minWait {
		return fmt.Errorf("longest wait %v: want at least %v", o.MaxWait, minWait)
	}
	switch o.OnLoss {
	// Limits hold, in parts, while Redis is lost; that they end then has to be asked for.
	case "":
		o.OnLoss = Hold
	case Hold, Open:
	default:
		return fmt.Errorf("on loss of Redis %q: want %q or %q", o.OnLoss, Hold, Open)
	}
	switch {
	// 0 is the zero value of Options, so no quota at all cannot be asked for.
	case o.UnknownUsers == 0:
		o.UnknownUsers = 100_000
	case o.UnknownUsers < 0:
		return fmt.Errorf("quota of %d unknown users: want 0 or more", o.UnknownUsers)
	}
	if o.DrainFor < 0 {
		return fmt.Errorf("drain for %v: want 0 or more", o.DrainFor)
	}
	if o.HoldFor < 0 {
		return fmt.Errorf("hold for %v: want 0 or more", o.HoldFor)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
