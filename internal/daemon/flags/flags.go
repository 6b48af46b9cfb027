// Package flags is what the commands share: options of Redis and of the log, and
// the life of a process from its first signal to its exit code.
package flags

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// Redis are the flags that say how to reach Redis.
type Redis struct {
	Redis            []string `help:"Address of Redis, host:port. Several are the nodes of a Redis Cluster, or Sentinels with --redis-master." default:"127.0.0.1:6379" placeholder:"ADDR" env:"SLUICE_REDIS"`
	RedisMaster      string   `help:"Name of the master that the Sentinels watch." placeholder:"NAME" env:"SLUICE_REDIS_MASTER"`
	RedisUser        string   `help:"User for Redis' ACL." placeholder:"NAME" env:"SLUICE_REDIS_USER"`
	RedisPassword    string   `help:"Password. Prefer --redis-password-file, or the environment variable: a command line is visible to others." placeholder:"PASSWORD" env:"SLUICE_REDIS_PASSWORD"`
	PasswordFile     string   `name:"redis-password-file" help:"File with the password in its first line." placeholder:"FILE" predictor:"file" env:"SLUICE_REDIS_PASSWORD_FILE"`
	SentinelUser     string   `name:"redis-sentinel-user" help:"User for the ACL of the Sentinels themselves." placeholder:"NAME" env:"SLUICE_REDIS_SENTINEL_USER"`
	SentinelPassword string   `name:"redis-sentinel-password" help:"Its password. Prefer --redis-sentinel-password-file, or the environment variable." placeholder:"PASSWORD" env:"SLUICE_REDIS_SENTINEL_PASSWORD"`
	SentinelFile     string   `name:"redis-sentinel-password-file" help:"File with that password in its first line." placeholder:"FILE" predictor:"file" env:"SLUICE_REDIS_SENTINEL_PASSWORD_FILE"`
	RedisDB          int      `name:"redis-db" help:"Database number." default:"0" env:"SLUICE_REDIS_DB"`
	RedisTLS         bool     `name:"redis-tls" help:"Connect by TLS." env:"SLUICE_REDIS_TLS"`
	RedisCA          string   `name:"redis-ca" help:"File with the certificates to trust instead of the system's." placeholder:"FILE" type:"existingfile" env:"SLUICE_REDIS_CA"`
	RedisCert        string   `help:"File with the certificate to show to a Redis that wants one (tls-auth-clients). It is read again for each connection." placeholder:"FILE" type:"existingfile" env:"SLUICE_REDIS_CERT"`
	RedisKey         string   `help:"File with its key." placeholder:"FILE" type:"existingfile" env:"SLUICE_REDIS_KEY"`
	RedisShards      int      `help:"Number of shards that users are divided into, for Redis Cluster. The same in all processes." default:"1" env:"SLUICE_REDIS_SHARDS"`
}

// Open connects as the flags say. Each call may take as long as timeout.
func (r Redis) Open(log *slog.Logger, reg prometheus.Registerer, timeout time.Duration) (*redisbus.Bus, error) {
	secure, err := r.tls()
	if err != nil {
		return nil, err
	}
	password, err := passwordOf("--redis-password", r.RedisPassword, r.PasswordFile, log)
	if err != nil {
		return nil, err
	}
	sentinelPassword, err := passwordOf("--redis-sentinel-password", r.SentinelPassword, r.SentinelFile, log)
	if err != nil {
		return nil, err
	}
	return redisbus.Open(redisbus.Options{
		Addresses: r.Redis, MasterName: r.RedisMaster, Username: r.RedisUser, Password: password,
		SentinelUsername: r.SentinelUser, SentinelPassword: sentinelPassword,
		DB: r.RedisDB, TLS: secure, Shards: r.RedisShards, Timeout: timeout, Logger: log, Registerer: reg,
	})
}

// passwordOf is what a flag says, or the file of the flag of the same name with -file.
func passwordOf(flag, given, file string, log *slog.Logger) (string, error) {
	switch {
	case file == "":
		return given, nil
	// Which of the two is the old one nobody but the operator knows.
	case given != "":
		return "", fmt.Errorf("%s and %s-file exclude each other", flag, flag)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s-file: %w", flag, err)
	}
	// Without one the connection would be another user's, and be refused much later, or not at all.
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("%s-file: %s has no password in its first line", flag, file)
	}
	daemon.WarnOfReaders(log, file)
	return line, nil
}

// tls is nil for connections without it.
func (r Redis) tls() (*tls.Config, error) {
	// Who names certificates wants them used, and must not talk in the clear because one more flag is missing.
	if !r.RedisTLS && r.RedisCA == "" && r.RedisCert == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.RedisCA != "" {
		pem, err := os.ReadFile(r.RedisCA)
		if err != nil {
			return nil, err
		}
		// Instead of the system's, or any public authority could vouch for a Redis.
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", r.RedisCA)
		}
	}
	if r.RedisCert != "" {
		// Certificates of machines live for days: one that was replaced meanwhile is shown without a restart.
		show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(r.RedisCert, r.RedisKey)
			return &pair, err
		}
		// Once now: a path that is wrong is told at the start, and not with each connection.
		if _, err := show(nil); err != nil {
			return nil, fmt.Errorf("--redis-cert and --redis-key: %w", err)
		}
		config.GetClientCertificate = show
	}
	return config, nil
}

// Log are the flags of the log, which goes to standard error.
type Log struct {
	LogLevel  slog.Level `help:"Minimum level to log: debug, info, warn or error." default:"info" placeholder:"LEVEL" env:"SLUICE_LOG_LEVEL"`
	LogFormat string     `help:"Log format: text or json." enum:"text,json" default:"text" placeholder:"FORMAT" env:"SLUICE_LOG_FORMAT"`
}

// Logger makes the logger that the flags describe.
func (l Log) Logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: l.LogLevel}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// NewRegistry returns a registry that already knows the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Signals returns a context that ends with SIGINT or SIGTERM, and the channel
// of SIGHUP. After the first signal a second one ends the process at once.
func Signals() (context.Context, <-chan os.Signal, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The signals have their usual effect again: whoever does not want to wait for the end sends another one.
	context.AfterFunc(ctx, stop)
	// One is enough: however many came, what is read anew is read once.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return ctx, hangups, stop
}

// Exit prints an error for a person and returns the process's exit code.
func Exit(w io.Writer, command string, err error) int {
	// Canceled is how a process ends that was told to.
	if err == nil || errors.Is(err, context.Canceled) {
		return 0
	}
	fmt.Fprintf(w, "%s: %v\n", command, err)
	return 1
}
