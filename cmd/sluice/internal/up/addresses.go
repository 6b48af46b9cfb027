package up

import (
	"fmt"
	"net"
	"strconv"
)

// ListenAddresses are the addresses of n instances, 1 to 16: base, and the ports after it.
func ListenAddresses(base string, n int) ([]string, error) {
	if n < 1 || n > 16 {
		return nil, fmt.Errorf("%d instances: want 1 to 16", n)
	}
	host, port, err := net.SplitHostPort(base)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port", base)
	}
	// Port 0 would be a free one of the kernel's choice, and the others could not follow it.
	first, err := strconv.Atoi(port)
	if err != nil || first < 1 || first+n-1 > 65535 {
		return nil, fmt.Errorf("listen address %q with %d instance(s): want ports from 1 to 65535", base, n)
	}
	var addresses []string
	for i := range n {
		addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(first+i)))
	}
	return addresses, nil
}

// checkFree reports which address is taken. HAProxy does not: it shares a port with
// any other HAProxy of the same user (SO_REUSEPORT).
func checkFree(addresses []string) error {
	// Somebody may take one until HAProxy starts; then HAProxy says so, less clearly.
	for i, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("instance %d: %w: choose other ports with --listen", i+1, err)
		}
		l.Close()
	}
	return nil
}
