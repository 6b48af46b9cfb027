package main

import (
	"fmt"
	"net"
	"os"

	"github.com/sluice-qos/sluice/internal/polygen/api"
)

// lead are the flags by which polygens find each other.
type lead struct {
	Advertise string `help:"Where other polygens reach this one's --admin, as a URL: standbys forward requests to the polygen that leads. Default: the address of --admin, with this machine's name if that is every address." placeholder:"URL" env:"SLUICE_ADVERTISE"`
	LeaderCA  string `name:"leader-ca" help:"File with the CA certificates to trust for the polygen that leads, instead of the system's. A polygen that has the key of this one's own --admin-cert is trusted in any case." placeholder:"FILE" predictor:"file" env:"SLUICE_LEADER_CA"`
}

func (l lead) address(scheme string, at net.Addr) (string, error) {
	if l.Advertise != "" {
		if err := api.CheckLeaderAddress(l.Advertise); err != nil {
			return "", fmt.Errorf("--advertise: %w", err)
		}
		return l.Advertise, nil
	}
	host, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return "", err
	}
	if net.ParseIP(host).IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", err
		}
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}
