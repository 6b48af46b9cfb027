package agent

import "testing"

func TestAddressesInHAProxysSpelling(t *testing.T) {
	for given, want := range map[string]string{
		"unix@/run/spoa.sock": "unix:/run/spoa.sock",
		"unix:/run/spoa.sock": "unix:/run/spoa.sock",
		"/run/peers.sock":     "unix:/run/peers.sock",
		"ipv4@127.0.0.1:9000": "127.0.0.1:9000",
		"ipv6@[::1]:9000":     "[::1]:9000",
		"localhost:9000":      "localhost:9000",
		"":                    "",
	} {
		if got := fromHAProxy(given); got != want {
			t.Errorf("fromHAProxy(%q) = %q, want %q", given, got, want)
		}
	}
}
