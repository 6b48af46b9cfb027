package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/sluice-qos/sluice/internal/api/client"
)

// Access are the flags of commands that ask an admin API, beside --admin.
type Access struct {
	AdminTokenFile string `help:"File with the token for the admin API. The first one is sent, and only by https or to this machine." placeholder:"FILE" predictor:"file" env:"SLUICE_ADMIN_TOKEN_FILE"`
	AdminCA        string `name:"admin-ca" help:"File with the CA certificates to trust for an https --admin, instead of the system's." placeholder:"FILE" predictor:"file" env:"SLUICE_ADMIN_CA"`
}

func (a Access) access() client.Access {
	return client.Access{TokenFile: a.AdminTokenFile, CA: a.AdminCA}
}

func (a Access) client(address string) (*client.Client, error) {
	return client.NewClient(address, a.access())
}

// untilSignal ends with Ctrl-C, a service manager's signal, or the terminal's end.
func untilSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}
