package tracing

import (
	"os"
	"strings"
	"testing"
)

const url4318 = "http://127.0.0.1:4318"

// setEnvironment sets these variables, and no other of OpenTelemetry's.
func setEnvironment(t *testing.T, env map[string]string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
}

func TestReadEnvironment(t *testing.T) {
	type env = map[string]string
	off, sent := settings{queue: 2048}, settings{to: toReceiver, endpoint: true, queue: 2048}
	offWithEndpoint := settings{endpoint: true, queue: 2048}
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
		{"console beats an endpoint", env{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, settings{to: toConsole, endpoint: true, queue: 2048}},
		{"none beats an endpoint", env{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, offWithEndpoint},
		{"disabled beats all", env{"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, off},
		{"not disabled", env{"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": url4318}, sent},
		{"what is off is not checked", env{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_BSP_MAX_QUEUE_SIZE": "?"}, off},
		{"the console needs no protocol", env{"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, settings{to: toConsole, queue: 2048}},
		{"traces have a protocol of their own", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
			"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, sent},
		{"headers", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x, a-b=,"}, sent},
		{"a queue", env{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, "OTEL_BSP_MAX_QUEUE_SIZE": "100"}, settings{to: toReceiver, endpoint: true, queue: 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			setEnvironment(t, tt.env)
			if got, err := readEnvironment(); err != nil || got != tt.want {
				t.Errorf("readEnvironment() = %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestReadEnvironmentNamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct{ name, variable, value, want string }{
		{"another exporter", "OTEL_TRACES_EXPORTER", "zipkin", `OTEL_TRACES_EXPORTER "zipkin": want otlp, console or none`},
		{"two exporters", "OTEL_TRACES_EXPORTER", "otlp,console", `OTEL_TRACES_EXPORTER "otlp,console": want otlp, console or none`},
		{"gRPC", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL "grpc": only http/protobuf is supported, whose usual port is 4318`},
		{"JSON for traces", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json",
			`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL "http/json": only http/protobuf is supported, whose usual port is 4318`},
		{"no queue", "OTEL_BSP_MAX_QUEUE_SIZE", "0", `OTEL_BSP_MAX_QUEUE_SIZE "0": want a number above 0`},
		{"a header without a name", "OTEL_EXPORTER_OTLP_HEADERS", "a=b,Bearer%20s3cr3t",
			"OTEL_EXPORTER_OTLP_HEADERS: want name=value,name=value, with the values percent-encoded (its value may be secret, and is not shown)"},
		{"a header that is not encoded", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=s3cr3t%",
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS: want name=value,name=value, with the values percent-encoded (its value may be secret, and is not shown)"},
		{"a header with a blank in its name", "OTEL_EXPORTER_OTLP_HEADERS", "a s3cr3t=b",
			"OTEL_EXPORTER_OTLP_HEADERS: want name=value,name=value, with the values percent-encoded (its value may be secret, and is not shown)"},
		{"no URL", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:s3cr3t@otel:port",
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want a URL (its value may have a password, and is not shown)"},
		{"a queue of words", "OTEL_BSP_MAX_QUEUE_SIZE", "many", `OTEL_BSP_MAX_QUEUE_SIZE "many": want a number above 0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			setEnvironment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url4318, tt.variable: tt.value})
			if _, err := readEnvironment(); err == nil || err.Error() != tt.want {
				t.Errorf("readEnvironment() = %v, want %s", err, tt.want)
			}
		})
	}
}
