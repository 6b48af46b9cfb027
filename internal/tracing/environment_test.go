package tracing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const url4318 = "http://127.0.0.1:4318"

func TestRead(t *testing.T) {
	type env = map[string]string
	off, sent := settings{queue: 2048}, settings{to: toReceiver, endpoint: true, queue: 2048}
	tests := []struct {
		name string
		env  env
		want settings
	}{
		{"nothing is set", env{}, off},
		{"an endpoint", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, sent},
		{"an endpoint of traces", env{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://user:secret@otel:4318/v1/traces"}, sent},
		{"an endpoint of metrics alone", env{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": url4318}, off},
		{"empty is not set", env{"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "OTEL_TRACES_EXPORTER": ""}, off},
		{"otlp without an endpoint", env{"OTEL_TRACES_EXPORTER": "otlp"}, settings{to: toReceiver, queue: 2048}},
		{"console", env{"OTEL_TRACES_EXPORTER": "console"}, settings{to: toConsole, queue: 2048}},
		{"console beats an endpoint", env{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, settings{to: toConsole, queue: 2048}},
		{"none beats an endpoint", env{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, off},
		{"disabled beats all", env{"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, off},
		{"not disabled", env{"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, sent},
		{"what is off is not checked", env{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "?"}, off},
		{"the console needs no protocol", env{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, settings{to: toConsole, queue: 2048}},
		{"traces have a protocol of their own", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
			"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, sent},
		{"a queue", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_BSP_MAX_QUEUE_SIZE": "100"}, settings{to: toReceiver, endpoint: true, queue: 100}},
		{"all that there is", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "a=b, c=d%20e",
			"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25",
			"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,x-y=", "OTEL_EXPORTER_OTLP_TIMEOUT": "1000", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
			"OTEL_EXPORTER_OTLP_INSECURE": "true", "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_BSP_EXPORT_TIMEOUT": "0",
			"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2048", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"}, sent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readEnvironment(func(name string) string { return tt.env[name] })
			if err != nil || got != tt.want {
				t.Errorf("read = %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestReadRefusesAndNamesTheVariable(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(noPEM, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, variable, value, want string }{
		{"disabled, perhaps", "OTEL_SDK_DISABLED", "yes", `OTEL_SDK_DISABLED "yes": want true or false`},
		{"another exporter", "OTEL_TRACES_EXPORTER", "zipkin", `OTEL_TRACES_EXPORTER "zipkin": want otlp, console or none`},
		{"two exporters", "OTEL_TRACES_EXPORTER", "otlp,console", `OTEL_TRACES_EXPORTER "otlp,console": want otlp, console or none`},
		{"gRPC", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL "grpc": only http/protobuf is supported, whose usual port is 4318`},
		{"gRPC for traces", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc",
			`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL "grpc": only http/protobuf is supported, whose usual port is 4318`},
		{"JSON", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", `OTEL_EXPORTER_OTLP_PROTOCOL "http/json": only http/protobuf is supported, whose usual port is 4318`},
		{"an endpoint that is no URL", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "127.0.0.1:4318", `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want a URL such as http://127.0.0.1:4318`},
		{"an endpoint of gRPC", "OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://secret@h", `OTEL_EXPORTER_OTLP_ENDPOINT: want a URL such as http://127.0.0.1:4318`},
		{"an endpoint without a host", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318", `OTEL_EXPORTER_OTLP_ENDPOINT: want a URL such as http://127.0.0.1:4318`},
		{"a header without its value", "OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret", `OTEL_EXPORTER_OTLP_HEADERS: part 2 is not of the form name=value`},
		{"a header that is none", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a b=secret", `OTEL_EXPORTER_OTLP_TRACES_HEADERS: part 1 is not of the form name=value`},
		{"a header badly escaped", "OTEL_EXPORTER_OTLP_HEADERS", "a=%zz", `OTEL_EXPORTER_OTLP_HEADERS: part 1 is not of the form name=value`},
		{"an attribute without its value", "OTEL_RESOURCE_ATTRIBUTES", "a", `OTEL_RESOURCE_ATTRIBUTES: part 1 is not of the form name=value`},
		{"an attribute without its name", "OTEL_RESOURCE_ATTRIBUTES", "a=b,=c", `OTEL_RESOURCE_ATTRIBUTES: part 2 is not of the form name=value`},
		{"another sampler", "OTEL_TRACES_SAMPLER", "jaeger_remote",
			`OTEL_TRACES_SAMPLER "jaeger_remote": want always_on, always_off or traceidratio, or one of them after parentbased_`},
		{"a timeout with its unit", "OTEL_EXPORTER_OTLP_TIMEOUT", "10s", `OTEL_EXPORTER_OTLP_TIMEOUT "10s": want 1 to 2147483647`},
		{"another compression", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd", `OTEL_EXPORTER_OTLP_TRACES_COMPRESSION "zstd": want gzip or none`},
		{"insecure, perhaps", "OTEL_EXPORTER_OTLP_INSECURE", "1", `OTEL_EXPORTER_OTLP_INSECURE "1": want true or false`},
		{"a certificate that is missing", "OTEL_EXPORTER_OTLP_CERTIFICATE", "no/such", `OTEL_EXPORTER_OTLP_CERTIFICATE: open no/such: no such file or directory`},
		{"a certificate that is none", "OTEL_EXPORTER_OTLP_CERTIFICATE", noPEM, `OTEL_EXPORTER_OTLP_CERTIFICATE: ` + noPEM + ` holds no certificate in PEM form`},
		{"a key without its certificate", "OTEL_EXPORTER_OTLP_CLIENT_KEY", "x", `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY: one is not set`},
		{"no queue", "OTEL_BSP_MAX_QUEUE_SIZE", "0", `OTEL_BSP_MAX_QUEUE_SIZE "0": want 1 to 1048576`},
		{"a queue beyond memory", "OTEL_BSP_MAX_QUEUE_SIZE", "9999999999", `OTEL_BSP_MAX_QUEUE_SIZE "9999999999": want 1 to 1048576`},
		{"a batch beyond the queue", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049", `OTEL_BSP_MAX_EXPORT_BATCH_SIZE 2049: want at most OTEL_BSP_MAX_QUEUE_SIZE, 2048`},
		{"no delay", "OTEL_BSP_SCHEDULE_DELAY", "0", `OTEL_BSP_SCHEDULE_DELAY "0": want 1 to 2147483647`},
		{"blanks, which the SDK does not take", "OTEL_BSP_EXPORT_TIMEOUT", " 5", `OTEL_BSP_EXPORT_TIMEOUT " 5": want 0 to 2147483647`},
		{"a limit of spans", "OTEL_SPAN_EVENT_COUNT_LIMIT", "many", `OTEL_SPAN_EVENT_COUNT_LIMIT "many": want -1 to 2147483647`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, tt.variable: tt.value}
			_, err := readEnvironment(func(name string) string { return env[name] })
			if err == nil || err.Error() != tt.want {
				t.Errorf("read = %v, want %s", err, tt.want)
			}
		})
	}
}

func TestReadChecksTheSamplersArgument(t *testing.T) {
	for arg, good := range map[string]bool{"": true, "0": true, "0.5": true, "1": true, "-0.1": false, "1.1": false, "NaN": false, "half": false} {
		env := map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": arg}
		if _, err := readEnvironment(func(name string) string { return env[name] }); (err == nil) != good ||
			err != nil && !strings.HasPrefix(err.Error(), "OTEL_TRACES_SAMPLER_ARG ") {
			t.Errorf("read(OTEL_TRACES_SAMPLER_ARG=%q) = %v, want good: %v", arg, err, good)
		}
	}
}

func TestReadNamesEveryBadVariable(t *testing.T) {
	env := map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "?", "OTEL_BSP_SCHEDULE_DELAY": "x"}
	_, err := readEnvironment(func(name string) string { return env[name] })
	var got []string
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			name, _, _ := strings.Cut(line, " ")
			got = append(got, name)
		}
	}
	if diff := cmp.Diff([]string{"OTEL_TRACES_SAMPLER", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_EXPORTER_OTLP_PROTOCOL"}, got); diff != "" {
		t.Errorf("read names (-want +got):\n%s", diff)
	}
}

// Whatever the variables hold, they are refused or the SDK can work with them.
func FuzzRead(f *testing.F) {
	f.Add("OTEL_EXPORTER_OTLP_HEADERS", "a=b,c")
	f.Add("OTEL_RESOURCE_ATTRIBUTES", "a=%zz")
	f.Add("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
	f.Add("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:4318/x?y")
	f.Add("OTEL_TRACES_SAMPLER_ARG", "1e-3")
	f.Add("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20geheim,x")
	f.Fuzz(func(t *testing.T, name, value string) {
		if strings.HasSuffix(name, "CERTIFICATE") || strings.HasSuffix(name, "KEY") {
			return // a path
		}
		env := map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", name: value}
		s, err := readEnvironment(func(name string) string { return env[name] })
		switch {
		case err == nil && (s.queue < 1 || s.queue > mostQueue):
			t.Errorf("read(%s=%q) = %+v", name, value, s)
		case err != nil && !strings.Contains(err.Error(), name):
			t.Errorf("read(%s=%q) = %v, which does not name it", name, value, err)
		case err != nil && strings.Contains(name, "HEADERS") && strings.Contains(value, "geheim") && strings.Contains(err.Error(), "geheim"):
			t.Errorf("read(%s=%q) = %v, which tells a secret", name, value, err)
		}
	})
}
