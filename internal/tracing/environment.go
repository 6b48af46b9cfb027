package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// settings are what the environment says, as far as the SDK does not read it by itself. The SDK
// takes its defaults for what it cannot parse; here that is an error.
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

const (
	defaultQueue = 2048    // the SDK's
	mostQueue    = 1 << 20 // of spans that may wait; each takes about a kilobyte
)

// environment reads variables; an empty one is not set. Surrounding blanks do not count.
type environment func(string) string

func (e environment) trimmed(name string) string { return strings.TrimSpace(e(name)) }

// readEnvironment checks every variable that counts. Values that may be secret are not in its errors.
func readEnvironment(getenv func(string) string) (settings, error) {
	e := environment(getenv)
	s := settings{queue: defaultQueue}
	disabled, err := e.boolean("OTEL_SDK_DISABLED")
	if err != nil || disabled {
		return s, err
	}
	if s.to, err = e.destination(); err != nil || s.to == nowhere {
		return s, err
	}
	errs := []error{e.sampler(), e.pairs("OTEL_RESOURCE_ATTRIBUTES", anyName), e.limits()}
	errs = append(errs, e.batches(&s))
	if s.to == toReceiver {
		s.endpoint = e.hasEndpoint()
		errs = append(errs, e.receiver())
	}
	return s, errors.Join(errs...)
}

func (e environment) hasEndpoint() bool {
	return e.trimmed("OTEL_EXPORTER_OTLP_ENDPOINT")+e.trimmed("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

func (e environment) destination() (destination, error) {
	const name = "OTEL_TRACES_EXPORTER"
	switch v := e.trimmed(name); {
	case v == "otlp", v == "" && e.hasEndpoint():
		return toReceiver, nil
	case v == "", v == "none":
		return nowhere, nil
	case v == "console":
		return toConsole, nil
	default:
		return nowhere, fmt.Errorf("%s %q: want otlp, console or none", name, v)
	}
}

// sampler checks what the SDK's sampler is made of.
func (e environment) sampler() error {
	const name, arg = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	switch v := strings.ToLower(e.trimmed(name)); v {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	case "traceidratio", "parentbased_traceidratio":
		r, err := strconv.ParseFloat(e.trimmed(arg), 64)
		if e.trimmed(arg) != "" && (err != nil || !(r >= 0 && r <= 1)) {
			return fmt.Errorf("%s %q: want a ratio from 0 to 1", arg, e.trimmed(arg))
		}
		return nil
	default:
		return fmt.Errorf("%s %q: want always_on, always_off or traceidratio, or one of them after parentbased_", name, v)
	}
}

// batches checks how spans are queued and sent.
func (e environment) batches(s *settings) error {
	const queue, batch = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
	var size int
	errs := []error{
		e.number(queue, 1, mostQueue, &s.queue),
		e.number(batch, 1, mostQueue, &size),
		e.number("OTEL_BSP_SCHEDULE_DELAY", 1, mostTime, nil),
		e.number("OTEL_BSP_EXPORT_TIMEOUT", 0, mostTime, nil),
	}
	if size > s.queue {
		errs = append(errs, fmt.Errorf("%s %d: want at most %s, %d", batch, size, queue, s.queue))
	}
	return errors.Join(errs...)
}

const mostTime = 1<<31 - 1 // milliseconds

// limits checks the bounds of a span; -1 is none.
func (e environment) limits() error {
	var errs []error
	for _, name := range []string{
		"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT",
		"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT",
		"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
	} {
		errs = append(errs, e.number(name, -1, mostTime, nil))
	}
	return errors.Join(errs...)
}

// receiver checks how spans are sent over HTTP. Of each variable there is one for all
// signals, and one for traces, which counts if both are set.
func (e environment) receiver() error {
	errs := []error{e.protocol()}
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		_, insecure := e.boolean(prefix + "INSECURE")
		errs = append(errs, e.url(prefix+"ENDPOINT"), e.pairs(prefix+"HEADERS", headerName), e.number(prefix+"TIMEOUT", 1, mostTime, nil),
			e.compression(prefix+"COMPRESSION"), insecure,
			e.certificates(prefix+"CERTIFICATE"), e.keyPair(prefix+"CLIENT_CERTIFICATE", prefix+"CLIENT_KEY"))
	}
	return errors.Join(errs...)
}

func (e environment) protocol() error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch v := e.trimmed(name); v {
		case "": // the other one may say
		case "http/protobuf":
			return nil
		default:
			return fmt.Errorf("%s %q: only http/protobuf is supported, whose usual port is 4318", name, v)
		}
	}
	return nil
}

func (e environment) url(name string) error {
	v := e.trimmed(name)
	if v == "" {
		return nil
	}
	if u, err := url.Parse(v); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%s: want a URL such as http://127.0.0.1:4318", name)
	}
	return nil
}

// pairs checks a list such as a=b,c=d; values are percent-encoded.
func (e environment) pairs(variable string, valid func(string) bool) error {
	v := e.trimmed(variable)
	if v == "" {
		return nil
	}
	for i, pair := range strings.Split(v, ",") {
		name, value, found := strings.Cut(pair, "=")
		if _, err := url.PathUnescape(value); !found || err != nil || !valid(strings.TrimSpace(name)) {
			return fmt.Errorf("%s: part %d is not of the form name=value", variable, i+1)
		}
	}
	return nil
}

func anyName(s string) bool { return s != "" }

// headerName reports whether it is an HTTP token (RFC 9110, section 5.6.2).
func headerName(s string) bool {
	for _, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if digit := r >= '0' && r <= '9'; !letter && !digit && !strings.ContainsRune("!#$%&'*+-.^_`|~", r) {
			return false
		}
	}
	return s != ""
}

func (e environment) compression(name string) error {
	if v := e.trimmed(name); v != "" && v != "gzip" && v != "none" {
		return fmt.Errorf("%s %q: want gzip or none", name, v)
	}
	return nil
}

func (e environment) certificates(name string) error {
	path := e.trimmed(name)
	if path == "" {
		return nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: %s holds no certificate in PEM form", name, path)
	}
	return nil
}

func (e environment) keyPair(certificate, key string) error {
	c, k := e.trimmed(certificate), e.trimmed(key)
	switch {
	case c == "" && k == "":
		return nil
	case c == "" || k == "":
		return fmt.Errorf("%s and %s: one is not set", certificate, key)
	}
	if _, err := tls.LoadX509KeyPair(c, k); err != nil {
		return fmt.Errorf("%s and %s: %w", certificate, key, err)
	}
	return nil
}

func (e environment) boolean(name string) (bool, error) {
	v := e.trimmed(name)
	switch strings.ToLower(v) {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, fmt.Errorf("%s %q: want true or false", name, v)
}

// number checks that the variable is within its bounds. What it is goes to n, unless
// that is nil.
func (e environment) number(name string, least, most int, n *int) error {
	v := e(name) // the SDK takes no blanks
	if v == "" {
		return nil
	}
	i, err := strconv.Atoi(v)
	if err != nil || i < least || i > most {
		return fmt.Errorf("%s %q: want %d to %d", name, v, least, most)
	}
	if n != nil {
		*n = i
	}
	return nil
}
