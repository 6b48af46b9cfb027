package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// settings are what the environment says of what the SDK does not decide by itself.
type settings struct {
	to       destination
	endpoint bool // one is given
	queue    int  // spans that may wait
}

// destination is where spans go.
type destination int

const (
	nowhere destination = iota
	toReceiver
	toConsole
)

func (d destination) String() string { return [...]string{"nowhere", "otlp", "console"}[d] }

const defaultQueue = 2048 // the SDK's

// variable is what the environment says; an empty variable is not set.
func variable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// readEnvironment reads whether to trace, and to where. What else the standard variables say the SDK reads
// and judges.
func readEnvironment() (settings, error) {
	s := settings{queue: defaultQueue}
	if strings.EqualFold(variable("OTEL_SDK_DISABLED"), "true") {
		return s, nil
	}
	s.endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT")+variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch exporter := variable("OTEL_TRACES_EXPORTER"); {
	case exporter == "otlp", exporter == "" && s.endpoint:
		s.to = toReceiver
	case exporter == "", exporter == "none":
		return s, nil
	case exporter == "console":
		s.to = toConsole
	default:
		return s, fmt.Errorf("OTEL_TRACES_EXPORTER %q: want otlp, console or none", exporter)
	}
	if size := variable("OTEL_BSP_MAX_QUEUE_SIZE"); size != "" {
		// bounded counts what does not fit, so it must know the size that the SDK takes.
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return s, fmt.Errorf("OTEL_BSP_MAX_QUEUE_SIZE %q: want a number above 0", size)
		}
		s.queue = n
	}
	if s.to == toReceiver {
		return s, errors.Join(checkProtocol(), checkSecrets())
	}
	return s, nil
}

// checkSecrets refuses what the SDK would print as it is when it cannot read it, and that may be a
// secret.
func checkSecrets() error {
	var errs []error
	for _, traces := range []string{"", "TRACES_"} {
		name := "OTEL_EXPORTER_OTLP_" + traces + "HEADERS"
		for header := range strings.SplitSeq(variable(name), ",") {
			key, value, pair := strings.Cut(header, "=")
			_, err := url.PathUnescape(strings.TrimSpace(value))
			if key = strings.TrimSpace(key); header != "" && (!pair || err != nil || strings.IndexFunc(key, notOfToken) >= 0 || key == "") {
				errs = append(errs, fmt.Errorf("%s: want name=value,name=value, with the values percent-encoded (its value may be secret, and is not shown)", name))
				break
			}
		}
		name = "OTEL_EXPORTER_OTLP_" + traces + "ENDPOINT"
		if _, err := url.Parse(variable(name)); err != nil {
			errs = append(errs, fmt.Errorf("%s: want a URL (its value may have a password, and is not shown)", name))
		}
	}
	return errors.Join(errs...)
}

// notOfToken reports whether a rune cannot be in the name of a header (RFC 9110, section 5.6.2).
func notOfToken(r rune) bool {
	letterOrDigit := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !letterOrDigit && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// checkProtocol refuses gRPC, to whose port the SDK's exporter would speak HTTP.
func checkProtocol() error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch protocol := variable(name); protocol {
		case "": // the other one may say
		case "http/protobuf":
			return nil
		default:
			return fmt.Errorf("%s %q: only http/protobuf is supported, whose usual port is 4318", name, protocol)
		}
	}
	return nil
}
