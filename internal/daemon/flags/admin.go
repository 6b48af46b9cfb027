package flags

import (
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Admin are the flags of a daemon's admin API. Who embeds it sets serves, what it
// serves, and address, its usual address.
type Admin struct {
	Address   string `name:"admin" help:"Where to serve ${serves}. Other machines than this one can be let in with a token and TLS, by the three flags that follow." default:"${address}" placeholder:"ADDR" env:"SLUICE_ADMIN"`
	TokenFile string `name:"admin-token-file" help:"File with the tokens that are asked for: a line is NAME TOKEN, or TOKEN, of 16 characters or more. It is read again when it changes." placeholder:"FILE" predictor:"file" env:"SLUICE_ADMIN_TOKEN_FILE"`
	Cert      string `name:"admin-cert" help:"File with the certificate for TLS, and those up to its authority. It is read again when it changes." placeholder:"FILE" predictor:"file" env:"SLUICE_ADMIN_CERT"`
	Key       string `name:"admin-key" help:"File with the key of --admin-cert." placeholder:"FILE" predictor:"file" env:"SLUICE_ADMIN_KEY"`
}

// Access is who may ask.
func (a Admin) Access() daemon.Access {
	return daemon.Access{TokenFile: a.TokenFile, Cert: a.Cert, Key: a.Key}
}

// Check refuses flags that would leave the API open to other machines.
func (a Admin) Check() error { return a.Access().CheckAddress(a.Address) }

// Listen listens as the flags say. The gate is for the handler.
func (a Admin) Listen(log *slog.Logger, reg prometheus.Registerer) (net.Listener, *daemon.Gate, error) {
	return a.Access().Listen(a.Address, log, reg)
}
